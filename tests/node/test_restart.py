"""The node may die at any instant: its sandboxes run on, and the next node finds them."""
import json
import threading

from support.node import Node, gone
from support.outside import assert_steady, guest_pid, keeper_pid, processes, steady
from support.wait import until
from support.zoo import Zoo


def test_kill_minus_nine_and_start_again(node):
    sandbox = node.client.sandboxes.create(name="survivor", labels={"a": "b"}, env={"E": "1"})
    zoo = Zoo.start(sandbox)
    counting = sandbox.spawn("i=0; while [ $i -lt 150 ]; do i=$((i+1)); echo $i; sleep 0.02; done")
    snapshot = sandbox.snapshot(name="before-the-crash")
    before, pid = steady(node, sandbox.id), guest_pid(node, sandbox.id)
    node.crash()
    assert_steady(node, sandbox.id, before)
    node.start()
    found = node.client.sandboxes.get(sandbox.id)
    assert (found.state, found.info["name"], found.info["labels"], found.info["envNames"]) == ("running", "survivor", {"a": "b"}, ["E"])
    assert guest_pid(node, sandbox.id) == pid
    zoo.verify(found)
    assert found.exec("echo $E").stdout == "1\n"
    assert found.process(counting.id).wait().stdout == "".join(f"{number}\n" for number in range(1, 151))
    copy = found.fork()
    zoo.copy().verify(copy)
    copy.delete()
    back = node.client.sandboxes.create(snapshot=snapshot["id"])
    back.delete()
    found.delete()
    node.client.snapshots.delete(snapshot["id"])


def test_a_crash_in_the_middle_of_work_leaves_only_what_is_listed(node):
    sandbox = node.client.sandboxes.create()
    Zoo.start(sandbox)
    for delay in (0.005, 0.02, 0.05, 0.15):
        calls = [threading.Thread(target=quietly, args=(node, f"/v1/sandboxes/{sandbox.id}:{verb}", body))
                 for verb, body in (("fork", {"count": 2}), ("snapshot", {}))]
        for call in calls:
            call.start()
        threading.Event().wait(delay)
        node.crash()
        for call in calls:
            call.join(60)
        node.start()
        again = node.client.sandboxes.get(sandbox.id)
        until(lambda: again.refresh().state == "running")
        assert again.exec("echo fine").stdout == "fine\n"
        listed = {box.id for box in node.client.sandboxes.list(include_stopped=True)}
        kept = {path.name for path in (node.state_dir / "sandboxes").iterdir()}
        assert kept <= listed, f"directories of nobody: {kept - listed}"
        for other in listed - {sandbox.id}:
            node.client.sandboxes.delete(other)
        for snapshot in node.client.snapshots.list().to_list():
            assert snapshot["state"] in ("ready", "failed")
            node.client.snapshots.delete(snapshot["id"])
    assert [path for place in ("extents/*", "layers/*", "pool/layers/*") for path in node.state_dir.glob(place)] == []
    node.client.sandboxes.delete(sandbox.id)


def quietly(node, path: str, body: dict) -> None:
    try:
        node.raw("POST", path, body)
    except (OSError, ValueError):
        pass  # the node was killed under it


def test_a_dead_keeper_is_replaced_when_the_node_comes_back(node):
    import os
    import signal
    sandbox = node.client.sandboxes.create()
    zoo = Zoo.start(sandbox)
    node.crash()
    keeper = keeper_pid(node, sandbox.id)
    os.kill(keeper, signal.SIGKILL)
    assert gone(keeper)
    node.start()
    found = node.client.sandboxes.get(sandbox.id)
    until(lambda: found.refresh().state == "running")
    zoo.verify(found)
    copy = found.fork()
    zoo.copy().verify(copy)
    copy.delete()
    found.delete()


def test_a_sandbox_that_died_meanwhile_is_told_as_stopped(node):
    import os
    import signal
    sandbox = node.client.sandboxes.create()
    pid = guest_pid(node, sandbox.id)
    node.crash()
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    node.start()
    found = node.client.sandboxes.get(sandbox.id)
    assert (found.state, found.info["stopReason"]) == ("stopped", "host_lost")
    found.delete()


def test_idempotency_survives_a_restart(node):
    headers = {"Idempotency-Key": "across-a-crash", "Prefer": "wait=60"}
    first = node.raw("POST", "/v1/sandboxes", {}, headers=headers).json
    node.crash()
    node.start()
    again = node.raw("POST", "/v1/sandboxes", {}, headers=headers).json
    assert again["id"] == first["id"] and again["replayed"] is True
    node.client.sandboxes.delete(first["id"])


def test_a_deleted_sandbox_leaves_nothing_on_the_host(node):
    sandbox = node.client.sandboxes.create()
    sandbox.exec("echo x > /workspace/x; sudo -n sh -c 'echo y > /etc/y'")
    sandbox.spawn("exec sleep 1000")
    copy = sandbox.fork()
    pids = [seen.pid for box in (sandbox, copy) for seen in processes(node, box.id).values()]
    pids += [keeper_pid(node, box.id) for box in (sandbox, copy)]
    for box in (sandbox, copy):
        box.delete()
    assert all(gone(pid) for pid in pids)
    left = [str(path) for box in (sandbox, copy) for path in node.state_dir.rglob(f"*{box.id}*")]
    assert left == []
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        assert sandbox.id not in file.read()


def test_usage_is_recorded(node):
    sandbox = node.client.sandboxes.create()
    sandbox.exec("timeout 0.5 sh -c 'while :; do :; done'")
    sandbox.stop()
    resources = {entry["resourceId"]: entry for entry in node.client.usage()["resources"]}
    mine = resources[sandbox.id]
    assert mine["runningSeconds"] > 0 and mine["activeCpuSeconds"] > 0.2 and mine["memoryGiBSeconds"] > 0
    sandbox.delete()
    assert json.dumps(mine)


def test_sigterm_leaves_sandboxes_running_unless_told_otherwise():
    with Node(end_sandboxes=False) as node:
        sandbox = node.client.sandboxes.create()
        zoo = Zoo.start(sandbox)
        pid = guest_pid(node, sandbox.id)
        assert node.stop() == 0
        assert not gone(pid, seconds=0.3)
        node.start()
        zoo.verify(node.client.sandboxes.get(sandbox.id))
