"""Snapshots as things that are kept: what they hold, count, are called, and how long they stay."""
import pytest
from support.node import Node
from support.wait import until
from withruntime import ConflictError, InvalidRequestError, NotFoundError

MIB = 1 << 20


def stored(runtime, snapshot) -> int:
    return until(lambda: runtime.snapshots.get(snapshot["id"])["storedBytes"], what="its bytes are counted")


def test_a_snapshot_counts_what_it_alone_keeps(runtime, sandbox):
    sandbox.exec("head -c 20M /dev/urandom > first; sync")
    first = sandbox.snapshot(mode="disk")
    assert 20 * MIB <= stored(runtime, first) < 21 * MIB
    sandbox.exec("head -c 5M /dev/urandom > second; sync")
    second = sandbox.snapshot(mode="disk")
    assert 5 * MIB <= stored(runtime, second) < 6 * MIB, "the first snapshot keeps the first file"
    with runtime.sandboxes.create(snapshot=second["id"]) as copy:
        third = copy.snapshot(mode="disk")
        assert stored(runtime, third) < MIB, "a copy that wrote nothing keeps nothing of its own"
    memory = sandbox.snapshot()
    assert stored(runtime, memory) > 0
    for made in (first, second, third, memory):
        runtime.snapshots.delete(made["id"])


def test_labels_are_changed_only_as_they_were_expected(runtime, sandbox):
    snapshot = sandbox.snapshot(mode="disk", name="kept", labels={"stage": "one"})
    try:
        with pytest.raises(ConflictError) as lost:
            runtime.snapshots.update(snapshot["id"], labels={"stage": "three"}, if_labels={"stage": "two"})
        assert lost.value.code == "snapshot_metadata_changed"
        changed = runtime.snapshots.update(snapshot["id"], labels={"stage": "two"}, if_labels={"stage": "one"})
        assert (changed["name"], changed["labels"]) == ("kept", {"stage": "two"})
        stored(runtime, snapshot)
        assert runtime.snapshots.get(snapshot["id"])["labels"] == {"stage": "two"}, "counting has undone nothing"
        assert [found["id"] for found in runtime.snapshots.list(name="kept")] == [snapshot["id"]]
    finally:
        runtime.snapshots.delete(snapshot["id"])


def test_lists_are_newest_first_and_come_in_pages(runtime, sandbox):
    made = [sandbox.snapshot(mode="disk", name=f"page-{number}")["id"] for number in range(3)]
    page = runtime.snapshots.list(sandbox_id=sandbox.id, limit=2)
    assert len(page.data) == 2 and page.has_more
    assert [found["id"] for found in page] == made[::-1]
    for snapshot in made:
        runtime.snapshots.delete(snapshot)
    assert runtime.snapshots.list(sandbox_id=sandbox.id).to_list() == []


def test_sizes_and_a_disk_snapshot(runtime, sandbox):
    snapshot = sandbox.snapshot(mode="disk")
    try:
        with pytest.raises(InvalidRequestError) as small:
            runtime.sandboxes.create(snapshot=snapshot["id"], disk_mib=3072)
        assert (small.value.status, small.value.code) == (400, "disk_too_small")
        with runtime.sandboxes.create(snapshot=snapshot["id"], disk_mib=8192, memory_mib=1024, vcpu=1) as other:
            assert (other.info["diskMiB"], other.info["memoryMiB"], other.info["vcpu"]) == (8192, 1024, 1)
    finally:
        runtime.snapshots.delete(snapshot["id"])


def test_volumes_are_refused_and_never_ignored(node):
    refused = node.raw("POST", "/v1/sandboxes", {"volumes": [{"volumeId": "v", "path": "/data"}]})
    assert (refused.status, refused.error["code"]) == (501, "unavailable") and "volumes" in refused.error["message"]
    assert node.client.sandboxes.list().to_list() == []


def test_a_snapshot_goes_when_its_retention_is_over_and_not_before():
    # A day lasts 4.3 s.
    with Node(words=["--second-us", "50"]) as node, \
            node.client.sandboxes.create(idle_pause_seconds=0) as sandbox:
        short = sandbox.snapshot(mode="disk", retention_days=1)
        longer = sandbox.snapshot(mode="disk", retention_days=1)
        kept = sandbox.snapshot(mode="disk")
        assert kept["expiresAt"] is None and short["expiresAt"] > short["createdAt"]
        assert node.client.snapshots.extend(longer["id"], 365)["retentionDays"] == 365

        def there():
            return {found["id"] for found in node.client.snapshots.list()}
        until(lambda: short["id"] not in there(), seconds=30)
        assert there() == {longer["id"], kept["id"]}
        with pytest.raises(NotFoundError) as gone:
            node.client.snapshots.get(short["id"])
        assert gone.value.code == "snapshot_not_found"


def test_a_copy_has_a_time_limit_of_its_own(runtime):
    with runtime.sandboxes.create(timeout_seconds=600) as source:
        with source.fork() as copy:
            assert copy.info["timeoutSeconds"] == 600 and copy.info["endsAt"] > source.info["endsAt"]
