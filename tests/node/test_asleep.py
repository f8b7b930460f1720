"""Paused sandboxes outlive the node, its death at any instant, and the machine's reboot."""
import os
import pathlib
import signal
import subprocess
import threading

from support.node import Node, gone
from support.outside import guest_pid, keeper_pid
from support.wait import until
from support.zoo import Zoo

def test_a_paused_sandbox_outlives_the_node(node):
    sandbox = node.client.sandboxes.create(name="sleeper")
    zoo = Zoo.start(sandbox)
    sandbox.pause()
    for end in (node.crash, node.stop):
        end()
        node.start()
        found = node.client.sandboxes.get(sandbox.id)
        assert (found.state, found.info["name"]) == ("paused", "sleeper") and found.info["pausedAt"]
    zoo.verify(found)
    found.pause()
    found.delete()
    assert not list((node.state_dir / "sandboxes").iterdir())


def test_killed_in_the_middle_of_pausing_and_waking_nothing_is_lost(node):
    sandbox = node.client.sandboxes.create()
    zoo = Zoo.start(sandbox)
    for delay in (0.002, 0.02, 0.05, 0.1, 0.2, 0.4):
        for verb in ("pause", "wake"):
            call = threading.Thread(target=quietly, args=(node, f"/v1/sandboxes/{sandbox.id}:{verb}"))
            call.start()
            threading.Event().wait(delay)
            node.crash()
            call.join(60)
            node.start()
            again = node.client.sandboxes.get(sandbox.id)
            until(lambda: again.refresh().state in ("running", "paused"), seconds=30)
            zoo.verify(again)
    node.client.sandboxes.delete(sandbox.id)


CLOCK = "python3 -c 'import time; print(time.monotonic())'"


def quietly(node, path):
    try:
        node.raw("POST", path, {}, headers={"Prefer": "wait=60"})
    except OSError:
        pass


def test_a_killed_keeper_in_the_middle_of_a_pause_loses_nothing(node):
    sandbox = node.client.sandboxes.create()
    zoo = Zoo.start(sandbox)
    for delay in (0.001, 0.01, 0.03, 0.06, 0.1, 0.15):
        call = threading.Thread(target=quietly, args=(node, f"/v1/sandboxes/{sandbox.id}:pause"))
        pid = keeper_pid(node, sandbox.id)
        call.start()
        threading.Event().wait(delay)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        call.join(60)
        again = node.client.sandboxes.get(sandbox.id)
        until(lambda: again.refresh().state in ("running", "paused"), seconds=30)
        zoo.verify(again)
    node.client.sandboxes.delete(sandbox.id)


def test_a_reboot_keeps_the_paused_and_the_snapshots_and_the_disks():
    with Node(end_sandboxes=False) as node:
        sleeper = node.client.sandboxes.create(name="sleeper")
        runner = node.client.sandboxes.create(name="runner")
        zoo = Zoo.start(sleeper)
        runner.exec("echo kept > kept; sync")
        snapshot = sleeper.snapshot(name="before")
        twin = zoo.copy()
        until(lambda: node.client.snapshots.get(snapshot["id"])["state"] == "ready")
        clock = float(sleeper.exec(CLOCK).stdout)
        sleeper.pause()
        pids = [keeper_pid(node, runner.id), guest_pid(node, runner.id)]
        node.crash()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert all(gone(pid) for pid in pids)
        pool = node.state_dir / "pool"
        if pool.is_mount():
            until(lambda: subprocess.run(["umount", pool], check=False, capture_output=True).returncode == 0)
        # What a boot leaves of /run.
        for socket in pathlib.Path("/run/branchbox").glob(f"*/{runner.id}.*"):
            socket.unlink()
        with Node(node.state_dir, words=["--boot-id", "another-boot"]) as after:
            assert after.client.sandboxes.get(sleeper.id).state == "paused"
            stopped = after.client.sandboxes.get(runner.id)
            assert (stopped.state, stopped.info["stopReason"]) == ("stopped", "host_lost")
            woken = after.client.sandboxes.get(sleeper.id)
            zoo.verify(woken)
            assert float(woken.exec(CLOCK).stdout) >= clock, "the clock has not run back"
            with after.client.sandboxes.create(snapshot=snapshot["id"]) as copy:
                twin.verify(copy)
            after.client.snapshots.delete(snapshot["id"])
            stopped.restart()
            assert stopped.exec("cat kept").stdout == "kept\n"
            for box in after.client.sandboxes.list(include_stopped=True).to_list():
                box.delete()
