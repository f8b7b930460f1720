"""Terminals over a WebSocket: what is typed and shown, sizes, ends, and coming back."""
import json

import pytest
from support.wait import until
from withruntime._errors import RuntimeError as SdkError


class Screen:
    """A terminal and all that it has shown."""

    def __init__(self, sandbox, **options) -> None:
        self.terminal = sandbox.terminal(**options)
        self.text = ""

    def until(self, word: str) -> str:
        """Reads until the word is there; gives what came before it."""
        while word not in self.text:
            piece = self.terminal.recv()
            assert piece is not None, f"it ended before {word!r}; it said {self.text!r}"
            self.text += piece.decode(errors="replace")
        before, _, self.text = self.text.partition(word)
        return before

    def end(self) -> str:
        while (piece := self.terminal.recv()) is not None:
            self.text += piece.decode(errors="replace")
        return self.text

    def type(self, text: str) -> None:
        self.terminal.write(text)


@pytest.fixture
def shell(sandbox):
    screen = Screen(sandbox)
    screen.type("bind 'set enable-bracketed-paste off'; PS1=; stty -echo; echo read''y\n")
    screen.until("ready\r\n")
    yield screen
    screen.terminal.close()


def test_a_shell_is_typed_into_and_ends_with_its_code(shell):
    shell.type("tty; echo $TERM; stty size; whoami; shopt -q login_shell && echo login; ps -o tpgid= $$\n")
    lines = shell.until("login\r\n").split()
    assert lines[0].startswith("/dev/pts/") and lines[1:] == ["xterm-256color", "24", "80", "runtime"]
    shell.type("exit 7\n")
    shell.end()
    assert shell.terminal.exit_code == 7


def test_the_size_is_as_asked_and_follows(sandbox):
    screen = Screen(sandbox, cols=100, rows=30, command="trap 'stty size' WINCH; stty size; echo up; while sleep 0.05; do :; done")
    assert "30 100" in screen.until("up")
    screen.terminal.resize(132, 50)
    screen.until("50 132")
    info = sandbox.process(screen.terminal.process_id).refresh()
    assert info["pty"] == {"cols": 132, "rows": 50}
    screen.terminal.close()


def test_keys_interrupt_and_stop(shell):
    job = "sh -c 'echo going; exec sleep 100'\n"
    shell.type(job)
    shell.until("going\r\n")
    shell.type("\x03")
    shell.type("echo code=$?\n")
    shell.until("code=130")
    shell.type(job)
    shell.until("going\r\n")
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("jobs; kill %1; cat; echo after-cat\n")
    shell.type("typed\n")
    shell.until("typed")
    shell.type("\x04")
    shell.until("after-cat")


def test_the_command_the_directory_and_the_user_are_as_asked(sandbox):
    screen = Screen(sandbox, command="id -un; pwd; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; exit 3", cwd="/tmp", user="root")
    assert screen.end().split() == ["root", "/tmp", "all"]
    assert screen.terminal.exit_code == 3
    screen = Screen(sandbox, command="kill -9 $$")
    screen.end()
    assert screen.terminal.exit_code == -9


def test_much_is_shown_and_typed_without_loss(sandbox):
    screen = Screen(sandbox, command="stty raw -echo; echo up; head -c 300000 | md5sum; seq 100000; echo done")
    screen.until("up")
    data = bytes(33 + number * 7 % 90 for number in range(300_000))
    for at in range(0, len(data), 50_000):
        screen.type(data[at:at + 50_000].decode())
    import hashlib
    assert hashlib.md5(data).hexdigest() in screen.until("  -")
    shown = screen.until("done").split()
    assert shown == [str(number) for number in range(1, 100_001)]


def test_a_closed_socket_leaves_the_process_and_it_can_be_sat_down_at_again(sandbox):
    first = Screen(sandbox, cols=120, rows=40)
    first.type("PS1=; echo remem''ber; cd /tmp; here=1\n")
    first.until("remember")
    first.terminal.close()
    process = sandbox.process(first.terminal.process_id)
    assert process.refresh()["state"] == "running"
    second = Screen(sandbox, process_id=first.terminal.process_id)
    assert second.terminal.process_id == first.terminal.process_id
    second.until("remember")
    second.type("echo [$here $PWD $(stty size)]\n")
    second.until("[1 /tmp 40 120]")
    # Two may sit at one terminal.
    third = Screen(sandbox, process_id=first.terminal.process_id, cols=90, rows=20)
    third.type("echo bo''th\n")
    third.until("both")
    second.until("both")
    second.type("stty size; exit\n")
    second.until("20 90")
    for screen in (second, third):
        screen.end()
        assert screen.terminal.exit_code == 0


def test_what_cannot_be_opened_says_why(node, runtime, sandbox):
    piped = sandbox.spawn(["sleep", "100"])
    for options, word in [({"process_id": "p99"}, "no process"), ({"process_id": piped.id}, "no terminal"),
                          ({"cols": 0}, "cols"), ({"cwd": "here"}, "cwd"), ({"process_id": piped.id, "command": "ls"}, "processId")]:
        with pytest.raises(SdkError, match=word):
            sandbox.terminal(**options)
    path = f"/v1/sandboxes/{sandbox.id}/terminal"
    assert node.raw("GET", path, key="wrong").status == 401
    assert node.raw("GET", path).error["code"] == "invalid_request"
    gone = runtime.sandboxes.create()
    gone.delete()
    with pytest.raises(SdkError, match="no sandbox"):
        gone.terminal()


def test_a_program_that_cannot_run_says_so_on_the_screen(sandbox):
    screen = Screen(sandbox, command="no-such-program")
    assert "not found" in screen.end() and screen.terminal.exit_code == 127
    screen = Screen(sandbox, cwd="/nowhere")
    assert "/nowhere" in screen.end() and screen.terminal.exit_code != 0


def test_a_sandbox_has_twelve_terminals_and_then_answers_429(node, sandbox):
    screens = [Screen(sandbox, command="sleep 100") for _ in range(12)]
    with pytest.raises(ConnectionRefusedError, match="429"):
        sandbox.terminal()
    screens.pop().terminal.close()
    until(lambda: opens(sandbox), what="a place is free again")
    for screen in screens:
        screen.terminal.close()


def opens(sandbox) -> bool:
    try:
        sandbox.terminal(command="true").close()
        return True
    except ConnectionRefusedError:
        return False


def test_nonsense_ends_the_socket_and_not_the_process(sandbox):
    screen = Screen(sandbox, command="echo up; sleep 100")
    screen.until("up")
    screen.terminal._socket.send(json.dumps({"type": "resize", "cols": "wide"}))
    event = json.loads(screen.terminal._socket.recv())
    assert event["type"] == "error" and event["error"]["code"] == "invalid_request"
    assert screen.terminal._socket.recv() is None
    assert sandbox.process(screen.terminal.process_id).refresh()["state"] == "running"
