"""Create, read, list, names, labels, network, stop, delete."""
import pytest
from withruntime import ConflictError, InvalidRequestError, NotFoundError, ServiceUnavailableError


def test_a_new_sandbox_is_what_it_says(runtime, sandbox):
    info = runtime.sandboxes.get(sandbox.id).info
    assert (info["kind"], info["state"], info["status"]) == ("sandbox", "running", "active")
    assert (info["vcpu"], info["memoryMiB"], info["labels"], info["name"]) == (2, 4096, {}, None)
    assert info["endsAt"] is None and info["createdAt"].endswith("Z") and info["readyAt"].endswith("Z")
    assert info["chargedMicros"] == 0


def test_size_asked_for_is_the_size_inside(runtime):
    with runtime.sandboxes.create(vcpu=1, memory_mib=512) as sandbox:
        assert (sandbox.info["vcpu"], sandbox.info["memoryMiB"]) == (1, 512)
        ran = sandbox.exec(["python3", "-c", "b = bytearray(900 << 20); print(len(b))"])
        assert ran.exit_code == -9 and "900" not in ran.stdout
        assert sandbox.exec("echo fine").stdout == "fine\n", "the sandbox outlives its memory hog"


def test_names_belong_to_one(runtime):
    with runtime.sandboxes.create(name="only-one") as sandbox:
        with pytest.raises(ConflictError) as taken:
            runtime.sandboxes.create(name="only-one")
        assert (taken.value.code, taken.value.details["sandboxId"]) == ("name_taken", sandbox.id)
        assert runtime.sandboxes.get_or_create("only-one").id == sandbox.id
        assert [found.id for found in runtime.sandboxes.list(name="only-one")] == [sandbox.id]
    with runtime.sandboxes.create(name="only-one") as again:
        assert again.id != sandbox.id


def test_labels_are_kept_replaced_and_searched(runtime):
    with runtime.sandboxes.create(labels={"team": "a", "n": "1"}) as first, runtime.sandboxes.create(labels={"team": "a"}) as second:
        found = runtime.sandboxes.list(labels={"team": "a"}).to_list()
        assert [sandbox.id for sandbox in found] == [first.id, second.id], "oldest first"
        assert [sandbox.id for sandbox in runtime.sandboxes.list(labels={"team": "a", "n": "1"})] == [first.id]
        first.update(labels={"team": "b"}, name="renamed")
        fresh = runtime.sandboxes.get(first.id).info
        assert (fresh["labels"], fresh["name"]) == ({"team": "b"}, "renamed")
        with first.fork() as copy:
            assert copy.info["labels"] == {"team": "b"} and copy.info["name"] is None


def test_lists_come_in_pages(runtime):
    made = [runtime.sandboxes.create(labels={"paged": "yes"}) for _ in range(3)]
    try:
        page = runtime.sandboxes.list(labels={"paged": "yes"}, limit=2)
        assert len(page.data) == 2 and page.has_more
        assert [sandbox.id for sandbox in page] == [sandbox.id for sandbox in made]
    finally:
        for sandbox in made:
            sandbox.delete()


def test_stop_keeps_the_record_and_delete_ends_it(runtime):
    sandbox = runtime.sandboxes.create()
    sandbox.stop()
    assert (sandbox.state, sandbox.info["stopReason"]) == ("stopped", "requested")
    with pytest.raises(ConflictError) as refused:
        sandbox.exec("true")
    assert refused.value.code == "sandbox_stopped"
    first = sandbox.delete()
    assert (first["status"], first["id"]) == ("deleted", sandbox.id) and first["deletedAt"]
    again = runtime.sandboxes.delete(sandbox.id)
    assert (again["id"], again["deletedAt"]) == (first["id"], first["deletedAt"])
    with pytest.raises(NotFoundError):
        runtime.sandboxes.get(sandbox.id)
    assert sandbox.id not in [found.id for found in runtime.sandboxes.list(include_stopped=True)]


def test_network_is_closed_and_says_so(sandbox):
    rules = sandbox.network.get()
    assert (rules["internet"], rules["allow"], rules["deny"], rules["connect"]) == (False, [], [], [])
    assert rules["enforced"] is True
    assert sandbox.network.off()["internet"] is False
    with pytest.raises(ServiceUnavailableError) as refused:
        sandbox.network.on()
    assert (refused.value.code, refused.value.status) == ("network_rules_unavailable", 501)
    reach = ("import socket\nfor family, address in ((2, '1.1.1.1'), (2, '169.254.169.254'), (2, '10.0.0.1'), (10, '2606:4700::1111')):\n"
             "    s = socket.socket(family)\n    s.settimeout(2)\n    print(s.connect_ex((address, 80)) == 0)\n")
    assert sandbox.exec(["python3", "-c", reach]).stdout == "False\n" * 4
    assert sandbox.exec("ls /sys/class/net").stdout.split() == ["lo"]


def test_asking_for_a_way_out_is_refused(runtime):
    with pytest.raises(ServiceUnavailableError) as refused:
        runtime.sandboxes.create(network={"internet": True})
    assert (refused.value.code, refused.value.status) == ("network_rules_unavailable", 501)
    assert runtime.sandboxes.list(state="running").to_list() == []


@pytest.mark.parametrize(("fields", "named"), [
    ({"vcpu": 0}, "vcpu"), ({"vcpu": 17}, "vcpu"), ({"memory_mib": 1}, "memoryMiB"), ({"memory_mib": 10**9}, "memoryMiB"),
    ({"name": "a\nb"}, "name"), ({"name": "../up"}, "name"), ({"name": "x" * 101}, "name"),
    ({"labels": {str(number): "x" for number in range(33)}}, "labels"), ({"env": {"1BAD": "x"}}, "env"),
    ({"snapshot": "01900000-0000-7000-8000-000000000000", "image": "host"}, "snapshot"),
])
def test_bad_fields_are_named(runtime, fields, named):
    with pytest.raises(InvalidRequestError) as refused:
        runtime.sandboxes.create(**fields)
    error = refused.value
    assert (error.status, error.code) == (400, "invalid_request") and error.hint
    assert any(named in json_path(issue) for issue in error.details["issues"]), error.details


def json_path(issue: dict) -> str:
    path = issue["path"]
    return path if isinstance(path, str) else ".".join(map(str, path))


def test_every_bad_field_is_named_at_once(node):
    answer = node.raw("POST", "/v1/sandboxes", {"vcpu": "two", "memoryMiB": -5, "nonsense": 1, "labels": []})
    assert answer.status == 400
    named = {json_path(issue).split(".")[0] for issue in answer.error["details"]["issues"]}
    assert {"vcpu", "memoryMiB", "nonsense", "labels"} <= named
    assert node.client.sandboxes.list(state="running").to_list() == []


def test_a_snapshot_that_is_not_there(runtime):
    with pytest.raises(NotFoundError) as missing:
        runtime.sandboxes.create(snapshot="01900000-0000-7000-8000-000000000000")
    assert missing.value.code == "snapshot_not_found"
