//! A sandbox for a test, and a peer that talks to its guest.

use branchbox_model::ExecId;
use branchbox_protocol::guest::{
    Call, Chunk, ExecInfo, ExecState, GuestConfig, GuestError, Reply, Request, Response, Role, SpawnSpec, Stdin, Stream,
};
use branchbox_protocol::{PROTOCOL_VERSION, Packet, recv_packet, send_packet};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait of any test for one answer.
const PATIENCE: Duration = Duration::from_secs(40);

/// A guest in its namespaces; all of it is gone when this is dropped.
pub struct Sandbox {
    child: Child,
    dir: PathBuf,
    cgroup: PathBuf,
    /// Where the guest listens.
    pub socket: PathBuf,
}

impl Sandbox {
    /// Starts one, not sealed yet.
    pub fn building(with_saved: bool) -> (Self, Peer) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bbx-guest-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        let cgroup = v2_mount().join(&name);
        std::fs::create_dir_all(dir.join("root")).unwrap();
        std::fs::create_dir_all(cgroup.join("work")).unwrap();
        let socket = dir.join("guest");
        let mut command = Command::new("unshare");
        command.args(["--pid", "--mount", "--fork"]).arg(std::env::current_exe().unwrap()).arg("process-1");
        command.args([dir.join("root"), socket.clone(), cgroup.join("work")]);
        if with_saved {
            command.arg("with-saved");
        }
        let sandbox = Self { child: command.spawn().unwrap(), dir, cgroup, socket };
        let mut keeper = sandbox.connect();
        keeper.hello(Role::Keeper).unwrap();
        (sandbox, keeper)
    }

    /// Starts one, sealed.
    pub fn start() -> (Self, Peer) {
        let (sandbox, mut keeper) = Self::building(false);
        keeper.done(Call::Seal(config()));
        let mut node = sandbox.connect();
        node.hello(Role::Node).unwrap();
        (sandbox, node)
    }

    /// A new connection, without its hello.
    pub fn connect(&self) -> Peer {
        let start = Instant::now();
        loop {
            if let Some(peer) = Peer::connect(&self.socket) {
                return peer;
            }
            assert!(start.elapsed() < PATIENCE, "the guest does not listen");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Host pid of the guest.
    pub fn pid(&self) -> u32 {
        let unshare = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap_or_default();
        // 0, which no signal is sent to, when it is gone.
        children.trim().parse().unwrap_or(0)
    }

    /// Names of the commands' cgroups.
    pub fn groups(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.cgroup.join("work")).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<String> =
            entries.filter(|e| e.path().is_dir()).map(|e| e.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Children of the guest, as (host pid, state letter).
    pub fn children(&self) -> Vec<(u32, char)> {
        let pid = self.pid();
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let state = |pid: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, stat.rsplit(") ").next()?.chars().next()?))
        };
        text.split_whitespace().filter_map(|pid| state(pid.parse().ok()?)).collect()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // The guest itself: what would end it with `unshare` is undone by the kernel when it acts as another user.
        let _ = branchbox_sys::spawn::send_signal(self.pid().cast_signed(), 9);
        let _ = self.child.wait();
        for name in self.groups() {
            wait_until("its cgroups go", || std::fs::remove_dir(self.cgroup.join("work").join(&name)).is_ok());
        }
        let _ = std::fs::remove_dir(self.cgroup.join("work"));
        let _ = std::fs::remove_dir(&self.cgroup);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn v2_mount() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).expect("a cgroup2 mount");
    line.split(' ').nth(1).unwrap().into()
}

/// Waits for a condition, with a bound.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The configuration that tests seal with.
pub fn config() -> GuestConfig {
    GuestConfig { env: vec![("FROM_SANDBOX".into(), "yes".into())], generation: "g1".into() }
}

/// A bash command of the sandbox's user.
pub fn bash(script: &str) -> SpawnSpec {
    argv(&["bash", "-c", script])
}

/// A command of the sandbox's user.
pub fn argv(argv: &[&str]) -> SpawnSpec {
    SpawnSpec {
        attached: false,
        argv: argv.iter().map(|arg| (*arg).to_owned()).collect(),
        cwd: "/workspace".into(),
        env: Vec::new(),
        env_clear: false,
        user: (1000, 1000),
        stdin: Stdin::Null,
        pty: None,
        timeout_ms: None,
        display: argv.join(" "),
        tag: "t".into(),
    }
}

/// What a command left.
#[derive(Debug)]
pub struct Ran {
    /// Its record at the end.
    pub info: ExecInfo,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// Output that was not kept.
    pub dropped: u64,
}

impl Ran {
    /// Standard output as text, without the last newline.
    pub fn out(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap().trim_end()
    }

