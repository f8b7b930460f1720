//! Machines with processes in them: captured, restored beside their source, and looked at from inside.

use crate::state::{Guest, State, ended};
use branchbox_protocol::guest::ExecState;
use branchbox_protocol::keeper::{Call, CaptureReport, Reply};
use branchbox_testkit::harness::Test;

pub const TESTS: &[Test] = &[
    ("a_shell_with_a_sleeping_child_goes_on_in_a_copy", shell),
    ("a_python_program_counts_on_in_source_and_copy", python),
    ("threads_locks_and_sockets_go_on_in_a_copy", zoo),
    ("unix_sockets_keep_bytes_names_and_peer_credentials", unix),
];

const RUNTIME: (u32, u32) = (1000, 1000);

pub fn capture(state: &State, keeper: &mut crate::state::Keeper, name: &str) -> CaptureReport {
    let (image, layer) = (state.directory.join(name), state.pool.layer_path(name).unwrap());
    match keeper.call(Call::Capture { image: Some(image), layer }) {
        Ok(Reply::Captured(report)) => report,
        other => panic!("{other:?}\n{}", state.log()),
    }
}

/// Runs `setup` in a sandbox, captures it, and gives source and copy to `check`.
fn in_both(state: &State, setup: &[&str], ready: &str, check: impl Fn(&mut Guest, bool)) {
    let (mut child, mut keeper, _) = state.running();
    let mut guest = state.guest();
    let execs: Vec<_> = setup.iter().map(|script| guest.spawn(script, RUNTIME)).collect();
    assert_eq!(
        guest.run(&format!("for i in $(seq 100); do {ready} && echo ready && exit; sleep 0.1; done"), RUNTIME),
        "ready"
    );
    let report = capture(state, &mut keeper, "l1");
    println!(
        "capture: pause {} us, total {} us, {} bytes, {} processes, {} threads",
        report.pause_us, report.total_us, report.memory_bytes, report.processes, report.threads
    );
    check(&mut guest, false);
    let copy = state.copy(&state.directory.join("l1"), "l1");
    let (mut copy_child, mut copy_keeper, running) = copy.running();
    println!("restore: {} us", running.start_us);
    let mut copied = copy.guest();
    for exec in &execs {
        assert_eq!(copied.state(*exec), ExecState::Running, "{exec} in the copy");
        assert_eq!(guest.state(*exec), ExecState::Running, "{exec} in the source");
    }
    check(&mut copied, true);
    check(&mut guest, false);
    for (keeper, child) in [(&mut keeper, &mut child), (&mut copy_keeper, &mut copy_child)] {
        keeper.call(Call::Shutdown).unwrap();
        assert!(ended(child).success());
    }
}

fn shell() {
    let state = &State::new();
    in_both(state, &["sleep 1000; echo never"], "pgrep -x sleep >/dev/null", |guest, _| {
        assert_eq!(guest.run("pgrep -x sleep | wc -l; ps -o stat= -C sleep | cut -c1", RUNTIME), "1\nS");
    });
}

const COUNTER: &str = r#"exec python3 -u -c '
import time, os
n = 0
while True:
    n += 1
    open("count.new", "w").write(str(n)); os.rename("count.new", "count")
    time.sleep(0.01)
'"#;

fn python() {
    let state = &State::new();
    let ticks = "a=$(cat count); sleep 0.3; b=$(cat count); test $b -gt $a && test $a -gt 0 && echo ticks";
    in_both(state, &[COUNTER], "test -e count", |guest, _| assert_eq!(guest.run(ticks, RUNTIME), "ticks"));
}

const SERVER: &str = r#"exec python3 -u -c '
import http.server, threading, sqlite3, os, time, tempfile, socket
db = sqlite3.connect("state.db", check_same_thread=False, isolation_level=None)
db.execute("pragma journal_mode=wal"); db.execute("create table t(n)")
hits = [0]
gone = open("gone", "w+"); gone.write("deleted content"); gone.flush(); os.unlink("gone")
left, right = socket.socketpair(); left.send(b"in flight")
ticks = [0]
def tick():
    while True: ticks[0] += 1; time.sleep(0.01)
for _ in range(3): threading.Thread(target=tick, daemon=True).start()
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        hits[0] += 1
        gone.seek(0)
        try: note = db.execute("insert into t values (?)", (hits[0],)) and "db ok"
        except Exception as e: note = repr(e)
        peek = right.recv(100, socket.MSG_PEEK).decode()
        body = f"{hits[0]} {gone.read()} {note} {peek} {len(threading.enumerate())}".encode()
        self.send_response(200); self.send_header("content-length", str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), H)
open("up", "w")
s.serve_forever()
'"#;

