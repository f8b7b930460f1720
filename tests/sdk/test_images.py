"""Images of archives: what comes in, what a sandbox on them sees, and what is left when they go."""
import io
import pathlib
import stat
import tarfile
import time

import pytest
from support.images import busybox, config, digest, docker_archive, made, oci_archive, send, tar_of
from support.wait import until
from withruntime import ConflictError, NotFoundError, RuntimeAPIError

BASE = busybox()


@pytest.fixture(scope="module")
def small(node):
    """The smallest image a shell runs in."""
    return made(node, send(node, BASE, name="small"))


def layers_there(node) -> set:
    found = pathlib.Path(node.state_dir).glob("pool/images/layers/*")
    return {path.name for path in found}


def test_a_root_filesystem_runs(node, runtime, small):
    assert (small["name"], small["version"], small["tags"]) == ("small", 1, ["latest"])
    assert small["sizeBytes"] > 0 and small["source"]["kind"] == "archive"
    with runtime.sandboxes.create(image="small") as sandbox:
        assert sandbox.info["image"] == "small@1"
        said = sandbox.exec("id -un; id -u; pwd; echo $HOME; echo $SHELL; cat /etc/motd; echo ${0##*/}").stdout.split("\n")
        assert said[:6] == ["runtime", "1000", "/workspace", "/workspace", "/bin/sh", "hello from the image"]
        assert sandbox.exec("sudo -n id -u 2>&1").stdout == "0\n"
        assert sandbox.exec("touch here && stat -c %U here; hostname; grep -c localhost /etc/hosts").stdout == "runtime\nbranchbox\n2\n"
        assert sandbox.exec("ls /home /srv 2>&1; which python3 node bash").exit_code != 0, "nothing of the host is seen"
        running = sandbox.spawn("i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
        until(lambda: "3\n" in "".join(chunk["text"] for chunk in node.raw("GET", f"/v1/sandboxes/{sandbox.id}/processes/{running.id}/output?cursor=0").json["chunks"]))
        with sandbox.fork() as copy:
            assert copy.process(running.id).state == "running"
            assert copy.exec("cat /etc/motd").stdout == "hello from the image\n"
        sandbox.exec("echo changed | sudo tee /etc/motd")
        snapshot = sandbox.snapshot()
        with runtime.sandboxes.create(snapshot=snapshot["id"]) as again:
            assert again.exec("cat /etc/motd; pgrep -f 'sleep 0.05' >/dev/null && echo runs").stdout.startswith("changed\n")
        sandbox.stop()
        sandbox.restart()
        assert sandbox.exec("cat /etc/motd").stdout == "changed\n"
    with runtime.sandboxes.create(image="small") as fresh:
        assert fresh.exec("cat /etc/motd").stdout == "hello from the image\n"


def test_the_host_image_is_found_by_every_name_it_has(runtime):
    [image] = runtime.images.list(name="host").to_list()
    assert (image["state"], image["tags"], image["workdir"]) == ("ready", ["latest"], "/workspace")
    for ref in ("host", "host:latest", "host@1", image["id"], image["source"]["identity"]):
        assert runtime.images.resolve(ref)["id"] == image["id"]
        with runtime.sandboxes.create(image=ref) as sandbox:
            assert sandbox.info["image"] == "host"
    assert runtime.images.get(image["id"])["name"] == "host"


@pytest.mark.parametrize("ref", ["debian", "host:old", "host@2", "00000000-0000-4000-8000-000000000000", "a/b:c"])
def test_what_is_not_there_is_not_found(runtime, ref):
    for look in (lambda: runtime.images.resolve(ref), lambda: runtime.sandboxes.create(image=ref)):
        with pytest.raises(NotFoundError) as missing:
            look()
        assert missing.value.code == "image_not_found"


def lower():
    return tar_of([
        ("etc", None, {}), ("etc/kept", b"kept", {"mode": 0o640, "uid": 33, "gid": 7, "mtime": 1_000_000_000}),
        ("etc/gone", b"gone", {}), ("old", None, {}), ("old/a", b"a", {}), ("old/b", None, {}), ("old/b/c", b"c", {}),
        ("both", None, {}), ("both/below", b"below", {}), ("real", None, {"mode": 0o751, "uid": 5}), ("link", b"", {"type": tarfile.SYMTYPE, "linkname": "real"}),
        ("file", b"file", {}), ("twice", b"", {"type": tarfile.LNKTYPE, "linkname": "file"}),
        ("suid", b"x", {"mode": 0o4755}), ("fifo", b"", {"type": tarfile.FIFOTYPE}), ("wasdir", None, {}), ("wasdir/x", b"x", {}),
        ("caps", b"x", {"pax_headers": {"SCHILY.xattr.user.mine": "yes", "SCHILY.xattr.trusted.overlay.opaque": "y"}}),
    ])


def upper():
    return tar_of([
        ("etc/.wh.gone", b"", {}), ("old/.wh..wh..opq", b"", {}), ("old/new", b"new", {}), ("both/above", b"above", {}),
        ("link/through", b"through", {}), ("again", b"", {"type": tarfile.LNKTYPE, "linkname": "file"}),
        ("wasdir", b"a file now", {}), ("deep/er/est", b"deep", {}),
    ])


@pytest.mark.parametrize("archive", [oci_archive, docker_archive])
def test_layers_lie_over_each_other(node, runtime, archive):
    image = made(node, send(node, archive([BASE, lower(), upper()], Env=["PATH=/opt/bin:/bin:/usr/bin", "GREETING=hi there"],
                                          WorkingDir="/deep/er")))
    assert image["env"]["GREETING"] == "hi there" and image["workdir"] == "/deep/er" and image["name"] is None
    with runtime.sandboxes.create(image=image["id"], user="root") as sandbox:
        def said(command):
            return sandbox.exec(command).stdout
        assert said("pwd; echo $GREETING; echo $PATH") == "/deep/er\nhi there\n/workspace/.local/bin:/opt/bin:/bin:/usr/bin\n"
        assert said("cat /etc/kept; stat -c ' %a %u %g %Y' /etc/kept") == "kept 640 33 7 1000000000\n"
        assert said("ls /etc/gone 2>&1; ls /old; ls /both; cat /wasdir; cat est") .endswith("new\nabove\nbelow\na file nowdeep")
        assert said("readlink /link; cat /real/through; stat -c %a,%u /real") == "real\nthrough751,5\n", "a link of a lower layer is followed"
        assert said("stat -c '%h %i' /file /twice /again | sort -u | wc -l; stat -c %h /file") == "1\n3\n"
        assert said("stat -c %a /suid; stat -c %F /fifo") == "4755\nfifo\n"
        sandbox.exec("rm /etc/kept /file; mv /both /moved")
        with sandbox.fork() as copy:
            assert copy.exec("ls /etc/kept /file /both 2>/dev/null; ls /moved").stdout == "above\nbelow\n"


def test_equal_layers_are_there_once(node, small):
    mark = tar_of([("once", b"", {})])
    before = layers_there(node)
    one = made(node, send(node, oci_archive([BASE, mark])))
    with_one = layers_there(node)
    two = made(node, send(node, oci_archive([BASE, mark, lower()])))
    three = made(node, send(node, docker_archive([BASE, mark])))
    assert three["source"]["identity"] == one["source"]["identity"]
    assert len(with_one - before) <= 2 and len(layers_there(node) - with_one) == 1, "one layer more"
    for image in (one, two, three):
        assert node.raw("POST", f"/v1/images/{image['id']}:delete", {}).json["state"] == "deleted"
    until(lambda: layers_there(node) == before)


def test_what_stands_on_an_image_outlives_it(node, runtime):
    image = made(node, send(node, oci_archive([BASE, tar_of([("mark", b"mine", {})])]), name="brief"))
    own = image["source"]["identity"].removeprefix("sha256:")
    sandbox = runtime.sandboxes.create(image="brief")
    snapshot = sandbox.snapshot()
    runtime.images.delete("brief")
    with pytest.raises(NotFoundError):
        runtime.sandboxes.create(image="brief")
    assert sandbox.exec("cat /mark").stdout == "mine" and own in layers_there(node)
    sandbox.stop()
    sandbox.restart()
    assert sandbox.exec("cat /mark").stdout == "mine"
    sandbox.delete()
    with runtime.sandboxes.create(snapshot=snapshot["id"]) as again:
        assert again.exec("cat /mark").stdout == "mine"
    runtime.snapshots.delete(snapshot["id"])
    until(lambda: own not in layers_there(node))


def test_names_tags_and_versions(node, runtime, small):
    images = runtime.images
    first = made(node, send(node, BASE, name="app", tags=["1", "stable"]))
    second = made(node, send(node, oci_archive([BASE, lower(), upper()]), name="app"))
    assert [image["version"] for image in images.versions("app").data] == [2, 1]
    assert images.resolve("app")["id"] == second["id"] and images.resolve("app:1")["id"] == first["id"]
    assert images.resolve("app@1")["id"] == first["id"] and images.resolve(second["id"])["id"] == second["id"]
    assert images.tag("app@2", "stable")["tags"] == ["latest", "stable"]
    assert images.resolve("app@1")["tags"] == ["1"], "a tag is at one version"
    assert images.untag("app@2", "latest")["tags"] == ["stable"]
    with pytest.raises(NotFoundError) as missing:
        images.resolve("app")
    assert missing.value.code == "image_not_found"
    assert {image["name"] for image in images.list(state="ready", limit=1)} >= {"app", "small", "host"}, "pages hang together"
    images.delete("app@1")
    images.delete("app:stable")
    assert not images.list(name="app").data
    for wrong in ("host", "host:latest"):
        with pytest.raises(RuntimeAPIError) as built_in:
            images.delete(wrong)
        assert built_in.value.code == "invalid_request"


BROKEN = {
    "nothing of an archive": (b"no archive at all" * 100, "archive"),
    "cut off": (oci_archive([BASE])[:200_000], "archive"),
    "climbing": (tar_of([("../../etc/passwd", b"x", {})]), "climbs"),
    "an owner of nobody's": (tar_of([("a", b"x", {"uid": 70_000})]), "70000"),
    "another digest": (docker_archive([BASE], ).replace(digest(BASE).encode(), digest(b"other").encode()), "should be"),
    "two images": (tar_of([("manifest.json", b"[{\"Config\":\"a\",\"Layers\":[]},{\"Config\":\"a\",\"Layers\":[]}]", {})]), "2 images"),
    "bzip2": (b"BZh91AY&SY" + bytes(2000), "bzip2"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_image_is_refused_and_leaves_nothing(node, what):
    archive, word = BROKEN[what]
    before = layers_there(node)
    image = send(node, archive, name="broken")
    image = until(lambda: (now := node.raw("GET", f"/v1/images/{image['id']}").json)["state"] not in ("queued", "building") and now)
    assert image["state"] == "failed" and word in image["error"], image
    assert image["tags"] == [] and layers_there(node) == before
    assert word in node.raw("GET", f"/v1/images/{image['id']}/logs").body.decode()
    refused = node.raw("POST", "/v1/sandboxes", {"image": image["id"]})
    assert (refused.status, refused.error["code"]) == (409, "image_not_ready")
    assert not list(pathlib.Path(node.state_dir).glob("incoming/*"))
    node.raw("POST", f"/v1/images/{image['id']}:delete", {})


def test_links_of_an_archive_stay_inside_it(node, runtime):
    evil = tar_of([("etc", None, {}), ("out", b"", {"type": tarfile.SYMTYPE, "linkname": "/"}), ("up", b"", {"type": tarfile.SYMTYPE, "linkname": "../../../.."}),
                   ("out/planted", b"x", {}), ("up/planted2", b"x", {}), ("out/up/out/planted3", b"x", {})])
    image = made(node, send(node, docker_archive([BASE, evil])))
    for name in ("planted", "planted2", "planted3"):
        assert not pathlib.Path("/" + name).exists()
    with runtime.sandboxes.create(image=image["id"]) as sandbox:
        assert sandbox.exec("ls -d /planted*").stdout == "/planted\n/planted2\n/planted3\n"


def test_chunks_are_checked(node):
    good = digest(b"chunk")[7:]
    assert node.raw("PUT", f"/v1/images/context/{good}", data=b"other").error["code"] == "invalid_request"
    assert node.raw("PUT", "/v1/images/context/xyz", data=b"x").error["code"] == "invalid_request"
    assert node.raw("POST", "/v1/images/context/missing", {"digests": [good]}).json["missing"] == [good]
    assert node.raw("PUT", f"/v1/images/context/{good}", data=b"chunk").status == 200
    assert node.raw("POST", "/v1/images/context/missing", {"digests": [good]}).json["missing"] == []
    begun = node.raw("POST", "/v1/images", {"archive": {"sha256": digest(b"chunkx")[7:], "size": 6, "chunks": [good]}}).json
    failed = until(lambda: (now := node.raw("GET", f"/v1/images/{begun['id']}").json)["state"] == "failed" and now)
    assert "5 bytes" in failed["error"]


def test_the_log_is_followed_to_the_end(node, runtime):
    lines = []
    begun = send(node, docker_archive([BASE, lower()]), name="told")
    image = runtime.images.follow_logs(begun["id"], lines.append)
    assert image["state"] == "ready" and image["logs"]["lines"] == len(lines) >= 2
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    page = runtime.images.logs(begun["id"], after=1)
    assert page["done"] is True and page["nextAfter"] == len(lines) and page["lines"][0]["seq"] == 2
    runtime.images.delete("told")
