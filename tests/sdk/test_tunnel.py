"""Ports of a sandbox, forwarded: bytes both ways, ends of stream, limits, and captures while somebody outside is connected."""
import hashlib
import json
import os
import socket
import struct
import threading

import pytest
from support.node import Node
from support.wait import said, until
from withruntime._errors import RuntimeError as SdkError

# The SDK's own threads meet sockets that it has closed.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

ECHO = """
import socket, threading
def serve(c):
    while data := c.recv(65536): c.sendall(data)
    c.close()
s = socket.create_server(('127.0.0.1', 7000), backlog=128)
print('listening', flush=True)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""
# Reads to the end, then answers with what it read.
DIGEST = """
import socket, hashlib
s = socket.create_server(('::1', 7001), family=socket.AF_INET6)
print('listening', flush=True)
while True:
    c, _ = s.accept(); seen = hashlib.sha256()
    while data := c.recv(65536): seen.update(data)
    c.sendall(seen.hexdigest().encode()); c.close()
"""


@pytest.fixture
def quick():
    """A node whose seconds are short."""
    with Node(words=["--second-us", "20000"]) as node:
        yield node


def state_of(node, sandbox) -> str:
    """As it is, without using it."""
    return node.raw("GET", f"/v1/sandboxes/{sandbox.id}").json["state"]


def start(sandbox, program: str, word: str = "listening"):
    """A program inside, once it has said the word."""
    process = sandbox.spawn(["python3", "-u", "-c", program])
    until(lambda: word in said(process), what=f"{word!r} of the program")
    return process


def connect(forward) -> socket.socket:
    return socket.create_connection((forward.host, forward.local_port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    out = b""
    while piece := connection.recv(65536):
        out += piece
    return out


@pytest.fixture
def echo(sandbox):
    start(sandbox, ECHO)
    with sandbox.forward_port(7000, local_port=0) as forward:
        yield forward


def test_bytes_go_both_ways_beyond_every_window(echo):
    sent = os.urandom(5 * 1024 * 1024)
    with connect(echo) as connection:
        writer = threading.Thread(target=lambda: (connection.sendall(sent), connection.shutdown(socket.SHUT_WR)))
        writer.start()
        assert hashlib.sha256(read_all(connection)).digest() == hashlib.sha256(sent).digest()
        writer.join()


def test_an_end_of_stream_is_passed_on_and_the_answer_still_comes(sandbox):
    start(sandbox, DIGEST)
    with sandbox.forward_port(7001, local_port=0) as forward:
        for size in (0, 10, 300_000):
            with connect(forward) as connection:
                sent = os.urandom(size)
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                assert read_all(connection).decode() == hashlib.sha256(sent).hexdigest()
        until(lambda: not forward._streams, what="the client lets go of streams that are done")


def test_many_connections_do_not_hold_each_other_up(echo):
    connections = [connect(echo) for _ in range(40)]
    # The first is never read from: what it is owed must not hold up the others.
    connections[0].sendall(b"x" * 400_000)
    for number, connection in enumerate(connections[1:]):
        connection.sendall(f"hello {number}".encode())
    for number, connection in enumerate(connections[1:]):
        assert connection.recv(100) == f"hello {number}".encode()
    for connection in connections:
        connection.close()


def test_a_port_that_nobody_listens_on_closes_the_connection_and_not_the_tunnel(sandbox):
    with sandbox.forward_port(7000, local_port=0) as forward:
        with connect(forward) as connection:
            assert connection.recv(10) == b""
        start(sandbox, ECHO)
        with connect(forward) as connection:
            connection.sendall(b"now")
            assert connection.recv(10) == b"now"


class Raw:
    """The frames themselves."""

    def __init__(self, sandbox):
        self.socket = sandbox._t.websocket(sandbox._path("/tunnel"), {})
        assert json.loads(self.socket.recv()) == {"type": "ready"}

    def send(self, kind: bytes, stream: int, payload: bytes = b"") -> None:
        self.socket.send(kind + struct.pack("!I", stream) + payload)

    def next(self):
        message = self.socket.recv()
        if not isinstance(message, bytes):
            return message
        return message[:1], struct.unpack("!I", message[1:5])[0], message[5:]

    def close(self):
        self.socket.close()


def test_what_is_no_tcp_port_is_refused_with_a_reason(sandbox):
    raw = Raw(sandbox)
    for number, (payload, reason) in enumerate([(b"ssh ssh-ed25519 AAAA", b"SSH"), (b"tcp 0", b"port"),
                                                (b"udp 7", b"tcp PORT"), (b"tcp 7999", b"refused")]):
        raw.send(b"o", number, payload)
        kind, stream, said_why = raw.next()
        assert (kind, stream) == (b"c", number) and reason in said_why, said_why
    raw.close()


def test_credit_counts_every_byte_that_was_passed_on(sandbox):
    start(sandbox, ECHO)
    raw = Raw(sandbox)
    raw.send(b"o", 1, b"tcp 7000")
    assert raw.next() == (b"o", 1, b"")
    for _ in range(16):
        raw.send(b"d", 1, b"y" * 65536)
    credit, echoed = 0, 0
    while credit < 1024 * 1024 - 128 * 1024 or echoed < 1024 * 1024:
        kind, stream, payload = raw.next()
        assert kind in (b"a", b"d")
        if kind == b"a":
            assert stream == 0 and len(payload) == 8
            assert struct.unpack("!Q", payload)[0] > credit
            credit = struct.unpack("!Q", payload)[0]
        else:
            echoed += len(payload)
    assert credit <= 1024 * 1024 and echoed == 1024 * 1024
    raw.send(b"e", 1)
    while (frame := raw.next())[0] == b"a":
        pass
    assert frame == (b"e", 1, b"")
    assert raw.next() == (b"c", 1, b"")
    raw.close()


def test_nonsense_ends_the_tunnel_with_a_word(sandbox):
    for nonsense in (b"", b"d\0", b"?\0\0\0\1", b"d\0\0\0\1" + b"z" * 200_000):
        raw = Raw(sandbox)
        raw.socket.send(nonsense)
        event = json.loads(raw.next())
        assert event["type"] == "error" and event["error"]["code"] == "invalid_request", event
        assert raw.socket.recv() is None
    assert sandbox.exec("echo fine").stdout == "fine\n"


def test_a_tunnel_needs_a_key_a_sandbox_and_an_upgrade(node, runtime, sandbox):
    path = f"/v1/sandboxes/{sandbox.id}/tunnel"
    assert node.raw("GET", path, key="wrong").status == 401
    assert node.raw("GET", path).error["code"] == "invalid_request"
    gone = runtime.sandboxes.create()
    gone.delete()
    with pytest.raises(SdkError, match="no sandbox"):
        gone.forward_port(7000, local_port=0)


def test_a_stopped_sandbox_ends_its_tunnels(sandbox):
    start(sandbox, ECHO)
    with sandbox.forward_port(7000, local_port=0) as forward:
        connection = connect(forward)
        connection.sendall(b"a")
        assert connection.recv(1) == b"a"
        sandbox.stop()
        assert connection.recv(1) == b""
        assert until(lambda: forward._mux.over, what="the tunnel has ended") == "the sandbox was stopped"


def test_a_pause_ends_connections_and_the_next_one_wakes(sandbox):
    start(sandbox, ECHO)
    with sandbox.forward_port(7000, local_port=0) as forward:
        with connect(forward) as held:
            held.sendall(b"a")
            assert held.recv(1) == b"a"
            sandbox.pause()
            assert held.recv(1) == b""
        with connect(forward) as connection:
            connection.sendall(b"b")
            assert connection.recv(1) == b"b"
        assert sandbox.refresh().state == "running"


def test_an_open_tunnel_is_use(quick):
    used, idle = (quick.client.sandboxes.create(idle_pause_seconds=60) for _ in range(2))
    with used.forward_port(7000, local_port=0):
        until(lambda: state_of(quick, idle) == "paused", seconds=30, what="the one that nobody uses is paused")
        assert state_of(quick, used) == "running"
    until(lambda: state_of(quick, used) == "paused", seconds=30, what="it is paused when the tunnel is closed")


# Says what its connection comes to, when told to look.
WATCHED = """
import socket, os, time
s = socket.create_server(('127.0.0.1', 7002))
print('listening', flush=True)
c, _ = s.accept()
c.sendall(b'hi'); print('accepted', flush=True)
while not os.path.exists('/workspace/look'): time.sleep(0.01)
seen = b''
try:
    while (data := c.recv(3)): seen += data
    print('end', seen, flush=True)
