"""Full disks and the plain driver: clear errors, nothing lost, nothing left behind."""
import shutil
import subprocess

import pytest
from support.node import Node, make_state_dir
from withruntime import RuntimeAPIError


def without_btrfs() -> dict:
    """An environment in which ``mkfs.btrfs`` cannot be found, as on a machine without it."""
    return {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def small():
    """A node whose state directory is a small file system of its own."""
    state_dir = make_state_dir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600m,mode=700", "branchbox-small", str(state_dir)], check=True)
    node = Node(state_dir, env=without_btrfs()).start()
    try:
        yield node
    finally:
        node.close()
        subprocess.run(["umount", str(state_dir)], check=True)
        shutil.rmtree(state_dir)
        node.log_path.unlink()


@pytest.mark.needs("mounts")
def test_a_full_disk_is_said_and_loses_nothing(small):
    with small.client.sandboxes.create() as sandbox:
        adding = sandbox.spawn("exec python3 -uc 'import sys\nn=0\nfor l in sys.stdin: n+=int(l); print(n)'", stdin="pipe")
        adding.write("2\n")
        sandbox.exec("head -c 900000000 /dev/zero > /workspace/fill", timeout_ms=120_000)
        with pytest.raises(RuntimeAPIError) as refused:
            sandbox.snapshot()
        assert refused.value.code == "disk_full" and refused.value.hint
        sandbox.exec("rm /workspace/fill")
        adding.write("40\n", eof=True)
        assert adding.wait().stdout == "2\n42\n"
        assert [s["id"] for s in small.client.snapshots.list() if s["state"] == "ready"] == []


@pytest.mark.needs("a tmpfs")
def test_the_plain_driver_forks_what_it_can_and_names_the_rest():
    with Node(env=without_btrfs()) as node, node.client.sandboxes.create() as sandbox:
        sandbox.exec("echo kept > /workspace/kept")
        sandbox.spawn("exec python3 -c 'import time\nwhile True: time.sleep(0.1)'")
        with sandbox.fork() as copy:
            assert copy.exec("cat /workspace/kept; pgrep -c python3").stdout == "kept\n1\n"
            copy.exec("echo mine > /workspace/kept")
            assert sandbox.exec("cat /workspace/kept").stdout == "kept\n"
