"""The public programs "remember / go back to" and "prepare once, start many": snapshots of a whole running machine."""
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.outside import assert_independent, assert_steady, processes, steady
from support.zoo import Zoo
from withruntime import NotFoundError


def remember(sandbox, name: str) -> str:
    return sandbox.snapshot(name=name, retention_days=30)["id"]


def go_back_to(runtime, sandbox, snapshot_id: str):
    back = runtime.sandboxes.create(snapshot=snapshot_id)
    sandbox.delete()
    return back


def test_go_back_to_what_was_remembered(node, runtime):
    current = runtime.sandboxes.create()
    zoo = Zoo.start(current)
    assert current.exec("echo good > /workspace/state", timeout_ms=120_000).exit_code == 0
    snapshot_id = remember(current, "flask-ready")
    remembered = zoo.copy()
    zoo.verify(current)
    assert current.exec("echo bad > /workspace/state; kill -9 $(pgrep -u runtime node)", timeout_ms=300_000).exit_code == 0
    back = go_back_to(runtime, current, snapshot_id)
    try:
        assert back.exec("cat /workspace/state").stdout == "good\n"
        remembered.verify(back)
        with pytest.raises(NotFoundError):
            current.refresh()
    finally:
        back.delete()
        runtime.snapshots.delete(snapshot_id)


def test_a_snapshot_tells_the_truth_about_itself(runtime, sandbox, zoo: Zoo):
    snapshot = sandbox.snapshot(name="told", labels={"k": "v"}, retention_days=7)
    try:
        assert (snapshot["kind"], snapshot["mode"], snapshot["state"]) == ("snapshot", "memory", "ready")
        assert (snapshot["name"], snapshot["labels"], snapshot["retentionDays"]) == ("told", {"k": "v"}, 7)
        assert snapshot["sourceSandboxId"] == sandbox.id
        assert snapshot["backedUp"] is False and snapshot["durability"]["state"] == "none"
        assert snapshot["error"] is None and snapshot["readyAt"] and snapshot["expiresAt"]
        assert {"vcpu", "memoryMiB", "diskMiB"} <= snapshot["shape"].keys()
        assert sandbox.refresh().state == "running"
        assert runtime.snapshots.get(snapshot["id"])["id"] == snapshot["id"]
        listed = runtime.snapshots.list(sandbox_id=sandbox.id).to_list()
        assert [entry["id"] for entry in listed] == [snapshot["id"]]
        changed = runtime.snapshots.update(snapshot["id"], name=None, labels={})
        assert (changed["name"], changed["labels"]) == (None, {})
    finally:
        runtime.snapshots.delete(snapshot["id"])
    with pytest.raises(NotFoundError) as missing:
        runtime.snapshots.get(snapshot["id"])
    assert missing.value.code == "snapshot_not_found"
    zoo.verify(sandbox)


def test_prepare_once_start_many(node, runtime):
    source = runtime.sandboxes.create()
    zoo = Zoo.start(source)
    assert source.exec("mkdir -p /workspace/app && echo 42 > /workspace/app/answer", timeout_ms=120_000).exit_code == 0
    assert source.exec("python3 -m compileall -q /workspace/app", timeout_ms=300_000).exit_code == 0
    snapshot_id = remember(source, "app-ready")
    source.stop()
    assert source.state == "stopped"

    def start(number: int):
        return runtime.sandboxes.create(snapshot=snapshot_id, labels={"task": f"fix-{number}"})
    with ThreadPoolExecutor(4) as pool:
        copies = list(pool.map(start, range(1, 5)))
    try:
        assert_independent(node, copies[0].id, [copy.id for copy in copies[1:]])
        first = steady(node, copies[0].id)
        for number, copy in enumerate(copies, start=1):
            assert copy.info["labels"] == {"task": f"fix-{number}"}
            ran = copy.exec("python3 -c \"print(int(open('/workspace/app/answer').read()) + 1)\"")
            assert (ran.exit_code, ran.stdout, ran.timed_out) == (0, "43\n", False)
            assert_steady(node, copy.id, first)
            twin = zoo.copy()
            twin.give(copy, number, f"task {number}")
            twin.verify(copy)
    finally:
        for copy in copies:
            copy.delete()
        source.delete()
        runtime.snapshots.delete(snapshot_id)


def test_a_copy_outlives_its_snapshot(runtime, sandbox, zoo: Zoo):
    snapshot_id = remember(sandbox, "short")
    copy = runtime.sandboxes.create(snapshot=snapshot_id)
    try:
        runtime.snapshots.delete(snapshot_id)
        zoo.copy().verify(copy)
    finally:
        copy.delete()


def test_a_disk_snapshot_keeps_files_and_starts_with_no_programs(runtime, sandbox):
    sandbox.exec("echo kept > /workspace/kept")
    sandbox.spawn("exec sleep 1000")
    snapshot = sandbox.snapshot(mode="disk")
    try:
        assert (snapshot["mode"], snapshot["state"]) == ("disk", "ready")
        with runtime.sandboxes.create(snapshot=snapshot["id"]) as copy:
            assert copy.exec("cat /workspace/kept; pgrep -c sleep").stdout == "kept\n0\n"
    finally:
        runtime.snapshots.delete(snapshot["id"])
