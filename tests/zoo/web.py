"""The zoo's web server: a counter in memory, ticking threads and a SQLite database in WAL mode, in one process."""
import http.server
import json
import os
import secrets
import sqlite3
import sys
import threading
import time

HOME = sys.argv[1]
PORT = 8101
TICK_SECONDS = 0.02


class State:
    """Everything that must survive a capture, with the moments at which something looked wrong."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counter = 0
        self.ticks = [0, 0, 0]
        self.secret = secrets.token_hex(16)
        self.errors: list[str] = []
        self.last_monotonic = time.monotonic()
        self.path = os.path.join(HOME, "web.db")
        self.database = sqlite3.connect(self.path, timeout=30, check_same_thread=False, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA wal_autocheckpoint=50")
        self.database.execute("CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, amount INTEGER, note TEXT)")

    def add(self, amount: int, note: str) -> None:
        with self.lock:
            self.counter += amount
            self.database.execute("INSERT INTO entries (amount, note) VALUES (?, ?)", (amount, note))

    def view(self) -> dict:
        with self.lock:
            rows, total = self.database.execute("SELECT count(*), coalesce(sum(amount), 0) FROM entries").fetchone()
            notes = [row[0] for row in self.database.execute("SELECT DISTINCT note FROM entries ORDER BY note")]
            mode = self.database.execute("PRAGMA journal_mode").fetchone()[0]
            check = self.database.execute("PRAGMA integrity_check").fetchone()[0]
        return {"counter": self.counter, "ticks": list(self.ticks), "secret": self.secret, "rows": rows, "total": total,
                "notes": notes, "journal": mode, "integrity": check, "pid": os.getpid(), "errors": self.errors,
                "threads": threading.active_count()}


STATE = State()


def tick_by_sleeping() -> None:
    while True:
        time.sleep(TICK_SECONDS)
        STATE.ticks[0] += 1
        now = time.monotonic()
        if now < STATE.last_monotonic:
            STATE.errors.append("monotonic time ran back")
        STATE.last_monotonic = now


def tick_by_waiting(never: threading.Event) -> None:
    """Waits on a condition with a timeout: a futex call that a stop interrupts."""
    while not never.wait(TICK_SECONDS):
        STATE.ticks[1] += 1


def tick_by_database() -> None:
    """Writes all the time, so that a capture falls into a transaction sooner or later."""
    own = sqlite3.connect(STATE.path, timeout=30, isolation_level=None)
    own.execute("CREATE TABLE IF NOT EXISTS beats (id INTEGER PRIMARY KEY, at REAL)")
    while True:
        time.sleep(TICK_SECONDS)
        try:
            own.execute("INSERT INTO beats (at) VALUES (?)", (time.time(),))
            own.execute("DELETE FROM beats WHERE id <= (SELECT max(id) FROM beats) - 100")
            STATE.ticks[2] += 1
        except sqlite3.Error as error:
            STATE.errors.append(f"beats: {error!r}")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(STATE.view())

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        STATE.add(order["amount"], order["note"])
        self.answer(STATE.view())

    def answer(self, value: dict) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_) -> None:
        pass


for target, arguments in ((tick_by_sleeping, ()), (tick_by_waiting, (threading.Event(),)), (tick_by_database, ())):
    threading.Thread(target=target, args=arguments, daemon=True).start()
http.server.ThreadingHTTPServer.allow_reuse_address = True
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
