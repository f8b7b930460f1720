"""A live node: the real program with a state directory of its own, and clients of it."""
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid

from withruntime import Runtime

READY = "branchbox ready "
READY_SECONDS = 60
STOP_SECONDS = 60
BINARY = os.environ.get("BRANCHBOX_BIN", "target/x86_64-unknown-linux-gnu/debug/branchbox")


def make_state_dir() -> pathlib.Path:
    parent = os.environ.get("BRANCHBOX_TEST_STATE")
    if parent:
        os.makedirs(parent, exist_ok=True)
    return pathlib.Path(tempfile.mkdtemp(prefix="branchbox-state-", dir=parent))


class Answer:
    """A raw HTTP answer, for what the SDK hides."""

    def __init__(self, status: int, headers, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        return self.json["error"]


class Node:
    """One ``branchbox serve``. Start it, crash it, start it again; ``close`` leaves nothing."""

    def __init__(self, state_dir=None, *, end_sandboxes: bool = True, words=(), env=None) -> None:
        self._made = state_dir is None
        self.state_dir = pathlib.Path(state_dir) if state_dir else make_state_dir()
        self.log_path = self.state_dir.with_name(self.state_dir.name + ".log")
        self._words = ["--end-sandboxes"] if end_sandboxes else []
        self._words += list(words)
        self._env = {**os.environ, **(env or {})}
        self.process = None
        self.url = self.key = None
        self._client = None

    def start(self) -> "Node":
        arguments = [BINARY, "serve", "--listen", "127.0.0.1:0", "--state-dir", str(self.state_dir), *self._words]
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                        env=self._env, text=True)
        log.close()
        line = self._first_line()
        assert line.startswith(READY), f"the node said {line!r}; it logged:\n{self.log()}"
        self.url = line.removeprefix(READY).strip()
        self.key = (self.state_dir / "admin.key").read_text().strip()
        self._client = None
        return self

    def _first_line(self) -> str:
        lines: queue.Queue = queue.Queue()

        def pump(stream) -> None:
            lines.put(stream.readline())
            for _ in stream:
                pass
        threading.Thread(target=pump, args=(self.process.stdout,), daemon=True).start()
        try:
            return lines.get(timeout=READY_SECONDS)
        except queue.Empty:
            raise AssertionError(f"no ready line within {READY_SECONDS} s; the log:\n{self.log()}") from None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def client(self) -> Runtime:
        if self._client is None:
            self._client = Runtime(api_key=self.key, base_url=self.url)
        return self._client

    def crash(self) -> None:
        """Ends the node as ``kill -9`` does; its sandboxes run on."""
        self.process.kill()
        self.process.wait(timeout=STOP_SECONDS)

    def stop(self) -> int:
        """Asks the node to end, and returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=STOP_SECONDS)

    def close(self) -> None:
        """Ends the node and every sandbox, and removes its state directory."""
        if self.process is None:
            return self._remove()
        if self.process.poll() is None:
            for sandbox in self.client.sandboxes.list(include_stopped=True).to_list():
                sandbox.delete()
            for snapshot in self.client.snapshots.list().to_list():
                self.client.snapshots.delete(snapshot["id"])
            code = self.stop()
            assert code == 0, f"the node ended with {code}; the log:\n{self.log()}"
        self._remove()

    def _remove(self) -> None:
        if self._made:
            still_mounted = [line for line in pathlib.Path("/proc/self/mounts").read_text().splitlines()
                             if str(self.state_dir) in line]
            assert not still_mounted, f"mounts left: {still_mounted}"
            shutil.rmtree(self.state_dir)
            self.log_path.unlink(missing_ok=True)

    def __enter__(self) -> "Node":
        return self.start()

    def __exit__(self, kind, *_) -> None:
        if kind is not None:
            print(self.log()[-8000:])
        self.close()

    def raw(self, method: str, path: str, body=None, *, headers=None, key: str | None = "", data: bytes | None = None) -> Answer:
        """One request as bytes: ``body`` is sent as JSON, ``data`` as it is; ``key=None`` sends no key."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if key is not None:
            sent["Authorization"] = "Bearer " + (key or self.key)
        if method != "GET":
            sent.setdefault("Idempotency-Key", str(uuid.uuid4()))
        payload = data if data is not None else (None if body is None else json.dumps(body).encode())
        request = urllib.request.Request(self.url + path, data=payload, method=method, headers=sent)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=120) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def cli(self, *words: str, check: bool = True, **options) -> subprocess.CompletedProcess:
        """Runs a command of the command line against this node's state directory."""
        arguments = [BINARY, *words[:1], "--state-dir", str(self.state_dir), *words[1:]]
        ran = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False,
                             env=self._env, stdin=subprocess.DEVNULL, **options)
        assert not check or ran.returncode == 0, f"{words} ended with {ran.returncode}:\n{ran.stdout}\n{ran.stderr}"
        return ran


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process ends within the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except OSError:
            return True
        time.sleep(0.02)
    return False
