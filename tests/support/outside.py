"""Sandboxes as the host's kernel shows them: nothing here asks the product what it did.

The one thing taken from the product is where to begin: the guest's pid, written by the keeper into the sandbox's
directory.
"""
import json
import os
import pathlib
import time

from support.wait import until

NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


def keeper_record(node, sandbox_id: str) -> dict:
    path = node.state_dir / "sandboxes" / sandbox_id / "keeper-run.json"
    return json.loads(path.read_text())


def guest_pid(node, sandbox_id: str) -> int:
    return int(keeper_record(node, sandbox_id)["guest_pid"])


def keeper_pid(node, sandbox_id: str) -> int:
    return int(keeper_record(node, sandbox_id)["keeper_pid"])


def namespaces(pid: int | str) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}


class Seen:
    """One process as seen from the host."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        self.name = fields["Name"]
        self.parent = int(fields["PPid"])
        self.inner_pid = int(fields["NSpid"].split()[-1])
        self.host_uid = int(fields["Uid"].split()[0])
        self.state = fields["State"][0]
        self.threads = sorted(self._thread_ids())

    def _thread_ids(self):
        for task in os.listdir(f"/proc/{self.pid}/task"):
            text = pathlib.Path(f"/proc/{self.pid}/task/{task}/status").read_text()
            line = next(line for line in text.splitlines() if line.startswith("NSpid:"))
            yield int(line.split()[-1])


def processes(node, sandbox_id: str) -> dict[int, Seen]:
    """Every process in the sandbox's pid namespace, by its pid inside."""
    space = os.readlink(f"/proc/{guest_pid(node, sandbox_id)}/ns/pid")
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if os.readlink(f"/proc/{entry}/ns/pid") == space:
                seen = Seen(int(entry))
                found[seen.inner_pid] = seen
        except (OSError, StopIteration, KeyError):
            continue  # it ended while we looked
    return found


def ancestors(pid: int) -> list[int]:
    line = []
    while pid > 1:
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            break  # it ended while we looked, as the zoo's short-lived children do
        pid = int(next(row for row in status.splitlines() if row.startswith("PPid:")).split()[1])
        line.append(pid)
    return line


def assert_independent(node, source_id: str, copy_ids: list[str]) -> None:
    """Own namespaces for all, and no process of a copy descends from the source."""
    everyone = [source_id, *copy_ids]
    host = namespaces("self")
    seen: dict[str, set[str]] = {kind: {host[kind]} for kind in NAMESPACES}
    for sandbox_id in everyone:
        for kind, link in namespaces(guest_pid(node, sandbox_id)).items():
            assert link not in seen[kind], f"{sandbox_id} shares its {kind} namespace"
            seen[kind].add(link)
    source = {process.pid for process in processes(node, source_id).values()}
    assert source, "the source has no process"
    for copy_id in copy_ids:
        for process in processes(node, copy_id).values():
            assert not source & set(ancestors(process.pid)), f"{process.name} of {copy_id} descends from the source"
            assert process.pid not in source


def steady(node, sandbox_id: str, names=("python3", "node", "bash")) -> dict[int, tuple]:
    """What must be the same in source and copy: long-lived programs with their pids and thread ids.

    A shell's child is a shell until it runs its program, so only what every look sees is long-lived.
    """
    looks = [processes(node, sandbox_id)]
    for _ in range(3):
        time.sleep(0.15)
        looks.append(processes(node, sandbox_id))
    everywhere = set.intersection(*(set(look) for look in looks))
    return {inner: (seen.name, seen.threads) for inner, seen in looks[-1].items() if seen.name in names and inner in everywhere}


def assert_steady(node, sandbox_id: str, before: dict[int, tuple]) -> None:
    """The long-lived programs are exactly ``before``. On a busy machine a shell's child takes its time to become another
    program, so it may be seen twice; one that stays, or one that is missing, fails."""
    until(lambda: steady(node, sandbox_id) == before, seconds=20, what=f"only {before} run in {sandbox_id}")
