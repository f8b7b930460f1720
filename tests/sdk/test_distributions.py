"""The smoke part of the suite on other roots than this machine's: Alpine (musl, busybox, no bash) and Debian."""
import base64

import pytest
from support import roots
from support.images import made, send
from support.wait import said, until

DISTRIBUTIONS = ["alpine", "debian"]


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def image(node, request):
    tarball = getattr(roots, request.param)()
    made(node, send(node, tarball.read_bytes(), name=request.param, tags=["test"]))
    return f"{request.param}:test"


@pytest.fixture
def sandbox(runtime, image):
    with runtime.sandboxes.create(image=image) as sandbox:
        yield sandbox


def test_it_is_what_it_says(sandbox, image):
    name = image.split(":")[0]
    assert f"\nID={name}\n" in "\n" + sandbox.exec("cat /etc/os-release").stdout
    said_of_user = sandbox.exec("id -un; pwd; echo $HOME; sudo -n id -un; touch /etc/x || echo refused").stdout
    assert said_of_user == "runtime\n/workspace\n/workspace\nroot\nrefused\n"
    manager = {"alpine": "apk info -q 2>/dev/null | grep -x busybox", "debian": "dpkg -s dash | grep -c 'install ok installed'"}[name]
    assert sandbox.exec(manager).stdout.strip() in ("busybox", "1")


def test_commands_end_as_they_do(sandbox):
    assert sandbox.exec("echo out; echo err >&2; exit 7", check=False).exit_code == 7
    assert sandbox.exec("printf '\\000\\377' | od -An -tx1").stdout.split() == ["00", "ff"]
    assert sandbox.exec("wc -c", stdin="12345").stdout.strip() == "5"
    slow = sandbox.exec("sleep 100 & sleep 100", timeout_ms=300, check=False)
    assert slow.timed_out
    until(lambda: sandbox.exec("ps | grep -c '[s]leep 100'", check=False).stdout == "0\n")
    assert sandbox.exec("cat", stdin=base64.b64encode(bytes(range(256)) * 400).decode()).stdout[:8] == "AAECAwQF"


def test_files_go_in_and_out(sandbox):
    sandbox.files.write("/workspace/a/b.txt", b"\x00\xff\n")
    assert sandbox.files.read("/workspace/a/b.txt") == b"\x00\xff\n"
    assert [entry["name"] for entry in sandbox.files.list("/workspace/a")] == ["b.txt"]
    assert sandbox.exec("stat -c '%U %s' a/b.txt").stdout == "runtime 3\n"
    sandbox.files.remove("/workspace/a", recursive=True)
    assert sandbox.exec("ls -A").stdout == ""


def test_forks_go_on_where_the_source_was(sandbox, runtime):
    counter = sandbox.spawn("n=0; while read -r line; do n=$((n + line)); echo $n; done", stdin="pipe")
    counter.write("40\n")
    until(lambda: "40\n" in said(counter))
    copies = [sandbox.fork(), sandbox.fork()]
    snapshot = sandbox.snapshot()
    copies.append(runtime.sandboxes.create(snapshot=snapshot["id"]))
    try:
        for number, machine in enumerate([*copies, sandbox]):
            there = machine.process(counter.id)
            there.write(f"{number}\n")
            until(lambda: f"{40 + number}\n" in said(there))
            machine.exec(f"echo {number} > mine")
        assert [machine.exec("cat mine").stdout for machine in [*copies, sandbox]] == ["0\n", "1\n", "2\n", "3\n"]
    finally:
        for machine in copies:
            machine.delete()
        runtime.snapshots.delete(snapshot["id"])


def test_it_is_paused_and_restarted(sandbox):
    counter = sandbox.spawn("read -r a; read -r b; echo $((a + b))", stdin="pipe")
    counter.write("40\n")
    sandbox.pause()
    counter.write("2\n")
    until(lambda: said(counter) == "42\n")
    sandbox.exec("echo kept > kept")
    sandbox.stop()
    sandbox.restart()
    assert sandbox.exec("cat kept").stdout == "kept\n"


def test_packages_are_the_images_own(sandbox, image):
    """The image's package database is written by the image's own tools, in the sandbox alone."""
    if image.startswith("alpine"):
        assert sandbox.exec("sudo -n apk del --no-network nano busybox-extras 2>&1; sudo -n apk audit --system | wc -l").exit_code == 0
    else:
        assert sandbox.exec("python3 -c 'import sys; print(sys.version_info[:2])'").stdout == "(3, 11)\n"
        assert sandbox.exec("sudo -n dpkg --purge --force-all mawk && dpkg -s mawk", check=False).exit_code == 1
        with sandbox.fork() as copy:
            assert copy.exec("dpkg -s mawk", check=False).exit_code == 1
