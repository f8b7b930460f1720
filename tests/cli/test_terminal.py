"""`shell`, `logs -f` and the look of things on a real terminal; and tunnels."""
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading

import pytest
from support.node import BINARY
from support.typist import Person
from support.wait import until


@pytest.fixture(scope="module")
def web(node):
    sandbox_id = node.cli("create", "--name", "web").stdout.strip()
    yield sandbox_id
    node.client.sandboxes.delete(sandbox_id)


def words(node, verb, *rest) -> list[str]:
    return [BINARY, verb, "--state-dir", str(node.state_dir), *rest]


def test_a_shell_is_a_terminal(node, web):
    with Person(words(node, "shell", "web"), cols=100, rows=30) as person:
        person.type("stty size; tty; echo over'' $((6*7))\r")
        person.until("over 42")
        assert b"30 100" in person.seen and b"/dev/pts/" in person.seen and not person.is_as_before
        person.resize(120, 40)
        person.type("until [ \"$(stty size)\" = '40 120' ]; do sleep 0.05; done; echo size'' told\r")
        person.until("size told")
        person.type("sleep 1000\r")
        until(lambda: node.cli("exec", "web", "--", "pgrep -x sleep", check=False).stdout)
        person.type("\x03")
        person.type("echo code'' $?\r")
        person.until("code 130")
        person.type("exit 7\r")
        assert person.end() == 7 and person.is_as_before


def test_a_command_on_a_terminal_and_its_signal(node, web):
    with Person(words(node, "shell", "web", "--command", "test -t 0 && test -t 1 && echo all right; kill -9 $$")) as person:
        assert person.end() == 137 and b"all right" in person.seen and person.is_as_before


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_is_put_back_when_a_signal_ends_it(node, web, end):
    with Person(words(node, "shell", "web")) as person:
        person.type("echo here'' now\r")
        person.until("here now")
        assert not person.is_as_before
        person.process.send_signal(end)
        assert person.end() == 130 and person.is_as_before


def test_a_shell_can_be_gone_back_to(node, web):
    process = node.cli("spawn", "web", "--pty", "--", "bash --norc").stdout.strip()
    with Person(words(node, "shell", "web", "--process", process)) as person:
        person.type("left=behind\r")
        person.type("echo first'' $left\r")
        person.until("first behind")
        person.process.terminate()
        assert person.end() == 130
    with Person(words(node, "shell", "web", "--process", process)) as person:
        person.type("echo second'' $left\r")
        person.until("second behind")
        person.type("exit 3\r")
        assert person.end() == 3


def test_what_is_piped_in_is_typed(node, web):
    for _ in range(10):  # what is still typed while the shell ends must not hide how it ended
        ran = subprocess.run(words(node, "shell", "web", "--command", "bash --norc"), input=b"echo piped'' in\nexit 5\n",
                             capture_output=True, timeout=60, check=False)
        assert ran.returncode == 5 and b"piped in" in ran.stdout, ran.stderr


def test_a_shell_that_cannot_be_leaves_the_terminal_alone(node, web):
    with Person(words(node, "shell", "web", "--cwd", "/no/such/place")) as person:
        assert person.end() == 1 and b"/no/such/place" in person.seen and person.is_as_before
    with Person(words(node, "shell", "web", "--process", "p999")) as person:
        assert person.end() == 1 and b"p999" in person.seen and person.is_as_before


def test_logs_are_followed_on_a_terminal(node, web):
    node.cli("exec", "web", "--", "test -p gate || mkfifo gate")
    process = node.cli("spawn", "web", "--", "echo one; read -r line < gate; echo $line; exit 4").stdout.strip()
    with Person(words(node, "logs", "web", process, "-f")) as person:
        person.until("one")
        node.cli("exec", "web", "--", "echo two > gate")
        assert person.end() == 4 and b"two" in person.seen


def test_colours_are_for_terminals_that_want_them(node, web):
    with Person(words(node, "ls")) as person:
        assert person.end() == 0 and b"\x1b[1m" in person.seen
    with Person(words(node, "ls"), env={**os.environ, "NO_COLOR": "1"}) as person:
        assert person.end() == 0 and b"\x1b" not in person.seen and b"web" in person.seen


@contextlib.contextmanager
def forwarded(node, ports):
    command = words(node, "port-forward", "web", ports, "--json")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        value, text = None, ""
        while value is None:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
            with contextlib.suppress(json.JSONDecodeError):
                value = json.loads(text)
        host, port = value["address"].rsplit(":", 1)
        yield (host, int(port)), process
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 130


def everything(connection: socket.socket) -> bytes:
    out = b""
    while piece := connection.recv(65536):
        out += piece
    return out


ECHO = """
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        total = b""
        while piece := self.request.recv(65536):
            total += piece
        self.request.sendall(total)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address, daemon_threads = True, True
    request_queue_size = 100
Server(("127.0.0.1", 7777), Echo).serve_forever()
"""


def test_a_port_leads_into_the_sandbox(node, web):
    node.client.sandboxes.get(web).files.write("/workspace/echo.py", ECHO)
    server = node.cli("spawn", "web", "--", "exec python3 echo.py").stdout.strip()
    with forwarded(node, "0:7777") as (address, _):
        def answers():
            with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=30) as connection:
                connection.sendall(b"x")
                connection.shutdown(socket.SHUT_WR)
                return everything(connection) == b"x"
        until(answers, seconds=30)
        payload = os.urandom(5_000_000)
        with socket.create_connection(address, timeout=60) as connection:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)
            assert everything(connection) == payload, "more than the window, both ways, and an end of one side alone"
        failures = []

        def one(number: int) -> None:
            sent, got = bytes([number]) * 100_000, b""
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=120) as connection:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                got = everything(connection)
            if got != sent:
                failures.append((number, len(got)))
        threads = [threading.Thread(target=one, args=(number,)) for number in range(80)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, f"{failures}: more connections than a node allows at once wait their turn"
    node.cli("kill", "web", server)


def test_a_port_where_nobody_listens_ends_its_connection_and_not_the_others(node, web):
    with forwarded(node, "0:7999") as (address, process):
        for _ in range(2):
            with socket.create_connection(address, timeout=30) as connection:
                with pytest.raises(ConnectionResetError):
                    everything(connection)
        assert process.poll() is None


def test_a_port_here_that_is_taken_is_said(node, web):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = node.cli("port-forward", "web", f"{taken.getsockname()[1]}:80", check=False)
    assert ran.returncode == 1 and ran.stdout == "" and "cannot listen" in ran.stderr
    assert node.cli("port-forward", "nobody", "0:80", check=False).returncode == 1
    assert node.cli("port-forward", "web", "80:0", check=False).returncode == 2
