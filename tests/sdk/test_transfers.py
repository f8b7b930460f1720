"""Large files in pieces, and folders as archives, in both directions."""
import hashlib
import io
import os
import random
import tarfile
import urllib.request

import pytest
from withruntime import ConflictError, InvalidRequestError, NotFoundError, RuntimeAPIError

MIB = 1 << 20


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_a_large_file_goes_in_and_out(sandbox):
    data = noise(9 * MIB + 12_345)
    sandbox.files.write("/workspace/deep/large", data, mode=0o750)
    assert sandbox.exec("sha256sum < deep/large; stat -c '%U %a %s' deep/large; ls -A deep").stdout.split() == [
        hashlib.sha256(data).hexdigest(), "-", "runtime", "750", str(len(data)), "large"]
    assert sandbox.files.read("/workspace/deep/large") == data


def begin(node, sandbox, data, path="/workspace/file", **more):
    body = {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **more}
    return node.raw("POST", f"/v1/sandboxes/{sandbox.id}/uploads", body)


def piece(node, sandbox, upload, offset, data):
    return node.raw("PUT", f"/v1/sandboxes/{sandbox.id}/uploads/{upload}?offset={offset}", data=data,
                    headers={"Content-Type": "application/octet-stream"})


def end(node, sandbox, upload, verb="commit"):
    return node.raw("POST", f"/v1/sandboxes/{sandbox.id}/uploads/{upload}:{verb}", {})


def test_pieces_come_in_any_order_and_twice(node, sandbox):
    data = noise(300_000)
    begun = begin(node, sandbox, data, mode="755").json
    assert begun["chunkBytes"] == MIB and begun["mode"] == "755"
    for offset in (200_000, 0, 200_000):
        assert piece(node, sandbox, begun["uploadId"], offset, data[offset:offset + 100_000]).status == 200
    early = end(node, sandbox, begun["uploadId"])
    assert (early.status, early.error["code"]) == (409, "upload_incomplete") and "100000" in early.error["message"]
    assert sandbox.exec("test -e file").exit_code == 1, "nobody sees a part"
    piece(node, sandbox, begun["uploadId"], 100_000, data[100_000:200_000])
    assert end(node, sandbox, begun["uploadId"]).status == 200
    assert sandbox.files.read("/workspace/file") == data
    assert sandbox.exec("stat -c %a file; ls -A").stdout.split() == ["755", "file"]
    assert end(node, sandbox, begun["uploadId"]).error["code"] == "not_found"


def test_a_wrong_digest_is_told_and_nothing_is_replaced(node, sandbox):
    sandbox.files.write("/workspace/file", "old")
    begun = begin(node, sandbox, b"right").json
    piece(node, sandbox, begun["uploadId"], 0, b"wrong")
    refused = end(node, sandbox, begun["uploadId"])
    assert (refused.status, refused.error["code"]) == (409, "upload_incomplete") and "SHA-256" in refused.error["message"]
    assert sandbox.files.read("/workspace/file") == b"old"
    assert end(node, sandbox, begun["uploadId"], "abort").status == 200
    assert sandbox.exec("ls -A").stdout.split() == ["file"]


def test_what_cannot_be_uploaded_is_named(node, sandbox):
    path = f"/v1/sandboxes/{sandbox.id}/uploads"
    bad = node.raw("POST", path, {"path": "x", "sha256": "short", "size": -1, "more": 1})
    assert {issue["path"] for issue in bad.error["details"]["issues"]} == {"path", "sha256", "size", "more"}
    huge = node.raw("POST", path, {"path": "/workspace/x", "size": 1 << 40, "sha256": "0" * 64})
    assert huge.error["details"]["issues"][0]["path"] == "size"
    begun = begin(node, sandbox, b"abc").json["uploadId"]
    assert piece(node, sandbox, begun, 1, b"abc").error["details"]["issues"][0]["path"] == "offset"
    assert piece(node, sandbox, "up_none", 0, b"abc").status == 404
    assert node.raw("PUT", f"{path}/{begun}?offset=0", data=b"x" * (MIB + 1)).status == 413
    sandbox.exec("mkdir folder")
    folder = begin(node, sandbox, b"", path="/workspace/folder")
    assert (folder.status, folder.error["code"]) == (409, "is_a_directory")
    denied = begin(node, sandbox, b"", path="/etc/x")
    assert (denied.status, denied.error["code"]) == (403, "permission_denied")