const LOOP: &str = r#"exec python3 -u -c '
import socket, threading, time
server = socket.create_server(("127.0.0.1", 9090))
def serve():
    c, _ = server.accept(); n = 0
    while True:
        d = c.recv(1)
        n += 1; c.send(bytes([n % 251]))
threading.Thread(target=serve, daemon=True).start()
c = socket.create_connection(("127.0.0.1", 9090)); n = 0
while True:
    c.send(b"x"); got = c.recv(1)[0]; n += 1
    assert got == n % 251, (got, n)
    open("loop", "w").write(str(n)); time.sleep(0.01)
'"#;

const PIPELINE: &str =
    "while sleep 0.02; do echo tick; done | while read x; do n=$((n+1)); echo $n > pipe.new; mv pipe.new pipe; done";

const NODE: &str = r#"exec node -e '
const { Worker } = require("worker_threads");
let n = 0;
const w = new Worker("const {parentPort}=require(\"worker_threads\"); parentPort.on(\"message\", m => parentPort.postMessage(m+1))", {eval: true});
require("http").createServer((q, r) => { w.once("message", m => { n = m; r.end(String(n)); }); w.postMessage(n); }).listen(8081, "127.0.0.1", () => require("fs").writeFileSync("node-up", ""));
'"#;

fn zoo() {
    let state = &State::new();
    let ready = "test -e up -a -e loop -a -e pipe -a -e node-up";
    let moving = |file: &str| format!("a=$(cat {file}); sleep 0.4; b=$(cat {file}); test $b -gt $a && echo moves");
    let hits = std::cell::RefCell::new([0u32; 2]);
    in_both(state, &[SERVER, LOOP, PIPELINE, NODE], ready, |guest, copy| {
        // The copy began with what the source had answered at the capture, which was nothing.
        let own = &mut hits.borrow_mut()[usize::from(copy)];
        *own += 1;
        let answer = guest.run("curl -s --max-time 5 http://127.0.0.1:8080/", RUNTIME);
        assert_eq!(answer, format!("{own} deleted content db ok in flight 5"), "copy: {copy}");
        assert_eq!(guest.run("curl -s --max-time 5 http://127.0.0.1:8081/", RUNTIME), own.to_string(), "copy: {copy}");
        for file in ["loop", "pipe"] {
            assert_eq!(guest.run(&moving(file), RUNTIME), "moves", "{file}, copy: {copy}");
        }
    });
}

/// Answers `ask` on a named pipe with everything it can see of its sockets.
const UNIX: &str = r#"exec python3 -u -c '
import os, socket, struct
cred = lambda s: struct.unpack("3i", s.getsockopt(1, 17, 12))
a, b = socket.socketpair(); a.send(b"one"); a.send(b"two")
d, e = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); d.send(b"m1"); d.send(b"m2")
srv = socket.socket(socket.AF_UNIX); srv.bind("/workspace/srv"); srv.listen(3); os.chmod("/workspace/srv", 0o640)
pid = os.fork()
if pid == 0:
    c = socket.socket(socket.AF_UNIX); c.connect("/workspace/srv"); c.send(b"from child")
    os.mkfifo("/workspace/q2")
    while True:
        with open("/workspace/q2") as f: f.read()
        with open("/workspace/r2", "w") as f: print(cred(c)[0] == os.getppid(), c.getpeername(), file=f)
conn, _ = srv.accept()
os.mkfifo("/workspace/q"); os.mkfifo("/workspace/r"); 
while not os.path.exists("/workspace/q2"): pass
os.mkfifo("/workspace/r2")
h = socket.socket(); g1, g2 = socket.socketpair(); g1.shutdown(socket.SHUT_WR)
open("/workspace/unix-up", "w")
while True:
    with open("/workspace/q") as f: f.read()
    me = os.getpid()
    with open("/workspace/r", "w") as f:
        print(b.recv(99, socket.MSG_PEEK), e.recv(99, socket.MSG_PEEK), conn.recv(99, socket.MSG_PEEK), cred(a)[0] == me, cred(a)[1:],
              cred(conn)[0] == pid, conn.getsockname(), oct(os.stat("/workspace/srv").st_mode), g2.recv(9), file=f)
'"#;

fn unix() {
    let state = &State::new();
    let expected = "b'onetwo' b'm1' b'from child' True (1000, 1000) True /workspace/srv 0o140640 b''";
    in_both(state, &[UNIX], "test -e unix-up", |guest, copy| {
        let asked = guest.run("timeout 5 bash -c 'echo > q; cat r'; timeout 5 bash -c 'echo > q2; cat r2'", RUNTIME);
        assert_eq!(asked, format!("{expected}\nTrue /workspace/srv"), "copy: {copy}");
        let fresh =
            "import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"/workspace/srv\"); print(\"connected\")";
        assert_eq!(guest.run(&format!("python3 -c '{fresh}'"), RUNTIME), "connected", "copy: {copy}");
    });
}
