"""Images from the command line: brought, pulled, looked at, used, and thrown away."""
import json
import os
import stat
import subprocess

import pytest
from support.images import busybox, docker_archive, oci_archive, tar_of
from support.node import BINARY
from support.registry import Registry

MARK = tar_of([("mark", b"from a layer\n", {})])


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = Registry(tmp_path_factory.mktemp("registry"))
    yield registry
    registry.close()


def ready(node, *words) -> dict:
    made = json.loads(node.cli("images", *words, "--json").stdout)
    assert made["state"] == "ready"
    return made


def in_image(node, image, command) -> str:
    sandbox = node.cli("create", "--image", image).stdout.strip()
    try:
        return node.cli("exec", sandbox, "--", command).stdout
    finally:
        node.cli("rm", sandbox)


def test_a_directory_comes_as_it_is(node, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "-xf", "-", "-C", root], input=busybox(), check=True)
    (root / "data").mkdir()
    (root / "data/file").write_bytes(b"x" * 10)
    os.link(root / "data/file", root / "data/link")
    os.chown(root / "data/file", 12, 34)
    os.setxattr(root / "data/file", "user.note", b"kept")
    os.truncate(root / "data/file", 50_000_000)
    os.mkfifo(root / "data/fifo")
    made = ready(node, "import", str(root), "--name", "tree", "--tag", "a", "--label", "k=v")
    assert made["tags"] == ["a"] and made["labels"] == {"k": "v"} and made["sizeBytes"] < 20_000_000, "holes stay"
    seen = in_image(node, "tree:a", "stat -c '%u %g %h %s' /data/file; stat -c %F /data/fifo; stat -c %i /data/file /data/link | uniq | wc -l")
    assert seen == "12 34 2 50000000\nfifo\n1\n"
    node.cli("images", "rm", "tree:a")


@pytest.mark.parametrize("how", ["oci-archive:", "docker-archive:", "", "-"])
def test_archives_come_in_each_form(node, tmp_path, how):
    archive = (docker_archive if "docker" in how else oci_archive)([busybox(), MARK], Env=["A=b"])
    (tmp_path / "file").write_bytes(archive)
    if how == "-":
        with open(tmp_path / "file") as stdin:
            words = [BINARY, "images", "--state-dir", str(node.state_dir), "import", "-", "--name", "arch", "--json"]
            made = json.loads(subprocess.run(words, stdin=stdin, capture_output=True, check=True).stdout)
    else:
        made = ready(node, "import", f"{how}{tmp_path / 'file'}", "--name", "arch")
    assert made["env"] == {"A": "b"}
    assert in_image(node, "arch", "cat /mark; echo $A") == "from a layer\nb\n"
    node.cli("images", "rm", made["id"])


@pytest.mark.parametrize("kind", ["gzip", "xz", "zstd", "bzip2"])
def test_compressed_tarballs_are_known_by_themselves(node, tmp_path, kind):
    (tmp_path / "root.tar").write_bytes(busybox())
    subprocess.run([kind, "-q", tmp_path / "root.tar"], check=True)
    [packed] = [path for path in tmp_path.glob("root.tar.*")]
    ran = node.cli("images", "import", str(packed), "--name", "packed", check=kind != "bzip2")
    if kind == "bzip2":
        assert ran.returncode == 1 and "bzip2; use gzip, zstd or xz" in ran.stderr
        return
    assert in_image(node, ran.stdout.strip(), "cat /etc/motd") == "hello from the image\n"
    node.cli("images", "rm", ran.stdout.strip())


