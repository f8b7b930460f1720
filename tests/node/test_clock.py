"""What time does to sandboxes, on a node whose seconds are short."""
import pytest
from support.node import Node
from support.wait import until

# One second of a limit lasts this long, so that the shortest limit of 60 lasts 1.2 s.
SECOND_US = 20_000


@pytest.fixture(scope="module")
def quick():
    with Node(words=["--second-us", str(SECOND_US)]) as node:
        yield node


def state_of(node, sandbox):
    return node.client.sandboxes.get(sandbox.id).info


@pytest.mark.parametrize(("end", "state"), [("pause", "paused"), ("stop", "stopped")])
def test_a_time_limit_ends_as_asked(quick, end, state):
    with quick.client.sandboxes.create(timeout_seconds=60, on_lease_end=end, idle_pause_seconds=0) as sandbox:
        assert sandbox.info["endsAt"] and sandbox.info["timeoutSeconds"] == 60 and sandbox.info["onTimeout"] == end
        sandbox.exec("echo kept > kept")
        until(lambda: state_of(quick, sandbox)["state"] == state, seconds=20)
        assert state_of(quick, sandbox)["stopReason"] == "lease_expired"
        sandbox.wake(timeout_seconds=86_400) if state == "paused" else sandbox.restart()
        assert sandbox.exec("cat kept").stdout == "kept\n"


def test_a_time_limit_pauses_unless_told_otherwise_and_deletes_if_told(quick):
    with quick.client.sandboxes.create(timeout_seconds=3600) as sandbox:
        assert sandbox.info["onTimeout"] == "pause"
    doomed = quick.client.sandboxes.create(timeout_seconds=60, on_lease_end="delete", idle_pause_seconds=0)
    until(lambda: doomed.id not in [found.id for found in quick.client.sandboxes.list(include_stopped=True)], seconds=20)


def test_a_limit_is_extended_changed_and_taken_away(quick):
    with quick.client.sandboxes.create(timeout_seconds=600, idle_pause_seconds=0) as sandbox:
        before = sandbox.info["endsAt"]
        sandbox.extend(600)
        assert sandbox.info["endsAt"] > before
        sandbox.update(timeout_seconds=0)
        assert sandbox.info["endsAt"] is None and sandbox.info["timeoutSeconds"] is None
        assert sandbox.extend(600).info["endsAt"] is None, "without a limit nothing changes"
        sandbox.update(timeout_seconds=60, on_timeout="stop")
        until(lambda: state_of(quick, sandbox)["state"] == "stopped", seconds=20)


def test_an_idle_sandbox_is_paused_and_a_request_wakes_it(quick):
    with quick.client.sandboxes.create(idle_pause_seconds=5) as sandbox:
        assert sandbox.info["idlePauseSeconds"] == 60, "shorter is raised to the shortest"
        for _ in range(2):
            sandbox.exec("echo more >> kept")
            until(lambda: state_of(quick, sandbox)["state"] == "paused", seconds=20)
            assert state_of(quick, sandbox)["stopReason"] == "idle"
        assert sandbox.exec("cat kept").stdout == "more\nmore\n"


def test_a_sandbox_that_runs_something_is_not_idle(quick):
    with quick.client.sandboxes.create(idle_pause_seconds=60) as busy, \
            quick.client.sandboxes.create(idle_pause_seconds=60, persistent=True) as kept, \
            quick.client.sandboxes.create(idle_pause_seconds=60) as idle:
        process = busy.spawn("sleep 1000")
        until(lambda: state_of(quick, idle)["state"] == "paused", seconds=20)
        idle.wake()
        until(lambda: state_of(quick, idle)["state"] == "paused", seconds=20)
        assert (state_of(quick, busy)["state"], state_of(quick, kept)["state"]) == ("running", "running")
        process.kill("SIGKILL")
        until(lambda: state_of(quick, busy)["state"] == "paused", seconds=20)


def test_a_paused_sandbox_is_kept_as_long_as_asked(quick):
    with quick.client.sandboxes.create() as sandbox:
        sandbox.set_retention(365)
        assert sandbox.info["pausedExpiresAt"] is None
        sandbox.pause()
        assert state_of(quick, sandbox)["pausedExpiresAt"] > state_of(quick, sandbox)["pausedAt"]


def test_a_retention_that_is_over_stops_it():
    # A day lasts 4.3 s.
    with Node(words=["--second-us", "50"]) as node:
        sandbox = node.client.sandboxes.create(idle_pause_seconds=0)
        sandbox.exec("echo kept > kept")
        sandbox.set_retention(1)
        sandbox.pause()
        until(lambda: state_of(node, sandbox)["state"] == "stopped", seconds=30)
        assert state_of(node, sandbox)["stopReason"] == "paused_expired"
        sandbox.restart()
        assert sandbox.exec("cat kept").stdout == "kept\n"
