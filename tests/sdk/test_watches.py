"""Watches of files by the real SDK: what is told, how it is read, and what a pause and a fork do to it."""
import threading

import pytest
from support.node import Node
from support.wait import until
from withruntime import ConflictError, NotFoundError, RuntimeAPIError


def told(watch, wanted, **how) -> list:
    """Events up to the first that ``wanted`` accepts."""
    seen = []

    def there():
        seen.extend(watch.get_new_events(wait_ms=1000))
        return any(wanted(event) for event in seen)
    until(there, seconds=30, what="the change is told", **how)
    return seen


def shown(events) -> list:
    return [f"{event['type']} {event.get('oldPath', '')}>{event['path']}" if event["type"] == "rename" else f"{event['type']} {event['path']}"
            for event in events]


def test_changes_are_told_in_order_and_once(sandbox):
    sandbox.exec("mkdir -p /workspace/w/old")
    watch = sandbox.files.watch("/workspace/w", recursive=True, exclude=["node_modules"], batch_ms=50)
    assert (watch.path, watch.cursor) == ("/workspace/w", 0)
    [listed] = sandbox.files.watches.list()
    assert (listed["id"], listed["recursive"], listed["exclude"], listed["timeoutMs"]) == (watch.id, True, ["node_modules"], 3_600_000)
    sandbox.exec("cd /workspace/w && mkdir -p new/deep && echo a > new/deep/f && mv old renamed && echo b > renamed/g && chmod 600 renamed/g && "
                 "mkdir node_modules && touch node_modules/x && rm new/deep/f && touch last")
    seen = told(watch, lambda event: event["path"].endswith("/last"))
    lines = shown(seen)
    assert lines[0] == "create /workspace/w/new" and "create /workspace/w/new/deep" in lines and "create /workspace/w/new/deep/f" in lines
    assert "rename /workspace/w/old>/workspace/w/renamed" in lines and "create /workspace/w/renamed/g" in lines and "chmod /workspace/w/renamed/g" in lines
    assert lines.index("create /workspace/w/new/deep/f") < lines.index("remove /workspace/w/new/deep/f")
    assert len([line for line in lines if line.startswith("create")]) == len({line for line in lines if line.startswith("create")}), lines
    assert not any("node_modules" in line for line in lines), lines
    by_path = {event["path"]: event for event in seen if event["type"] == "create"}
    assert by_path["/workspace/w/new"]["isDir"] and not by_path["/workspace/w/last"]["isDir"]
    # An edit by the file routes is a change as any other.
    sandbox.files.write("/workspace/w/last", "by the API")
    assert any("last" in event["path"] for event in told(watch, lambda event: event["type"] in ("write", "create", "rename")))
    assert watch.stop() and sandbox.files.watches.list() == []
    until(lambda: watch.get_new_events(wait_ms=500) is not None and watch.exit_reason, seconds=20, what="it says that it has ended")
    assert watch.exit_reason == "stopped" and watch.stop() is False


def test_filters_and_bounds(sandbox):
    sandbox.exec("mkdir -p /workspace/f/a/b/c")
    rust = sandbox.files.watch("/workspace/f", events=["create"], include=["*.rs"], batch_ms=0)
    sandbox.exec("cd /workspace/f && touch x.txt y.rs a/z.rs && echo 1 >> y.rs && rm y.rs && touch end.rs")
    assert shown(told(rust, lambda event: event["path"].endswith("end.rs"))) == ["create /workspace/f/y.rs", "create /workspace/f/end.rs"]
    few = sandbox.files.watch("/workspace/f", recursive=True, max_watches=2)
    until(lambda: few.get_new_events(wait_ms=1000) is not None and few.notices, seconds=20, what="the limit is told")
    assert few.notices == [{"k": "limit", "folders": 2}]
    brief = sandbox.files.watch("/workspace/f", timeout_ms=200, id="brief")
    assert brief.id == "brief"
    until(lambda: brief.get_new_events(wait_ms=1000) is not None and brief.exit_reason, seconds=20, what="its time is over")
    assert brief.exit_reason == "timeout"
    gone = sandbox.files.watch("/workspace/f/a/b", id="gone")
    with pytest.raises(ConflictError) as taken:
        sandbox.files.watch("/workspace", id="gone")
    assert taken.value.code == "name_taken"
    sandbox.files.watch("/workspace")
    with pytest.raises(ConflictError) as full:
        sandbox.files.watch("/workspace")
    assert (full.value.code, full.value.details["limit"]) == ("quota_exceeded", "watch.count")
    sandbox.exec("rm -r /workspace/f/a/b")
    until(lambda: gone.get_new_events(wait_ms=1000) is not None and gone.exit_reason, seconds=20, what="its folder is gone")
    assert gone.exit_reason == "root-removed"


