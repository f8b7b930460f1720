"""Pause, wake, restart: nothing runs on, nothing is lost, and requests wake what sleeps."""
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.wait import until
from support.zoo import Zoo
from withruntime import ConflictError


def test_a_paused_machine_goes_on_where_it_was(runtime, zoo, sandbox):
    ticks = sandbox.spawn("i=0; while :; do i=$((i+1)); echo $i > ticks; sleep 0.05; done")
    until(lambda: sandbox.exec("cat ticks 2>/dev/null").stdout)
    for round_ in range(5):
        sandbox.files.write(f"/workspace/round-{round_}", str(round_))
        sandbox.pause()
        info = runtime.sandboxes.get(sandbox.id).info
        assert (info["state"], info["status"], info["stopReason"]) == ("paused", "paused", "requested")
        assert info["pausedAt"].endswith("Z") and info["pausable"] is True
        sandbox.wake()
        assert sandbox.state == "running" and sandbox.info["pausedAt"] is None and sandbox.info["stopReason"] is None
        assert sandbox.exec("cat round-* | tr -d '\\n'").stdout == "".join(map(str, range(round_ + 1)))
    zoo.verify(sandbox)
    before = int(sandbox.exec("cat ticks").stdout)
    until(lambda: int(sandbox.exec("cat ticks").stdout or 0) > before, what="the ticks go on")
    assert sandbox.process(ticks.id).info["state"] == "running"


def test_pausing_and_waking_twice(sandbox):
    sandbox.pause()
    sandbox.pause()
    assert sandbox.state == "paused"
    sandbox.wake()
    sandbox.wake()  # The SDK takes `not_paused` for done.
    assert sandbox.refresh().state == "running"


def test_the_wire_says_what_it_cannot_do(node, sandbox):
    path = f"/v1/sandboxes/{sandbox.id}"
    awake = node.raw("POST", f"{path}:wake", {})
    assert (awake.status, awake.error["code"]) == (409, "not_paused")
    running = node.raw("POST", f"{path}:restart", {})
    assert (running.status, running.error["code"]) == (409, "sandbox_not_stopped")
    assert node.raw("POST", f"{path}:pause", {"x": 1}).error["code"] == "invalid_request"
    assert node.raw("POST", f"{path}:extend", {}).error["details"]["issues"][0]["path"] == "seconds"
    assert node.raw("POST", f"{path}:retention", {"days": 0}).status == 400
    sandbox.stop()
    for verb in ("pause", "wake"):
        stopped = node.raw("POST", f"{path}:{verb}", {})
        assert (stopped.status, stopped.error["code"]) == (409, "sandbox_stopped"), verb
    gone = node.raw("POST", "/v1/sandboxes/01900000-0000-7000-8000-000000000000:pause", {})
    assert (gone.status, gone.error["code"]) == (404, "not_found")


def test_a_request_wakes_a_paused_sandbox(runtime, sandbox):
    sandbox.files.write("/workspace/kept", "kept")
    for use in (lambda: sandbox.exec("cat kept").stdout, lambda: sandbox.files.read_text("/workspace/kept"),
                lambda: sandbox.spawn("echo kept").wait().stdout.strip()):
        sandbox.pause()
        assert use() == "kept"
        assert runtime.sandboxes.get(sandbox.id).state == "running"
    sandbox.pause()
    assert runtime.sandboxes.get(sandbox.id).state == "paused", "a look wakes nobody"
    assert [found.state for found in runtime.sandboxes.list(state="paused")] == ["paused"]


