"""Files through the API: content, modes, lists, and the errors that a path can cause."""
import hashlib

import pytest
from withruntime import ConflictError, InvalidRequestError, NotFoundError, PermissionDeniedError


def test_content_goes_in_and_out_unchanged(sandbox):
    data = bytes(range(256)) * 4000
    sandbox.files.write("/workspace/deep/er/data.bin", data)
    assert sandbox.files.read("/workspace/deep/er/data.bin") == data
    seen = sandbox.exec("sha256sum < /workspace/deep/er/data.bin; stat -c '%U %a' /workspace/deep/er/data.bin").stdout
    assert seen.split()[0] == hashlib.sha256(data).hexdigest() and seen.splitlines()[1] == "runtime 644"
    sandbox.files.write("/workspace/tool", "#!/bin/sh\necho ran\n", mode=0o755)
    assert sandbox.exec("/workspace/tool").stdout == "ran\n"
    sandbox.files.write("/workspace/empty", b"")
    assert sandbox.files.read("/workspace/empty") == b""


def test_replacing_is_atomic_for_a_reader_inside(sandbox):
    sandbox.files.write("/workspace/whole", b"a" * 100_000)
    reading = sandbox.spawn("for i in $(seq 300); do tr -d '\\n' < /workspace/whole | fold -w1 | sort -u | tr -d '\\n'; "
                            "stat -c ' %s' /workspace/whole; done | sort -u")
    for round_number in range(20):
        sandbox.files.write("/workspace/whole", (b"a", b"b")[round_number % 2] * 100_000)
    seen = {line.split()[0] for line in reading.wait().stdout.splitlines()}
    assert seen <= {"a", "b"}, f"a reader saw a mixture: {seen}"


def test_stat_and_list(sandbox):
    sandbox.exec("mkdir -p d/sub && echo hi > d/file && chmod 640 d/file && ln -s file d/link && mkfifo d/pipe && touch d/.hidden d/sub/x.txt")
    entry = sandbox.files.stat("/workspace/d/file")
    assert (entry["exists"], entry["type"], entry["size"], entry["mode"]) == (True, "file", 3, "640")
    assert entry["modifiedAt"].endswith("Z")
    assert sandbox.files.stat("/workspace/d/link")["type"] == "symlink"
    assert sandbox.files.stat("/workspace/none") == {"exists": False}
    named = {entry["name"]: entry["type"] for entry in sandbox.files.list("/workspace/d")}
    assert {"sub": "directory", "file": "file", "link": "symlink", "pipe": "other"}.items() <= named.items()
    deep = [entry["path"] for entry in sandbox.files.list("/workspace/d", depth=3, glob="*.txt")]
    assert deep == ["/workspace/d/sub/x.txt"]
    assert [entry["path"] for entry in sandbox.files.glob("**/*.txt")] == ["/workspace/d/sub/x.txt"]
    assert [entry["path"] for entry in sandbox.files.glob("d/*/x.*")] == ["/workspace/d/sub/x.txt"]
    assert sandbox.files.glob("*.txt") == []


def test_make_rename_remove(sandbox):
    files = sandbox.files
    files.mkdir("/workspace/m/n")
    files.write("/workspace/m/n/a", b"1")
    files.rename("/workspace/m/n/a", "/workspace/m/n/b")
    assert files.read("/workspace/m/n/b") == b"1" and not files.exists("/workspace/m/n/a")
    assert files.remove("/workspace/m/n/b") is True and files.remove("/workspace/m/n/b") is False
    assert files.remove("/workspace/m", recursive=True) is True and not files.exists("/workspace/m")


@pytest.mark.parametrize(("path", "kind", "code"), [
    ("/workspace/none", NotFoundError, "file_not_found"),
    ("/workspace", ConflictError, "is_a_directory"),
    ("/etc/hostname/x", ConflictError, "not_a_directory"),
    ("/root/secret", PermissionDeniedError, "permission_denied"),
])
def test_reading_what_cannot_be_read(sandbox, path, kind, code):
    with pytest.raises(kind) as refused:
        sandbox.files.read(path)
    assert refused.value.code == code


@pytest.mark.parametrize("path", ["relative", "", "/workspace/../etc/passwd", "/workspace/a\x00b", "/" + "x" * 5000])
def test_paths_that_no_request_may_hold(sandbox, path):
    for act in (sandbox.files.read, lambda bad: sandbox.files.write(bad, b"x"), sandbox.files.stat):
        with pytest.raises((InvalidRequestError, NotFoundError)):
            act(path)


def test_links_lead_nowhere_outside(node, sandbox):
    (node.state_dir / "outside-secret").write_text("never")
    sandbox.exec(f"ln -s {node.state_dir}/outside-secret /workspace/out; ln -s /etc/shadow /workspace/shadow; ln -s /proc/1/root/etc/shadow /workspace/p")
    for path in ("/workspace/out", "/workspace/shadow", "/workspace/p"):
        with pytest.raises((NotFoundError, PermissionDeniedError, ConflictError)):
            sandbox.files.read(path)
    with pytest.raises((PermissionDeniedError, ConflictError, NotFoundError)):
        sandbox.files.write("/etc/owned-by-root", b"x")


def test_names_with_newlines_and_bytes(sandbox):
    sandbox.exec("printf x > $'/workspace/a\\nb'; printf y > $'/workspace/\\xff'")
    assert sandbox.files.read("/workspace/a\nb") == b"x"
    names = [entry["name"] for entry in sandbox.files.list("/workspace")]
    assert "a\nb" in names


def test_too_much_for_one_call(node, sandbox):
    answer = node.raw("PUT", f"/v1/sandboxes/{sandbox.id}/files/content?path=/workspace/big", data=b"x" * (1024 * 1024 + 1),
                      headers={"Content-Type": "application/octet-stream"})
    assert answer.status == 413 and answer.error["code"] == "too_large"
    assert not sandbox.files.exists("/workspace/big")


def test_what_was_just_written_is_in_the_fork(sandbox):
    sandbox.files.write("/workspace/now", b"just now")
    with sandbox.fork() as copy:
        assert copy.files.read("/workspace/now") == b"just now"
        copy.files.write("/workspace/now", b"copy")
        assert sandbox.files.read("/workspace/now") == b"just now"


def test_an_image_file_changed_in_a_copy_stays_the_source_s(sandbox):
    with sandbox.fork() as copy:
        copy.exec("echo changed > /etc/motd; rm -rf /usr/share/doc", user="root", timeout_ms=120_000)
        assert copy.exec("cat /etc/motd; ls -d /usr/share/doc").stdout == "changed\n"
        assert "changed" not in sandbox.exec("cat /etc/motd").stdout
