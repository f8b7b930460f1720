"""What would sink the design: a keeper that dies in a capture, a server that notices one, a database that stops writing."""
import os
import random
import signal
import threading

import pytest
from support.node import gone
from support.outside import keeper_pid, processes, steady
from support.wait import until
from support.zoo import Zoo
from withruntime import RuntimeAPIError

WAITING_SERVER = """
import json, os, select, socket, sys, threading, time
listener = socket.create_server(("127.0.0.1", 8110)); poll = select.epoll(); poll.register(listener, select.EPOLLIN)
state = {"eintr": 0, "wrong": 0, "waits": 0, "served": 0}
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(12 * 16)
epoll = libc.epoll_create1(0)
class Event(ctypes.Structure): _pack_ = 1; _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]
libc.epoll_ctl(epoll, 1, listener.fileno(), ctypes.byref(Event(1, listener.fileno())))
def other_waits():
    poller = libc.poll; nothing, _ = os.pipe()
    class PollFd(ctypes.Structure): _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]
    while True:
        if poller(ctypes.byref(PollFd(nothing, 1, 0)), 1, 300) < 0: state["eintr"] += 1
        state["waits"] += 1
def semaphore_waits():
    sem = ctypes.create_string_buffer(64); libc.sem_init(sem, 0, 0)
    class Spec(ctypes.Structure): _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]
    while True:
        at = time.time() + 0.3
        if libc.sem_timedwait(sem, ctypes.byref(Spec(int(at), int(at % 1 * 1e9)))) < 0 and ctypes.get_errno() == 4: state["eintr"] += 1
        state["waits"] += 1
def nano_sleeps():
    class Spec(ctypes.Structure): _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]
    while True:
        before = time.monotonic()
        if libc.nanosleep(ctypes.byref(Spec(0, 200_000_000)), None) != 0: state["eintr"] += 1
        if time.monotonic() - before < 0.199: state["wrong"] += 1
        state["waits"] += 1
for work in (other_waits, semaphore_waits, nano_sleeps): threading.Thread(target=work, daemon=True).start()
while True:
    ready = libc.epoll_wait(epoll, buffer, 16, -1)
    if ready < 0: state["eintr"] += 1; continue
    peer, _ = listener.accept()
    state["served"] += 1
    peer.sendall(json.dumps(state).encode()); peer.close()
"""
ASK = "import socket,sys; s=socket.create_connection(('127.0.0.1',8110),timeout=20); print(s.makefile().read())"


def ask(sandbox) -> dict:
    import json
    answer = sandbox.exec(["python3", "-c", ASK])
    assert answer.exit_code == 0, answer.stderr
    return json.loads(answer.stdout)


def test_a_waiting_server_never_notices(sandbox):
    sandbox.files.write("/workspace/waiting.py", WAITING_SERVER)
    sandbox.spawn("exec python3 /workspace/waiting.py")
    until(lambda: sandbox.exec(["python3", "-c", ASK]).exit_code == 0, seconds=20)
    for _ in range(12):
        copy = sandbox.fork()
        try:
            there = ask(copy)
            assert (there["eintr"], there["wrong"]) == (0, 0), there
        finally:
            copy.delete()
    here = ask(sandbox)
    assert (here["eintr"], here["wrong"]) == (0, 0), here
    until(lambda: ask(sandbox)["waits"] > here["waits"], what="its waits end")


@pytest.mark.parametrize("seed", range(4))
def test_a_keeper_killed_during_a_capture_harms_no_source(node, seed):
    with node.client.sandboxes.create() as sandbox:
        zoo = Zoo.start(sandbox)
        before = steady(node, sandbox.id)
        keeper, chance = keeper_pid(node, sandbox.id), random.Random(seed)
        outcome: list[object] = []

        def capture() -> None:
            try:
                outcome.append(node.raw("POST", f"/v1/sandboxes/{sandbox.id}:snapshot", {}).status)
            except OSError as error:
                outcome.append(error)
        work = threading.Thread(target=capture)
        work.start()
        threading.Event().wait(chance.uniform(0, 0.06))
        os.kill(keeper, signal.SIGKILL)
        assert gone(keeper)
        work.join(120)
        assert not work.is_alive() and outcome
        until(lambda: fine(sandbox), seconds=30, what="the sandbox answers again")
        zoo.verify(sandbox)
        assert before.items() <= steady(node, sandbox.id).items(), "a process was lost"
        assert all(seen.state not in "tT" for seen in processes(node, sandbox.id).values()), "a task stayed stopped"
        copy = sandbox.fork()
        zoo.copy().verify(copy)
        copy.delete()
    for snapshot in node.client.snapshots.list().to_list():
        assert snapshot["state"] in ("ready", "failed")
        node.client.snapshots.delete(snapshot["id"])


def fine(sandbox) -> bool:
    try:
        return sandbox.exec("echo fine").stdout == "fine\n"
    except RuntimeAPIError:
        return False


def test_captures_during_writes_never_tear_a_database(sandbox, zoo: Zoo):
    for _ in range(8):
        copy = sandbox.fork()
        try:
            twin = zoo.copy()
            twin.give(copy, 3, "in the copy")
            assert copy.exec("sqlite3 /workspace/zoo/web.db 'pragma integrity_check'").stdout == "ok\n"
        finally:
            copy.delete()
    zoo.verify(sandbox)


TIMED = """
import asyncio, ctypes, select, time
async def main():
    begin = time.monotonic()
    await asyncio.sleep(3)
    print("slept", time.monotonic() - begin, flush=True)
poll = select.epoll()
early = 0
import threading
def constant():
    global early
    while True:
        begin = time.monotonic()
        poll.poll(0.15)
        if time.monotonic() - begin < 0.149: early += 1
threading.Thread(target=constant, daemon=True).start()
asyncio.run(main())
print("early", early, flush=True)
"""


def test_timers_of_the_source_end_in_time_under_frequent_captures(node, sandbox):
    """A wait whose limit started anew at each capture would never end; one cut short too much would end early."""
    sandbox.files.write("/workspace/timed.py", TIMED)
    timed = sandbox.spawn("exec python3 /workspace/timed.py")
    for _ in range(20):
        if timed.refresh()["state"] != "running":
            break
        snapshot = sandbox.snapshot()
        node.client.snapshots.delete(snapshot["id"])
        threading.Event().wait(0.4)
    words = timed.wait().stdout.split()
    assert words[0] == "slept" and 3.0 <= float(words[1]) < 4.5, words
    assert words[2:] == ["early", "0"]