def test_what_cannot_be_watched_is_told(sandbox):
    with pytest.raises(NotFoundError):
        sandbox.files.watch("/workspace/none")
    sandbox.exec("touch /workspace/file")
    with pytest.raises(ConflictError) as not_a_folder:
        sandbox.files.watch("/workspace/file")
    assert not_a_folder.value.code == "not_a_directory"
    for wrong in ({"events": ["x"]}, {"id": "A b"}, {"batch_ms": -1}, {"include": [""]}):
        with pytest.raises(RuntimeAPIError) as refused:
            sandbox.files.watch("/workspace", **wrong)
        assert refused.value.code == "invalid_request", wrong
    with pytest.raises(RuntimeAPIError) as hooks:
        sandbox.files.watches.start("/workspace", webhook=True)
    assert (hooks.value.status, hooks.value.code) == (501, "unavailable")
    with pytest.raises(NotFoundError):
        sandbox.files.watches.stop("none")


def test_a_watch_is_followed_and_goes_on_in_a_fork_and_after_a_pause(sandbox):
    watch = sandbox.files.watch("/workspace", batch_ms=50)
    seen, done = [], threading.Event()

    def follow():
        for event in watch.events():
            seen.append(event["path"])
        done.set()
    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    sandbox.exec("touch /workspace/one")
    until(lambda: "/workspace/one" in seen, seconds=30, what="it is followed")
    copy = sandbox.fork()
    theirs = copy.files.watches.list()
    assert [listed["id"] for listed in theirs] == [watch.id]
    sandbox.exec("touch /workspace/two")
    copy.exec("touch /workspace/other")
    until(lambda: "/workspace/two" in seen, seconds=30, what="the source's own change is told")
    page = until(lambda: (read := copy._t.json("GET", f"/v1/sandboxes/{copy.id}/files/watches/{watch.id}/events", query={"cursor": 0, "waitMs": 1000}))["events"]
                 and any(event["path"].endswith("other") for event in read["events"]) and read, seconds=30, what="the copy's own change is told")
    paths = {event["path"] for event in page["events"]}
    assert "/workspace/other" in paths and "/workspace/two" not in paths
    copy.delete()
    sandbox.pause()
    assert done.wait(30) and watch.exit_reason == "paused"
    asleep = sandbox._t.json("GET", f"/v1/sandboxes/{sandbox.id}/files/watches/{watch.id}/events", query={"cursor": watch.cursor})
    assert asleep["paused"] and asleep["events"] == [] and asleep["nextCursor"] == watch.cursor
    assert sandbox._t.json("GET", f"/v1/sandboxes/{sandbox.id}")["state"] == "paused", "reading wakes nobody"
    sandbox.wake()
    sandbox.exec("touch /workspace/three")
    assert "/workspace/three" in [event["path"] for event in told(watch, lambda event: event["path"].endswith("three"))]
    assert "/workspace/other" not in seen


def test_a_watch_keeps_no_sandbox_awake_and_outlives_the_node():
    with Node(words=["--second-us", "10000"]) as node:
        sandbox = node.client.sandboxes.create(idle_pause_seconds=60)
        watch = sandbox.files.watch("/workspace", timeout_ms=0)
        node.crash()
        node.start()
        again = node.client.sandboxes.get(sandbox.id)
        assert [listed["id"] for listed in again.files.watches.list()] == [watch.id]
        until(lambda: node.raw("GET", f"/v1/sandboxes/{sandbox.id}").json["state"] == "paused", seconds=60, what="it is paused for being idle")


def test_a_flood_is_told_as_one(sandbox):
    watch = sandbox.files.watch("/workspace", batch_ms=200)
    sandbox.exec("cd /workspace && for i in $(seq 12000); do : > f$i; done; rm f*; touch last", timeout_ms=120_000)
    count = 0

    def there():
        nonlocal count
        events = watch.get_new_events(wait_ms=1000)
        count += len(events)
        return watch.notices or any(event["path"].endswith("/last") for event in events)
    until(there, seconds=60, what="the flood is over or told as one")
    assert count > 1000 and {notice["k"] for notice in watch.notices} <= {"overflow", "lost"}