def test_an_upload_goes_on_after_a_pause(node, sandbox):
    data = noise(200_000)
    upload = begin(node, sandbox, data).json["uploadId"]
    piece(node, sandbox, upload, 0, data[:100_000])
    sandbox.pause()
    piece(node, sandbox, upload, 100_000, data[100_000:])
    assert end(node, sandbox, upload).status == 200 and sandbox.files.read("/workspace/file") == data


@pytest.fixture
def folder(tmp_path):
    """Everything that a folder can hold and an archive can say."""
    root = tmp_path / "folder"
    (root / "deep" / ("n" * 200) / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("run.sh")
    (root / "broken").symlink_to("nowhere")
    (root / "a name\nwith 'quotes' ü").write_text("odd")
    (root / "deep" / ("n" * 200) / "er" / "x").write_bytes(noise(3 * MIB))
    os.link(root / "run.sh", root / "hard")
    return root


def listing(root):
    found = {}
    for directory, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(directory, name)
            facts = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else (open(path, "rb").read() if os.path.isfile(path) else None)
            found[os.path.relpath(path, root)] = (oct(facts.st_mode), content)
    return found


def test_a_folder_goes_in_and_out(sandbox, folder, tmp_path):
    sandbox.files.upload(str(folder), "/workspace/copy")
    assert sandbox.exec("copy/run.sh; readlink copy/broken; stat -c '%U %a' copy/run.sh; ls copy/empty | wc -l").stdout == \
        "ran\nnowhere\nruntime 755\n0\n"
    sandbox.files.download("/workspace/copy", str(tmp_path / "back"))
    assert listing(tmp_path / "back") == listing(folder)


def test_an_archive_leaves_out_what_it_is_told(sandbox):
    sandbox.exec("mkdir -p p/node_modules p/src/node_modules; touch p/a p/src/b p/node_modules/c p/src/node_modules/d 'p/x*y'")
    packed = sandbox.files.archive("/workspace/p", gzip=False, exclude=["node_modules", "x*y"])
    names = {name.removeprefix("./") for name in tarfile.open(fileobj=io.BytesIO(packed)).getnames()}
    assert names == {".", "a", "src", "src/b", "src/node_modules", "src/node_modules/d"}


def test_roots_files_need_root(sandbox):
    sandbox.exec("sudo sh -c 'mkdir -m 700 /root/private; echo secret > /root/private/x'")
    with pytest.raises(RuntimeAPIError):
        sandbox.files.archive("/root/private")
    packed = sandbox.files.archive("/root/private", user="root")
    assert tarfile.open(fileobj=io.BytesIO(packed)).extractfile("./x").read() == b"secret\n"
    sandbox.files.unarchive("/root/other", packed, user="root")
    assert sandbox.exec("sudo cat /root/other/x").stdout == "secret\n"


def test_an_archive_that_fails_is_never_taken_for_whole(node, sandbox):
    sandbox.exec("mkdir p; head -c 3000000 /dev/urandom > p/a; touch p/secret; sudo chown root p/secret; sudo chmod 600 p/secret")
    with pytest.raises(Exception) as failed:
        node.raw("GET", f"/v1/sandboxes/{sandbox.id}/files/archive?path=/workspace/p")
    assert "Incomplete" in type(failed.value).__name__, failed.value
    sandbox.exec("ln -s p/a to-a-file; ln -s nowhere broken; ln -s p to-a-folder; sudo rm p/secret")
    for path, code in (("/workspace/none", "file_not_found"), ("/workspace/p/a", "not_a_directory"),
                       ("/workspace/to-a-file", "not_a_directory"), ("/workspace/broken", "not_a_directory")):
        refused = node.raw("GET", f"/v1/sandboxes/{sandbox.id}/files/archive?path={path}")
        assert refused.error["code"] == code
    assert "./a" in tarfile.open(fileobj=io.BytesIO(sandbox.files.archive("/workspace/to-a-folder"))).getnames()


def test_a_download_is_no_upload_that_could_be_given_up(node, sandbox):
    sandbox.exec("mkdir p; head -c 40000000 /dev/urandom > p/a")
    path = f"/v1/sandboxes/{sandbox.id}"
    request = urllib.request.Request(f"{node.url}{path}/files/archive?path=/workspace/p", headers={"Authorization": f"Bearer {node.key}"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as download:
        [packing] = [process for process in node.raw("GET", f"{path}/processes").json["data"] if process["command"].startswith("pack ")]
        assert node.raw("POST", f"{path}/files/archive/uploads/{packing['id']}:abort", {}).status == 404
        assert tarfile.open(fileobj=io.BytesIO(download.read())).getmember("./a").size == 40_000_000


def test_archives_merge_into_what_is_there(sandbox):
    sandbox.exec("mkdir there; echo old > there/kept; echo old > there/replaced")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("replaced")
        entry.size, entry.uid, entry.uname = 4, 0, "root"
        archive.addfile(entry, io.BytesIO(b"new\n"))
    sandbox.files.unarchive("/workspace/there", buffer.getvalue())
    assert sandbox.exec("cat there/kept there/replaced; stat -c %U there/replaced").stdout == "old\nnew\nruntime\n"


def test_a_large_archive_comes_in_pieces_that_may_come_twice(node, sandbox):
    buffer = io.BytesIO()
    data = noise(5 * MIB)
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("big")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    packed = buffer.getvalue()
    base = f"/v1/sandboxes/{sandbox.id}/files/archive/uploads"
    begun = node.raw("POST", base, {"path": "/workspace/in", "gzip": False}).json
    for offset in range(0, len(packed), MIB):
        for _ in range(2):
            sent = node.raw("PUT", f"{base}/{begun['uploadId']}?offset={offset}", data=packed[offset:offset + MIB])
            assert sent.status == 200, sent.body
        if offset == 0:
            gap = node.raw("PUT", f"{base}/{begun['uploadId']}?offset={2 * MIB}", data=b"x")
            assert gap.error["details"]["issues"][0]["path"] == "offset"
    done = node.raw("POST", f"{base}/{begun['uploadId']}:commit", {})
    assert done.status == 200, done.body
    assert sandbox.exec("sha256sum < in/big").stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_nonsense_is_no_archive(node, sandbox):
    with pytest.raises(InvalidRequestError) as refused:
        sandbox.files.unarchive("/workspace/x", b"this is no archive" * 100)
    assert "tar" in str(refused.value)
    base = f"/v1/sandboxes/{sandbox.id}/files/archive/uploads"
    begun = node.raw("POST", base, {"path": "/workspace/in", "gzip": True}).json
    node.raw("PUT", f"{base}/{begun['uploadId']}?offset=0", data=b"nonsense")
    assert node.raw("POST", f"{base}/{begun['uploadId']}:commit", {}).error["code"] == "invalid_request"
    stray = sandbox.spawn("sleep 100")
    assert node.raw("PUT", f"{base}/{stray.id}?offset=0", data=b"x").status == 404
    assert node.raw("POST", f"{base}/{begun['uploadId']}:abort", {}).status == 200


def test_an_archive_can_climb_out_of_nothing(sandbox):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, target in (("up", tarfile.SYMTYPE, "/etc"), ("../above", tarfile.REGTYPE, ""), ("up/inside", tarfile.REGTYPE, "")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            archive.addfile(entry, io.BytesIO(b"") if kind == tarfile.REGTYPE else None)
    with pytest.raises((InvalidRequestError, ConflictError, NotFoundError, RuntimeAPIError)):
        sandbox.files.unarchive("/workspace/into", buffer.getvalue())
    assert sandbox.exec("ls /workspace/above /etc/inside").exit_code != 0