def test_many_requests_wake_it_once(sandbox):
    sandbox.exec("echo 0 > starts")
    sandbox.pause()
    answers = []
    callers = [threading.Thread(target=lambda: answers.append(sandbox.exec("cat starts").stdout)) for _ in range(12)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert answers == ["0\n"] * 12


def test_without_auto_wake_a_request_is_told(runtime):
    with runtime.sandboxes.create(auto_wake=False) as sandbox:
        sandbox.pause()
        with pytest.raises(ConflictError) as refused:
            sandbox.exec("true")
        assert refused.value.code == "sandbox_paused" and "wake" in refused.value.hint
        assert runtime.sandboxes.get(sandbox.id).state == "paused"
        sandbox.update(auto_wake=True)
        assert sandbox.exec("echo up").stdout == "up\n"


def test_a_command_that_is_followed_is_paused_and_goes_on(sandbox):
    script = "echo one; until [ -e go ]; do sleep 0.02; done; echo two"
    seen, result = [], {}
    follower = threading.Thread(target=lambda: result.update(
        ran=sandbox.exec(script, timeout_ms=120_000, on_stdout=seen.append)))
    follower.start()
    until(lambda: "".join(seen) == "one\n", what="the first line")
    sandbox.pause()
    sandbox.wake()
    sandbox.files.write("/workspace/go", "")
    follower.join(60)
    assert not follower.is_alive() and (result["ran"].stdout, result["ran"].exit_code) == ("one\ntwo\n", 0)


def test_a_pause_that_is_refused_leaves_it_running(sandbox):
    traced = ("import ctypes, os, signal, time\nlibc = ctypes.CDLL(None)\nchild = os.fork()\n"
              "if child == 0:\n    libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(1000)\n"
              "os.waitpid(child, os.WUNTRACED); open('ready', 'w'); time.sleep(1000)\n")
    process = sandbox.spawn(["python3", "-c", traced])
    until(lambda: sandbox.exec("test -e ready").exit_code == 0)
    with pytest.raises(ConflictError) as refused:
        sandbox.pause()
    assert refused.value.code == "capture_refused" and "python3" in str(refused.value)
    assert sandbox.refresh().state == "running" and sandbox.info["stopReason"] is None
    assert sandbox.process(process.id).info["state"] == "running"


def test_back_to_back_the_state_is_always_the_truth(runtime, sandbox):
    sandbox.exec("echo 0 > n")
    for number in range(1, 101):
        sandbox.pause()
        assert runtime.sandboxes.get(sandbox.id).state == "paused"
        assert sandbox.exec(f"n=$(cat n); echo $((n+1)) | tee n").stdout == f"{number}\n"
        assert runtime.sandboxes.get(sandbox.id).state == "running"


def test_restart_boots_from_the_kept_disk(runtime, sandbox):
    sandbox.exec("echo kept > kept; sudo sh -c 'echo also > /etc/also'")
    sandbox.spawn("sleep 1000")
    sandbox.update(labels={"a": "b"}, env={"E": "1"})
    sandbox.stop()
    sandbox.restart()
    assert sandbox.state == "running" and sandbox.info["stopReason"] is None and sandbox.info["endedAt"] is None
    assert sandbox.exec("cat kept /etc/also; echo $E").stdout == "kept\nalso\n1\n"
    assert "sleep" not in sandbox.exec("ps -e -o comm").stdout, "memory is not kept"
    assert sandbox.refresh().info["labels"] == {"a": "b"}
    with sandbox.fork() as copy:
        assert copy.exec("cat kept").stdout == "kept\n"


def test_get_or_create_brings_back_the_holder_of_the_name(runtime):
    with runtime.sandboxes.create(name="holder") as sandbox:
        sandbox.exec("echo mine > mine")
        sandbox.pause()
        woken = runtime.sandboxes.get_or_create("holder")
        assert (woken.id, woken.state, woken.info.get("reused")) == (sandbox.id, "running", True)
        sandbox.stop()
        started = runtime.sandboxes.get_or_create("holder")
        assert (started.id, started.state, started.exec("cat mine").stdout) == (sandbox.id, "running", "mine\n")


def test_get_or_create_at_once_makes_one(runtime):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: runtime.sandboxes.get_or_create("one"), range(8)))
    assert len({sandbox.id for sandbox in found}) == 1 and {sandbox.state for sandbox in found} == {"running"}
    assert sorted(bool(sandbox.info.get("reused")) for sandbox in found) == [False] + [True] * 7
    found[0].delete()


def test_a_sandbox_kept_alive_outlives_its_time_limit(runtime):
    with runtime.sandboxes.create(timeout_seconds=60) as sandbox:
        end = sandbox.info["endsAt"]
        stop = sandbox.keep_alive(margin_seconds=600)
        try:
            until(lambda: runtime.sandboxes.get(sandbox.id).info["endsAt"] > end, what="the limit moves")
        finally:
            stop()


def test_a_paused_source_is_forked_and_saved_and_stays_paused(runtime, zoo, sandbox):
    sandbox.pause()
    with sandbox.fork() as copy:
        zoo.copy().verify(copy)
    snapshot = sandbox.snapshot(name="asleep")
    files = sandbox.snapshot(mode="disk")
    assert runtime.sandboxes.get(sandbox.id).state == "paused"
    with runtime.sandboxes.create(snapshot=snapshot["id"]) as again:
        zoo.copy().verify(again)
    with runtime.sandboxes.create(snapshot=files["id"]) as fresh:
        assert fresh.exec("ls zoo/web.py").exit_code == 0
    sandbox.wake()
    zoo.verify(sandbox)
    for made in (snapshot, files):
        runtime.snapshots.delete(made["id"])


def test_a_stopped_source_has_files_to_save_and_no_memory(runtime, sandbox):
    sandbox.exec("echo kept > kept")
    sandbox.stop()
    with pytest.raises(ConflictError) as refused:
        sandbox.snapshot()
    assert refused.value.code == "sandbox_stopped"
    files = sandbox.snapshot(mode="disk")
    with runtime.sandboxes.create(snapshot=files["id"]) as fresh:
        assert fresh.exec("cat kept").stdout == "kept\n"
    runtime.snapshots.delete(files["id"])


def test_a_paused_sandbox_can_be_stopped_and_deleted(node, runtime):
    sandbox = runtime.sandboxes.create()
    sandbox.pause()
    sandbox.stop()
    assert sandbox.state == "stopped" and sandbox.info["pausedAt"] is None
    assert not (node.state_dir / "sandboxes" / sandbox.id / "paused").exists()
    sandbox.restart()
    sandbox.pause()
    sandbox.delete()
    assert not (node.state_dir / "sandboxes" / sandbox.id).exists()


def test_use_is_counted_while_it_runs_and_not_while_it_sleeps(node, sandbox):
    def used():
        resources = node.raw("GET", "/v1/usage").json["resources"]
        return next(found for found in resources if found["resourceId"] == sandbox.id)
    sandbox.exec("python3 -c 'while __import__(\"time\").process_time() < 0.3: pass'")
    sandbox.pause()
    first = used()
    assert first["activeCpuSeconds"] >= 0.3
    assert used()["runningSeconds"] == first["runningSeconds"]
    sandbox.wake()
    sandbox.exec("python3 -c 'while __import__(\"time\").process_time() < 0.3: pass'")
    sandbox.stop()
    second = used()
    assert second["activeCpuSeconds"] >= first["activeCpuSeconds"] + 0.3
    assert second["runningSeconds"] > first["runningSeconds"]