    /// Standard error as text.
    pub fn err(&self) -> &str {
        std::str::from_utf8(&self.stderr).unwrap()
    }
}

/// One connection to a guest.
pub struct Peer {
    /// The socket.
    pub socket: OwnedFd,
    next_id: u64,
}

impl Peer {
    /// Connects, if somebody listens.
    pub fn connect(path: &Path) -> Option<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).unwrap();
        Some(Self { socket, next_id: 0 })
    }

    /// Says hello; `None` if that is not answered.
    pub fn hello(&mut self, role: Role) -> Option<()> {
        let id = self.send_with(Call::Hello { version: PROTOCOL_VERSION, role }, Vec::new())?;
        let (response, _) = self.receive()?;
        assert_eq!(response.id, id);
        matches!(response.result, Ok(Reply::Hello(PROTOCOL_VERSION))).then_some(())
    }

    /// Sends a call; gives its number.
    pub fn send(&mut self, call: Call) -> u64 {
        self.send_with(call, Vec::new()).unwrap()
    }

    /// Sends a call with descriptors.
    pub fn send_with(&mut self, call: Call, fds: Vec<OwnedFd>) -> Option<u64> {
        self.next_id += 1;
        let packet = Packet::fold(&Request { id: self.next_id, call }, fds).unwrap();
        let fds: Vec<_> = packet.fds.iter().map(AsFd::as_fd).collect();
        send_packet(&self.socket, &packet.bytes, &fds).ok()?;
        Some(self.next_id)
    }

    /// Receives an answer; `None` when the guest closed the connection.
    pub fn receive(&mut self) -> Option<(Response, Vec<OwnedFd>)> {
        let packet = recv_packet(&self.socket).ok()?.unfold().unwrap();
        Some((branchbox_protocol::decode(&packet.bytes).unwrap(), packet.fds))
    }

    /// A call and its answer, with descriptors.
    pub fn exchange(&mut self, call: Call, fds: Vec<OwnedFd>) -> (Result<Reply, GuestError>, Vec<OwnedFd>) {
        let id = self.send_with(call, fds).unwrap();
        let (response, fds) = self.receive().expect("an answer");
        assert_eq!(response.id, id);
        (response.result, fds)
    }

    /// A call and its answer.
    pub fn call(&mut self, call: Call) -> Result<Reply, GuestError> {
        self.exchange(call, Vec::new()).0
    }

    /// A call with nothing to say.
    pub fn done(&mut self, call: Call) {
        let reply = self.call(call);
        assert!(matches!(reply, Ok(Reply::Done)), "{reply:?}");
    }

    /// Starts a command.
    pub fn spawn(&mut self, spec: SpawnSpec) -> ExecId {
        match self.call(Call::Spawn(spec)) {
            Ok(Reply::Exec(info)) => info.exec,
            other => panic!("{other:?}"),
        }
    }

    /// A command's record, when it has ended or `wait_ms` are over.
    pub fn status(&mut self, exec: ExecId, wait_ms: u64) -> ExecInfo {
        match self.call(Call::Status { exec, wait_ms }) {
            Ok(Reply::Exec(info)) => info,
            other => panic!("{other:?}"),
        }
    }

    /// Reads output once.
    pub fn output(&mut self, exec: ExecId, cursor: u64, attached: bool) -> (Vec<Chunk>, u64, u64, ExecInfo) {
        match self.call(Call::Output { exec, cursor, bytes_max: 65536, wait_ms: 30_000, attached }) {
            Ok(Reply::Output { chunks, next_cursor, dropped, info }) => (chunks, next_cursor, dropped, info),
            other => panic!("{other:?}"),
        }
    }

    /// Reads output to the end, and checks that it is adjacent.
    pub fn read_all(&mut self, exec: ExecId, attached: bool) -> Ran {
        let (mut cursor, mut stdout, mut stderr, mut all_dropped) = (0, Vec::new(), Vec::new(), 0);
        loop {
            let (chunks, next, dropped, info) = self.output(exec, cursor, attached);
            all_dropped += dropped;
            let mut expected = cursor + dropped;
            for chunk in chunks {
                assert_eq!(chunk.offset, expected);
                expected += chunk.bytes.len() as u64;
                if chunk.stream == Stream::Stdout { &mut stdout } else { &mut stderr }.extend(chunk.bytes);
            }
            assert_eq!(next, expected);
            cursor = next;
            if info.state != ExecState::Running {
                assert_eq!(cursor, info.output_bytes);
                return Ran { info, stdout, stderr, dropped: all_dropped };
            }
        }
    }

    /// Runs a command to its end.
    pub fn run(&mut self, spec: SpawnSpec) -> Ran {
        let exec = self.spawn(spec);
        self.read_all(exec, true)
    }
}
