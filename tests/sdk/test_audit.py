"""The audit log: who changed what, written before the answer."""
import pytest
from support.node import Node
from withruntime import InvalidRequestError, NotFoundError, Runtime, __version__


def lines_of(runtime, sandbox_id: str) -> list[dict]:
    return [line for line in runtime.audit.list(limit=200)["events"] if line["sandbox"] == sandbox_id]


def test_every_change_has_a_line_with_who_and_what(runtime):
    with runtime.sandboxes.create() as sandbox:
        sandbox.update(labels={"a": "b"})
        sandbox.pause()
        sandbox.wake()
        sandbox.exec("true")
        runtime.sandboxes.get(sandbox.id)
        snapshot = sandbox.snapshot(mode="disk")
        with sandbox.fork() as copy:
            pass
        sandbox.network.off()
    lines = list(reversed(lines_of(runtime, sandbox.id)))
    assert [line["action"] for line in lines] == [
        "sandbox.created", "sandbox.updated", "sandbox.paused", "sandbox.woken", "snapshot.created", "sandbox.forked",
        "network.changed", "sandbox.deleted",
    ], "looking at it and commands inside are no changes of it"
    assert lines[4]["target"] == {"type": "snapshot", "id": snapshot["id"]}
    assert lines[5]["detail"] == {"sandboxIds": [copy.id]} and lines[5]["target"]["id"] == sandbox.id
    assert lines[6]["detail"]["internet"] is False
    last = lines[-1]
    assert last["actor"] == {"kind": "key", "id": "admin", "name": "admin key", "person": None}
    assert last["target"] == {"type": "sandbox", "id": sandbox.id}
    assert (last["ip"], last["via"]) == ("127.0.0.1", f"sdk-python/{__version__}")
    assert last["requestId"].startswith("req_") and last["id"] and last["at"].endswith("Z")
    runtime.snapshots.delete(snapshot["id"])
    newest = runtime.audit.list(limit=1)["events"][0]
    assert (newest["action"], newest["target"]["id"]) == ("snapshot.deleted", snapshot["id"])


def test_each_key_is_its_own_actor_and_keys_are_changes_too(node, runtime):
    made = node.raw("POST", "/v1/keys", {"name": "audited"}).json
    with Runtime(api_key=made["key"], base_url=node.url) as other:
        other.sandboxes.create().delete()
    node.raw("DELETE", "/v1/keys/audited")
    lines = list(reversed(runtime.audit.list(limit=4)["events"]))
    assert [line["action"] for line in lines] == ["key.created", "sandbox.created", "sandbox.deleted", "key.deleted"]
    assert [line["actor"]["id"] for line in lines] == ["admin", made["id"], made["id"], "admin"]
    assert lines[1]["actor"]["name"] == "audited"
    assert all(lines[at]["target"] == {"type": "key", "id": made["id"]} for at in (0, 3))
    assert made["key"] not in str(lines), "no key is ever in the log"


def test_what_failed_and_what_is_repeated_has_no_line(runtime):
    before = runtime.audit.list(limit=1)["events"][0]["seq"]
    with pytest.raises(NotFoundError):
        runtime.snapshots.delete("0190b5c4-0000-7000-8000-000000000000")
    first = runtime.sandboxes.create(idempotency_key="audited-once")
    again = runtime.sandboxes.create(idempotency_key="audited-once")
    assert first.id == again.id
    since = [line for line in runtime.audit.list()["events"] if line["seq"] > before]
    assert [(line["action"], line["target"]["id"]) for line in since] == [("sandbox.created", first.id)]
    first.delete()


def test_pages_go_back_without_a_gap_and_groups_are_searched(runtime, sandbox):
    for number in range(3):
        sandbox.update(labels={"n": str(number)})
    group = runtime.audit.list(action="sandbox.")["events"]
    assert {line["action"].split(".")[0] for line in group} == {"sandbox"} and len(group) >= 4
    paged, before = [], None
    while True:
        page = runtime.audit.list(action="sandbox.updated", limit=2, before=before)
        paged += [line["seq"] for line in page["events"]]
        before = page["next"]
        if before is None:
            break
    assert paged == [line["seq"] for line in runtime.audit.list(action="sandbox.updated", limit=200)["events"]]
    for bad in ({"before": "x"}, {"limit": 201}):
        with pytest.raises(InvalidRequestError):
            runtime.audit.list(**bad)


def test_the_log_outlives_a_killed_node():
    with Node() as node:
        made = node.client.sandboxes.create()
        node.crash()
        node.start()
        assert [line["action"] for line in lines_of(node.client, made.id)] == ["sandbox.created"]
        node.client.sandboxes.get(made.id).delete()
