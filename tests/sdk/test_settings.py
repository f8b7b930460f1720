"""What was set stays set: over pause, wake, stop, restart, fork and going back."""
import threading

import pytest
from withruntime import ConflictError

SET = {"labels": {"team": "blue"}, "env": {"KEPT": "yes", "GONE": None}, "user": "root", "auto_wake": False,
       "idle_pause_seconds": 600, "persistent": True, "timeout_seconds": 3600, "on_timeout": "stop"}
SEEN = {"labels": {"team": "blue"}, "envNames": ["KEPT"], "user": "root", "autoWake": False, "idlePauseSeconds": 600,
        "persistent": True, "timeoutSeconds": 3600, "onTimeout": "stop", "onLeaseEnd": "stop", "vcpu": 1,
        "memoryMiB": 768, "diskMiB": 5120}


def seen(sandbox) -> dict:
    info = sandbox.refresh().info
    return {field: info[field] for field in SEEN}


@pytest.fixture
def set_up(runtime):
    with runtime.sandboxes.create(vcpu=1, memory_mib=768, disk_mib=5120, env={"GONE": "1"}) as sandbox:
        sandbox.update(**SET)
        assert seen(sandbox) == SEEN
        yield sandbox


def test_settings_stay_over_pause_stop_and_fork(set_up):
    set_up.pause()
    assert seen(set_up) == SEEN
    set_up.wake()
    assert seen(set_up) == SEEN and set_up.info["memoryRestored"] is True
    set_up.stop()
    assert seen(set_up) == SEEN
    set_up.restart()
    assert seen(set_up) == SEEN and set_up.info["memoryRestored"] is False
    assert set_up.exec("echo $KEPT.$GONE; id -un").stdout == "yes.\nroot\n"
    with set_up.fork() as copy:
        assert seen(copy) == SEEN and copy.exec("echo $KEPT").stdout == "yes\n"


def test_a_snapshot_gives_size_labels_and_user_and_no_secrets(runtime, set_up):
    snapshot = set_up.snapshot(labels={"of": "snapshot"})
    try:
        with runtime.sandboxes.create(snapshot=snapshot["id"]) as back:
            info = back.refresh().info
            assert (info["labels"], info["user"], info["envNames"]) == ({"of": "snapshot"}, "root", [])
            assert (info["vcpu"], info["memoryMiB"], info["snapshot"]) == (1, 768, snapshot["id"])
    finally:
        runtime.snapshots.delete(snapshot["id"])


def test_a_name_goes_along_and_is_given_back(runtime):
    with runtime.sandboxes.create(name="mine") as sandbox:
        sandbox.pause()
        with pytest.raises(ConflictError) as taken:
            runtime.sandboxes.create(name="mine")
        assert taken.value.code == "name_taken", "a paused one may come back"
        sandbox.update(name="renamed")
        assert runtime.sandboxes.get(sandbox.id).state == "paused", "a change wakes nobody"
        with runtime.sandboxes.create(name="mine"):
            with pytest.raises(ConflictError):
                sandbox.update(name="mine")
        assert sandbox.refresh().info["name"] == "renamed"


@pytest.mark.parametrize(("fields", "named"), [
    ({"timeoutSeconds": 59}, "timeoutSeconds"), ({"timeoutSeconds": 86_401}, "timeoutSeconds"),
    ({"onTimeout": "explode"}, "onTimeout"), ({"idlePauseSeconds": 86_401}, "idlePauseSeconds"),
    ({"autoWake": "yes"}, "autoWake"), ({"env": {"1": "x"}}, "env"), ({"user": "toor"}, "user"), ({"vcpu": 2}, "vcpu"),
])
def test_a_bad_change_is_named_and_changes_nothing(node, sandbox, fields, named):
    before = sandbox.refresh().info
    refused = node.raw("POST", f"/v1/sandboxes/{sandbox.id}:update", {"name": "new", **fields})
    assert (refused.status, refused.error["code"]) == (400, "invalid_request")
    assert named in [issue["path"] for issue in refused.error["details"]["issues"]]
    assert sandbox.refresh().info["name"] == before["name"]


def test_waiting_for_a_state_ends_when_it_is_reached(node, sandbox):
    path = f"/v1/sandboxes/{sandbox.id}"

    def waits_for(state, change):
        seen = []
        waiter = threading.Thread(
            target=lambda: seen.append(node.raw("GET", f"{path}?waitFor={state}&timeoutSeconds=60").json["state"]))
        waiter.start()
        change()
        waiter.join(30)
        return seen
    assert waits_for("paused", sandbox.pause) == ["paused"]
    assert waits_for("running", sandbox.wake) == ["running"]
    assert waits_for("stopped", sandbox.stop) == ["stopped"]
    assert node.raw("GET", f"{path}?waitFor=running&timeoutSeconds=60").json["state"] == "stopped", "it will not run"
    assert node.raw("GET", f"{path}?waitFor=gone").error["code"] == "invalid_request"


def test_prefer_says_how_long_an_answer_may_take(node):
    at_once = node.raw("POST", "/v1/sandboxes", {})
    assert at_once.json["state"] in ("starting", "running")
    path = f"/v1/sandboxes/{at_once.json['id']}"
    assert node.raw("GET", f"{path}?waitFor=running&timeoutSeconds=60").json["state"] == "running"
    for verb, state in (("pause", "paused"), ("wake", "running"), ("stop", "stopped"), ("restart", "running")):
        assert node.raw("POST", f"{path}:{verb}", {}, headers={"Prefer": "wait=60"}).json["state"] == state
    node.raw("DELETE", path)
