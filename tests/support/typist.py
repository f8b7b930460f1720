"""A person at a terminal: a program on a pseudo-terminal, what it shows, and what is typed at it."""
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time


class Person:
    """Runs a program on a terminal of ours; its terminal's settings can be compared before and after."""

    def __init__(self, argv: list[str], *, cols: int = 80, rows: int = 24, env=None) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(cols, rows, tell=False)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(argv, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=env,
                                        start_new_session=True)

    def resize(self, cols: int, rows: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def read(self, seconds: float) -> bool:
        if select.select([self.master], [], [], seconds)[0]:
            self.seen += os.read(self.master, 65536)
            return True
        return False

    def until(self, text: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} was not shown; this was: {self.seen!r}"
            self.read(0.1)

    def end(self, seconds: float = 30) -> int:
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; it shows {self.seen!r}"
            self.read(0.05)
        while self.read(0):
            pass
        return self.process.returncode

    @property
    def is_as_before(self) -> bool:
        """Whether the terminal's settings are those from before the program."""
        return termios.tcgetattr(self.slave) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def __enter__(self) -> "Person":
        return self

    def __exit__(self, *_) -> None:
        self.close()
