"""Processes on a terminal: what a person at a keyboard expects."""
import pytest
from support.wait import until
from withruntime import ConflictError


class Typist:
    """Types at a process, and reads what it shows."""

    def __init__(self, node, sandbox, command, **more):
        self.node, self.base = node, f"/v1/sandboxes/{sandbox.id}/processes"
        self.info = node.raw("POST", self.base, {"argv": command, "stdinMode": "pipe", "pty": {"cols": 80, "rows": 24}, **more}).json
        self.path, self.typed = f"{self.base}/{self.info['id']}", 0

    def type(self, text: str) -> None:
        answer = self.node.raw("POST", f"{self.path}:write", {"data": text, "offset": self.typed})
        assert answer.status == 200, answer.body
        self.typed = answer.json["offset"]

    def shown(self) -> str:
        answer = self.node.raw("GET", f"{self.path}/output?cursor=0&maxBytes=1000000").json
        assert all(chunk["stream"] == "stdout" for chunk in answer["chunks"]), "a terminal has one stream"
        return "".join(chunk["text"] for chunk in answer["chunks"])

    def until(self, text: str) -> str:
        return until(lambda: text in self.shown() and self.shown(), what=f"{text!r} is shown; it shows {self.shown()!r}")

    def resize(self, cols, rows):
        return self.node.raw("POST", f"{self.path}:resize", {"cols": cols, "rows": rows})

    @property
    def state(self):
        return self.node.raw("GET", self.path).json


def test_a_shell_on_a_terminal(node, sandbox):
    shell = Typist(node, sandbox, ["bash", "--norc"])
    assert shell.info["pty"] == {"cols": 80, "rows": 24} and shell.info["stdinOpen"] is True
    shell.type("tty; stty size; echo $TERM; stat -c '%U %G %a' $(tty); test -t 0 -a -t 1 -a -t 2 && echo 'all'' three'\n")
    seen = shell.until("all three")
    assert "/dev/pts/0" in seen and "24 80" in seen and "xterm-256color" in seen and "runtime tty 620" in seen
    shell.type("exit 7\n")
    until(lambda: shell.state["state"] == "exited")
    assert shell.state["exitCode"] == 7


def test_it_hears_of_its_size(node, sandbox):
    watcher = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
    shell = Typist(node, sandbox, ["bash", "-c", watcher])
    shell.until("ready")
    assert shell.resize(120, 40).status == 200
    shell.until("40 120")
    assert shell.state["pty"] == {"cols": 120, "rows": 40}
    for cols, rows in ((0, 1), (1, 5000), ("x", 1)):
        assert shell.resize(cols, rows).error["code"] == "invalid_request"
    plain = sandbox.spawn("sleep 100")
    refused = node.raw("POST", f"{shell.base}/{plain.id}:resize", {"cols": 1, "rows": 1})
    assert refused.error["code"] == "invalid_request" and "no terminal" in refused.error["message"]


def test_control_keys_do_what_they_do(node, sandbox):
    shell = Typist(node, sandbox, ["bash", "--norc", "-i"])
    shell.type("sleep 1000\n")
    until(lambda: sandbox.exec("pgrep -x sleep").stdout)
    shell.type("\x03echo code $?\n")
    shell.until("code 130")
    shell.type("sleep 1001\n")
    until(lambda: sandbox.exec("pgrep -x sleep").stdout)
    shell.type("\x1a")
    shell.until("Stopped")
    shell.type("bg; jobs\n")
    shell.until("Running")
    shell.type("kill %1; fg; echo 'over'' now'\n")
    shell.until("over now")
    shell.type("\x04")
    until(lambda: shell.state["state"] == "exited")


def test_the_end_of_input_is_an_end_there_too(node, sandbox):
    cat = Typist(node, sandbox, ["cat"])
    cat.type("one\n")
    cat.until("one\r\none\r\n")
    node.raw("POST", f"{cat.path}:write", {"data": "", "offset": cat.typed, "eof": True})
    until(lambda: cat.state["state"] != "running")
    assert (cat.state["state"], cat.state["exitCode"]) == ("exited", 0)


def test_a_terminal_that_nobody_holds_open_stays_one(node, sandbox):
    closed = "exec </dev/null >/dev/null 2>/dev/null; sleep 0.3; "
    shell = Typist(node, sandbox, ["bash", "-c", f"trap 'exit 9' HUP; {closed} echo 'back'' again' >/dev/tty; {closed} exit 7"])
    node.raw("POST", f"{shell.path}:write", {"data": "", "offset": 0, "eof": True})
    shell.until("back again")
    until(lambda: shell.state["state"] != "running")
    assert (shell.state["state"], shell.state["exitCode"]) == ("exited", 7)


def test_a_full_screen_program(node, sandbox):
    program = ("import curses\ndef main(screen):\n    screen.addstr(2, 3, 'hello %d %d' % screen.getmaxyx())\n    screen.refresh()\n"
               "    screen.addstr(4, 3, 'key %r' % screen.getkey())\n    screen.refresh()\n    screen.getkey()\ncurses.wrapper(main)\n")
    shell = Typist(node, sandbox, ["python3", "-c", program])
    shell.until("hello 24 80")
    shell.type("q")
    shell.until("key 'q'")
    shell.type("q")
    until(lambda: shell.state["state"] == "exited")
    assert shell.state["exitCode"] == 0


def test_a_hang_up_ends_everything(node, sandbox):
    shell = Typist(node, sandbox, ["bash", "-c", "sleep 1002 & sleep 1003"])
    until(lambda: len(sandbox.exec("pgrep -x sleep").stdout.split()) == 2)
    node.raw("POST", f"{shell.path}:signal", {"signal": "SIGKILL"})
    until(lambda: shell.state["state"] == "killed")
    assert sandbox.exec("pgrep -x sleep").stdout == ""


def test_many_come_and_go(node, sandbox):
    for number in range(40):
        shell = Typist(node, sandbox, ["bash", "-c", f"tty; echo n{number}"])
        shell.until(f"n{number}")
        until(lambda: shell.state["state"] == "exited")
        assert "/dev/pts/0" in shell.shown(), "the one before it is gone"


def test_a_capture_refuses_a_terminal_by_name_and_harms_nobody(node, sandbox):
    shell = Typist(node, sandbox, ["bash", "--norc"])
    shell.type("echo 're'ady\n")
    shell.until("ready")
    with pytest.raises(ConflictError) as refused:
        sandbox.fork()
    assert refused.value.code == "capture_refused" and "terminal" in str(refused.value)
    shell.type("echo still 'he're\n")
    shell.until("still here")
