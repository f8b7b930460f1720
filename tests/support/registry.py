"""A registry on the loopback, the real program, with what a test pushes into it."""
import json
import pathlib
import shutil
import socket
import subprocess
import urllib.request

from support.images import TOOLS, config, digest
from support.wait import until


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Registry:
    """Started in a scratch directory; ended by ``close``."""

    def __init__(self, scratch: pathlib.Path) -> None:
        program = shutil.which("docker-registry") or TOOLS / "usr/bin/docker-registry"
        self.host = f"127.0.0.1:{free_port()}"
        settings = {"version": 0.1, "storage": {"filesystem": {"rootdirectory": str(scratch / "blobs")}}, "http": {"addr": self.host}}
        (scratch / "config.yml").write_text(json.dumps(settings))
        with open(scratch / "log", "w") as log:
            self.process = subprocess.Popen([program, "serve", scratch / "config.yml"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: self.answers(), what="the registry answers")

    def answers(self) -> bool:
        assert self.process.poll() is None, "the registry ended"
        try:
            return self.ask("GET", "/v2/").status == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, data=None, kind="application/octet-stream"):
        url = path if path.startswith("http") else f"http://{self.host}{path}"
        request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": kind})
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30)

    def _blob(self, name: str, data: bytes) -> dict:
        place = self.ask("POST", f"/v2/{name}/blobs/uploads/", b"").headers["Location"]
        self.ask("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest(data)}", data)
        return {"digest": digest(data), "size": len(data)}

    def push(self, name: str, tag: str, layers, **more) -> str:
        """Pushes an image, and gives its digest."""
        kind = "application/vnd.oci.image.{}"
        manifest = {"schemaVersion": 2, "mediaType": kind.format("manifest.v1+json"),
                    "config": {"mediaType": kind.format("config.v1+json"), **self._blob(name, config(layers, **more))},
                    "layers": [{"mediaType": kind.format("layer.v1.tar"), **self._blob(name, layer)} for layer in layers]}
        data = json.dumps(manifest).encode()
        self.ask("PUT", f"/v2/{name}/manifests/{tag}", data, manifest["mediaType"])
        return digest(data)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10)
