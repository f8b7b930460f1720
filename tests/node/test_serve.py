"""Starting a node: where it may listen, who may start it, and what it says when it cannot."""
import os
import shutil
import stat
import subprocess

import pytest
from support.node import BINARY, Node, make_state_dir


def serve(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, "serve", *words], capture_output=True, text=True, timeout=60, check=False,
                          stdin=subprocess.DEVNULL, **options)


def test_a_second_node_names_the_first(node):
    second = serve("--listen", "127.0.0.1:0", "--state-dir", str(node.state_dir))
    assert second.returncode == 3 and str(node.process.pid) in second.stderr and second.stdout == ""


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:80"])
def test_only_loopback(address):
    state_dir = make_state_dir()
    try:
        refused = serve("--listen", address, "--state-dir", str(state_dir))
        assert refused.returncode == 2 and "hint:" in refused.stderr
        assert list(state_dir.iterdir()) == []
    finally:
        shutil.rmtree(state_dir)


def test_the_state_directory_is_private(node):
    for name in ("admin.key", "node.sock"):
        assert stat.S_IMODE((node.state_dir / name).stat().st_mode) == 0o600, name
    assert stat.S_IMODE(node.state_dir.stat().st_mode) & 0o077 == 0
    assert node.key.startswith("bbx_") and len(node.key) == 47
    assert (node.state_dir / "VERSION").read_text().strip()


def test_a_newer_state_directory_is_refused_untouched():
    node = Node().start()
    node.stop()
    (node.state_dir / "VERSION").write_text("999\n")
    before = sorted(path.name for path in node.state_dir.iterdir())
    refused = serve("--listen", "127.0.0.1:0", "--state-dir", str(node.state_dir))
    assert refused.returncode == 3 and "999" in refused.stderr and "hint:" in refused.stderr
    assert sorted(path.name for path in node.state_dir.iterdir()) == before
    (node.state_dir / "VERSION").unlink()
    shutil.rmtree(node.state_dir)
    node.log_path.unlink()


def test_a_state_directory_that_cannot_be_written():
    refused = serve("--listen", "127.0.0.1:0", "--state-dir", "/proc/branchbox")
    assert refused.returncode == 3 and "/proc/branchbox" in refused.stderr and "hint:" in refused.stderr
    shut = make_state_dir()
    file = shut / "file"
    file.write_text("x")
    refused = serve("--listen", "127.0.0.1:0", "--state-dir", str(file))
    assert refused.returncode == 3 and str(file) in refused.stderr
    shutil.rmtree(shut)


@pytest.mark.needs("another user")
def test_not_being_root():
    refused = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", BINARY, "serve", "--listen", "127.0.0.1:0",
                              "--state-dir", "/tmp/branchbox-never"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 3 and "root" in refused.stderr and "hint:" in refused.stderr
    assert not os.path.exists("/tmp/branchbox-never")


def test_a_port_that_is_taken(node):
    other = make_state_dir()
    try:
        refused = serve("--listen", node.url.removeprefix("http://"), "--state-dir", str(other))
        assert refused.returncode == 3 and node.url.removeprefix("http://") in refused.stderr
    finally:
        shutil.rmtree(other)


def test_what_serve_does_not_know():
    for words in (["--listen"], ["--nonsense"], ["--listen", "here"]):
        assert serve(*words).returncode == 2


def test_the_node_log_has_no_key(node):
    node.client.sandboxes.list()
    assert node.key not in node.log()
