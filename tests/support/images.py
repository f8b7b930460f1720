"""Root filesystems and archives for tests of images, made of what this machine has."""
import gzip
import hashlib
import io
import json
import pathlib
import shutil
import subprocess
import tarfile

from support.wait import until


TARGET = pathlib.Path("target")
# What the test command unpacks and does not install.
TOOLS = TARGET / "test-tools"


def tar_of(entries) -> bytes:
    """A tar archive of (name, content or link target or None for a directory, more fields)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content, more in entries:
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if content is None else 0o644
            for key, value in more.items():
                setattr(info, key, value)
            if content is None and info.type == tarfile.REGTYPE:
                info.type = tarfile.DIRTYPE
            data = content if isinstance(content, bytes) else b""
            info.size = len(data) if info.type == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(data) if info.type == tarfile.REGTYPE else None)
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def config(layers, **more) -> bytes:
    return json.dumps({"architecture": "amd64", "os": "linux", "config": more,
                       "rootfs": {"type": "layers", "diff_ids": [digest(layer) for layer in layers]}}).encode()


def oci_archive(layers, **more) -> bytes:
    """What ``skopeo copy … oci-archive:`` writes."""
    blobs = {}

    def blob(data: bytes, kind: str) -> dict:
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}
    manifest = {"schemaVersion": 2, "config": blob(config(layers, **more), "application/vnd.oci.image.config.v1+json"),
                "layers": [blob(gzip.compress(layer), "application/vnd.oci.image.layer.v1.tar+gzip") for layer in layers]}
    index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")]}
    files = [("oci-layout", b'{"imageLayoutVersion":"1.0.0"}', {}), ("index.json", json.dumps(index).encode(), {})]
    files += [(f"blobs/sha256/{name[7:]}", data, {}) for name, data in blobs.items()]
    return tar_of(files)


def docker_archive(layers, **more) -> bytes:
    """What ``docker save`` writes."""
    files = [("config.json", config(layers, **more), {})]
    files += [(f"{number}/layer.tar", layer, {}) for number, layer in enumerate(layers)]
    manifest = [{"Config": "config.json", "RepoTags": ["t:1"], "Layers": [name for name, _, _ in files[1:]]}]
    return tar_of([*files, ("manifest.json", json.dumps(manifest).encode(), {})])


def send(node, archive: bytes, **fields) -> dict:
    """Sends an archive in chunks and begins to make an image of it."""
    chunks = [archive[at:at + (1 << 20)] for at in range(0, len(archive), 1 << 20)]
    digests = [hashlib.sha256(chunk).hexdigest() for chunk in chunks]
    missing = node.raw("POST", "/v1/images/context/missing", {"digests": digests}).json["missing"]
    for name, chunk in dict(zip(digests, chunks)).items():
        if name in missing:
            answer = node.raw("PUT", f"/v1/images/context/{name}", data=chunk)
            assert answer.status == 200, answer.body
    body = {"archive": {"sha256": hashlib.sha256(archive).hexdigest(), "size": len(archive), "chunks": digests}, **fields}
    answer = node.raw("POST", "/v1/images", body)
    assert answer.status == 201, answer.body
    return answer.json


def busybox() -> bytes:
    """A root filesystem of the static busybox alone."""
    path = shutil.which("busybox", path=f"{TOOLS / 'bin'}:{TOOLS / 'usr/bin'}")
    assert path, "`cargo xtask test` brings busybox"
    program = pathlib.Path(path).read_bytes()
    applets = subprocess.run([path, "--list"], capture_output=True, text=True, check=True).stdout.split()
    files = [("./", None, {}), ("./bin", None, {}), ("./bin/busybox", program, {"mode": 0o755}), ("./etc", None, {}), ("./etc/motd", b"hello from the image\n", {})]
    files += [(f"./bin/{name}", b"", {"type": tarfile.SYMTYPE, "linkname": "busybox"}) for name in applets if name != "busybox"]
    return tar_of(files)


def made(node, image: dict) -> dict:
    """The image, once it is ready."""
    def ended():
        now = node.raw("GET", f"/v1/images/{image['id']}").json
        assert now["state"] != "failed", now["error"]
        return now["state"] == "ready" and now
    return until(ended, seconds=60, what="the image is ready")
