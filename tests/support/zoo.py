"""The zoo: real programs that a capture must not lose, started inside a sandbox through the SDK.

A Python web server with an in-memory counter, ticking threads and a SQLite database in WAL mode; a bash job pipeline; a
node server with a worker thread; a process that holds a deleted file; a client and a server connected over loopback.
"""
import hashlib
import json
import pathlib
import shlex

from .wait import until

SOURCES = pathlib.Path(__file__).parent.parent / "zoo"
HOME = "/workspace/zoo"
ANIMALS = {
    "web": f"exec python3 {HOME}/web.py {HOME}",
    "jobs": f"exec bash {HOME}/jobs.sh {HOME}",
    "node": f"exec node {HOME}/server.js",
    "held": f"exec python3 {HOME}/held.py {HOME}",
    "link_server": f"exec python3 {HOME}/link_server.py",
    "link_client": f"exec python3 {HOME}/link_client.py {HOME}",
}
HELD_SIZE = 64 * 1024
HELD_OFFSET = 12_345


class Zoo:
    """What the zoo of one sandbox must answer. Copies are made with :meth:`copy` beside the sandbox's own copy."""

    def __init__(self) -> None:
        self.counter = 0
        self.entries = 0
        self.notes: list[str] = []
        self.written = ""
        self.secret = None
        self.pids: dict[str, int] = {}
        self.least: dict[str, int] = {}

    @classmethod
    def start(cls, sandbox) -> "Zoo":
        """Uploads and starts every program, gives each something to remember, and waits until all tick."""
        for source in sorted(SOURCES.iterdir()):
            sandbox.files.write(f"{HOME}/{source.name}", source.read_bytes())
        for command in ANIMALS.values():
            sandbox.spawn(command)
        zoo = cls()
        until(lambda: sandbox.exec(f"python3 {HOME}/ask.py {HOME}").exit_code == 0, seconds=60, what="the zoo answers")
        zoo.give(sandbox, 7, "before")
        return zoo

    def copy(self) -> "Zoo":
        """What a fork taken now must answer."""
        twin = Zoo()
        twin.__dict__.update(self.__dict__)
        twin.notes, twin.pids, twin.least = list(self.notes), dict(self.pids), dict(self.least)
        return twin

    def give(self, sandbox, amount: int, note: str) -> None:
        """Changes every animal's state in this sandbox alone, and checks it."""
        self.counter += amount
        self.entries += 1
        self.notes = sorted({*self.notes, note})
        self.written += note
        self._check(ask(sandbox, amount, note))

    def verify(self, sandbox) -> None:
        """Every animal answers with what it must know, and goes on ticking."""
        first = ask(sandbox)
        self._check(first)
        before = progress(first)

        def all_moved() -> bool:
            now = progress(ask(sandbox))
            return all(now[name] > before[name] for name in before)
        until(all_moved, seconds=20, what=f"every animal goes on from {before}")
        after = ask(sandbox)
        self._check(after)
        self.least = progress(after)

    def _check(self, answer: dict) -> None:
        web, node, held, link = answer["web"], answer["node"], answer["held"], answer["link"]
        assert web["errors"] == []
        assert (web["counter"], web["rows"], web["total"]) == (self.counter, self.entries, self.counter)
        assert (web["journal"], web["integrity"]) == ("wal", "ok")
        assert web["notes"] == node["notes"] == self.notes
        assert node["counter"] == self.counter
        assert (held["links"], held["size"]) == (0, HELD_SIZE)
        assert (held["offset"], held["tail"]) == (HELD_OFFSET + len(self.written), self.written)
        assert held["sha256"] == held_digest(self.written)
        assert link["broken"] is None and link["wrong"] == []
        assert answer["jobs"]["running"] == 1, "the shell lost its job"
        self.secret = self.secret or web["secret"]
        assert web["secret"] == self.secret, "memory was not kept"
        pids = {name: answer[name]["pid"] for name in ("web", "node", "held", "link")}
        pids["pipeline"] = answer["jobs"]["pipeline"]
        self.pids = self.pids or pids
        assert pids == self.pids, "pids inside changed"
        now = progress(answer)
        assert all(now[name] >= least for name, least in self.least.items()), f"{now} fell behind {self.least}"


def held_digest(written: str) -> str:
    """The digest that the deleted file's content must have, after ``written`` was written at its offset."""
    content = bytearray(number * 7 % 251 for number in range(HELD_SIZE))
    content[HELD_OFFSET:HELD_OFFSET + len(written)] = written.encode()
    return hashlib.sha256(content).hexdigest()


def ask(sandbox, *words) -> dict:
    asked = sandbox.exec(" ".join(["python3", f"{HOME}/ask.py", HOME, *(shlex.quote(str(word)) for word in words)]))
    assert asked.exit_code == 0, f"the zoo did not answer: {asked.stderr}"
    return json.loads(asked.stdout)


def progress(answer: dict) -> dict[str, int]:
    """Everything that must grow as long as the programs run."""
    slept, waited, beats = answer["web"]["ticks"]
    return {"slept": slept, "waited": waited, "beats": beats, "pipeline": answer["jobs"]["count"],
            "shell": answer["jobs"]["rounds"], "node": answer["node"]["ticks"], "worker": answer["node"]["worker"],
            "link": answer["link"]["answered"]}