def test_an_image_is_pulled_from_a_registry(node, registry):
    found = registry.push("team/app", "1.0", [busybox(), MARK], Env=["PULLED=yes"], WorkingDir="/etc")
    reference = f"{registry.host}/team/app:1.0"
    ran = node.cli("images", "pull", reference)
    image = ran.stdout.strip()
    assert f"pulling {reference}" in ran.stderr and found in ran.stderr and "unpacking 2 layers" in ran.stderr
    assert in_image(node, "app:1.0", "cat /mark; echo $PULLED; pwd") == "from a layer\nyes\n/etc\n"
    shown = json.loads(node.cli("images", "get", "app:1.0", "--json").stdout)
    assert shown["source"]["kind"] == "image" and shown["source"]["reference"] == reference and shown["id"] == image
    by_digest = ready(node, "pull", f"{registry.host}/team/app@{found}", "--name", "exact")
    assert by_digest["source"]["identity"] == shown["source"]["identity"], "the same layers are there once"
    for name in ("app:1.0", "exact"):
        node.cli("images", "rm", name)
    missing = node.cli("images", "pull", f"{registry.host}/team/none:1", check=False)
    assert missing.returncode == 1 and "has no `team/none` with the name `1`" in missing.stderr
    nobody = node.cli("images", "pull", "127.0.0.1:9/a:b", "--json", check=False)
    assert json.loads(nobody.stderr)["error"]["code"] == "image_build_failed"


def test_a_folder_is_built_upon_an_image_of_a_registry(node, registry, tmp_path):
    registry.push("base/box", "3", [busybox(), MARK], Env=["FROM_BASE=yes"])
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.sh").write_text("echo $FROM_BASE $BUILT\n")
    (tmp_path / "skip.tmp").write_text("-")
    (tmp_path / ".dockerignore").write_text("*.tmp\n")
    (tmp_path / "Dockerfile").write_text(f"FROM {registry.host}/base/box:3 AS one\nARG WHO\nENV BUILT=by-$WHO\nCOPY . /app/\nRUN echo seen in the log\n"
                                         "FROM one\nRUN exit 4\n")
    words = ["build", str(tmp_path), "--name", "built", "--tag", "1", "--target", "one", "--build-arg", "WHO=me"]
    ran = node.cli("images", *words)
    assert "seen in the log" in ran.stderr and "COPY . /app/" in ran.stderr
    assert in_image(node, "built:1", "ls -A /app; sh /app/src/main.sh; cat /mark") == ".dockerignore\nDockerfile\nsrc\nyes by-me\nfrom a layer\n"
    again = node.cli("images", *words)
    assert ran.stdout.strip() in again.stderr, "nothing has changed, so nothing is built"
    failed = node.cli("images", "build", str(tmp_path), check=False)
    assert failed.returncode == 1 and "line 7: `RUN exit 4` ended with 4" in failed.stderr
    for version in ("built@1", "built@2"):
        node.cli("images", "rm", version)


def test_images_are_listed_and_tagged(node, tmp_path):
    (tmp_path / "root.tar").write_bytes(busybox())
    image = node.cli("images", "import", str(tmp_path / "root.tar"), "--name", "listed").stdout.strip()
    table = node.cli("images", "ls").stdout
    assert "NAME" in table and "listed" in table and table.rstrip().splitlines()[-1].split()[1] == "host"
    node.cli("image", "tag", "listed", "stable")
    assert node.cli("images", "get", "listed:stable").stdout.startswith(f"id         {image}\n")
    assert "unpacking a root file system" in node.cli("images", "logs", "listed@1").stdout
    node.cli("images", "untag", "listed", "latest")
    assert node.cli("images", "get", "listed", check=False).returncode != 0
    assert node.cli("images", "rm", "listed:stable", "nothing", check=False).returncode != 0
    assert "listed" not in node.cli("images", "ls").stdout


def test_what_cannot_be_read_is_said(node, tmp_path):
    missing = node.cli("images", "import", str(tmp_path / "none"), check=False)
    assert missing.returncode == 1 and "cannot read" in missing.stderr
    folder = tmp_path / "folder"
    folder.mkdir(mode=stat.S_IRWXU)
    (folder / "file").write_text("x")
    empty = node.cli("images", "import", str(folder), "--name", "odd", "--json")
    made = json.loads(empty.stdout)
    no_shell = node.cli("create", "--image", made["id"]).stdout.strip()
    ran = node.cli("exec", no_shell, "--", "true", check=False)
    assert ran.returncode == 127, "an image without a shell runs no command line"
    node.cli("rm", no_shell)
    node.cli("images", "rm", "odd")
