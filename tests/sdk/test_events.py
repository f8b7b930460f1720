"""Events: what became of sandboxes and snapshots, told once, newest first."""
import pytest
from support.node import Node
from support.wait import until
from withruntime import InvalidRequestError


def told(runtime, resource_id, **query) -> list[dict]:
    return runtime.events.list(resource_id=resource_id, **query)["data"]


def kinds(runtime, resource_id) -> list[str]:
    return [event["type"] for event in reversed(told(runtime, resource_id))]


def test_a_life_is_told_in_order(runtime):
    with runtime.sandboxes.create(name="told", labels={"stage": "one"}) as sandbox:
        sandbox.pause()
        sandbox.wake()
        sandbox.stop()
        sandbox.restart()
        sandbox.exec("true")
    events = list(reversed(told(runtime, sandbox.id)))
    assert [(e["type"], e["data"]["sandbox"]["previousState"], e["data"]["sandbox"]["state"]) for e in events] == [
        ("sandbox.created", None, "starting"),
        ("sandbox.running", "starting", "running"),
        ("sandbox.paused", "running", "paused"),
        ("sandbox.woken", "paused", "running"),
        ("sandbox.stopped", "running", "stopped"),
        ("sandbox.running", "stopped", "running"),
        ("sandbox.stopped", "running", "stopped"),
    ]
    last = events[-1]
    assert last["resourceId"] == sandbox.id and last["id"] and last["createdAt"].endswith("Z")
    thing = last["data"]["sandbox"]
    assert (thing["id"], thing["name"], thing["labels"]) == (sandbox.id, "told", {"stage": "one"})
    assert thing["stopReason"] == "requested" and events[1]["data"]["sandbox"]["stopReason"] is None


def test_a_snapshot_becomes_ready_and_goes_and_a_fork_tells_of_its_copy_alone(runtime, sandbox):
    snapshot = sandbox.snapshot(mode="disk", name="kept")
    runtime.snapshots.delete(snapshot["id"])
    assert kinds(runtime, snapshot["id"]) == ["snapshot.ready", "snapshot.deleted"]
    gone = told(runtime, snapshot["id"])[0]["data"]["snapshot"]
    assert (gone["state"], gone["name"], gone["sourceSandboxId"]) == ("deleted", "kept", sandbox.id)
    newest = runtime.events.list(limit=1)["data"][0]["id"]
    with sandbox.fork() as copy:
        since = []
        for event in runtime.events.list(limit=100)["data"]:
            if event["id"] == newest:
                break
            since.append((event["type"], event["resourceId"]))
        assert since == [("sandbox.running", copy.id), ("sandbox.created", copy.id)]


def test_pages_go_back_without_a_gap_and_types_are_searched(runtime, sandbox):
    sandbox.stop()
    whole = [event["id"] for event in told(runtime, sandbox.id)]
    paged, cursor = [], None
    while True:
        page = runtime.events.list(resource_id=sandbox.id, limit=2, cursor=cursor)
        paged += [event["id"] for event in page["data"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert paged == whole and len(whole) == 3
    assert [e["type"] for e in told(runtime, sandbox.id, type="sandbox.stopped")] == ["sandbox.stopped"]
    assert told(runtime, sandbox.id, type="volume.ready") == []
    for bad in ({"cursor": "evt_x"}, {"limit": 101}):
        with pytest.raises(InvalidRequestError):
            runtime.events.list(**bad)


def test_what_the_clock_does_is_told_too():
    with Node(words=["--second-us", "20000"]) as quick:
        kept = quick.client.sandboxes.create(timeout_seconds=60, on_lease_end="stop", idle_pause_seconds=0)
        with kept:
            ended = until(lambda: told(quick.client, kept.id, type="sandbox.stopped"), seconds=20)
            assert ended[0]["data"]["sandbox"]["stopReason"] == "lease_expired"