except OSError as error: print('error', error.errno, seen, flush=True)
try: c.sendall(b'more'); print('sent', flush=True)
except OSError as error: print('send error', error.errno, flush=True)
c.close()
c, _ = s.accept()
try: print('next', c.recv(10), flush=True)
except OSError as error: print('next error', error.errno, flush=True)
"""


def test_a_fork_keeps_the_source_connected_and_resets_the_copys_end(sandbox):
    watched = start(sandbox, WATCHED)
    with sandbox.forward_port(7002, local_port=0) as forward:
        held = connect(forward)
        assert held.recv(2) == b"hi"
        until(lambda: "accepted" in said(watched), what="the accept")
        held.sendall(b"unread")
        waiting = connect(forward)
        waiting.sendall(b"early")
        until(lambda: sandbox.exec("cat /proc/net/tcp").stdout.count(":1B5A 0100007F") >= 2, what="the backlog")
        copy = sandbox.fork()
        # The copy of a copy says the same: a reset that nobody has looked at is captured too.
        second = copy.fork()
        for fork in (copy, second):
            fork.files.write("/workspace/look", b"")
            process = fork.process(watched.id)
            out = until(lambda: "next" in (text := said(process)) and text, what="the copy's words")
            assert "error 104 b'unread'" in out, out
            assert "send error 32" in out, out
            assert "next error 104" in out, out
            fork.delete()
        held.sendall(b" on")
        held.shutdown(socket.SHUT_WR)
        sandbox.files.write("/workspace/look", b"")
        assert held.recv(4) == b"more"
        out = until(lambda: "next" in (text := said(watched)) and text, what="the source's words")
        assert "end b'unread on'" in out and "next b'early'" in out, out
        held.close()
        waiting.close()


def test_a_server_can_be_forked_while_it_is_hammered_from_outside(sandbox):
    start(sandbox, ECHO)
    stop = threading.Event()
    done, failed = [0] * 4, []

    def hammer(lane: int, forward) -> None:
        try:
            while not stop.is_set():
                with connect(forward) as connection:
                    for round_ in range(20):
                        sent = os.urandom(1 + (round_ * 9973) % 30_000)
                        connection.sendall(sent)
                        got = b""
                        while len(got) < len(sent):
                            piece = connection.recv(65536)
                            assert piece, "the connection was cut"
                            got += piece
                        assert got == sent
                        done[lane] += 1
        except Exception as error:  # noqa: BLE001, told below
            failed.append(error)

    with sandbox.forward_port(7000, local_port=0) as forward:
        threads = [threading.Thread(target=hammer, args=(lane, forward)) for lane in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            before = list(done)
            until(lambda: failed or all(now > then for now, then in zip(done, before)), what="every lane goes on")
            copy = sandbox.fork()
            with copy.forward_port(7000, local_port=0) as other, connect(other) as connection:
                connection.sendall(b"copy")
                assert connection.recv(4) == b"copy"
            copy.delete()
        stop.set()
        for thread in threads:
            thread.join()
    assert not failed, failed
