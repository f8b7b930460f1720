//! A state directory with one sandbox in it, and what a node does with it: start a keeper, talk to keeper and guest.

use branchbox_layers::{HostImage, Pool, PoolOptions};
use branchbox_model::{ExecId, IdRange, Limits, MemoryMib, PoolDriver, SandboxId, Vcpus};
use branchbox_protocol::guest::{self, ExecState, SpawnSpec, Stdin};
use branchbox_protocol::keeper::{self, KeeperConfig, KeeperError, Running, Start};
use branchbox_protocol::{PROTOCOL_VERSION, Packet, decode, encode, recv_packet, send_packet};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

pub struct State {
    pub directory: PathBuf,
    pub pool: Pool,
    pub config: KeeperConfig,
    /// Variables that keepers are started with, beside the test's own.
    pub environment: Vec<(&'static str, PathBuf)>,
    started: RefCell<Vec<u32>>,
    /// Whether the directory goes with this value: it is the first one's.
    is_owner: bool,
}

impl State {
    /// A state directory whose pool keeps inode numbers.
    pub fn new() -> Self {
        Self::with_driver(None)
    }

    /// One whose pool is plain directories, as `try` has it.
    pub fn plain() -> Self {
        Self::with_driver(Some(PoolDriver::Plain))
    }

    fn with_driver(driver: Option<PoolDriver>) -> Self {
        let id = SandboxId::generate();
        let directory = std::env::temp_dir().join(format!("bbx-keeper-{id}"));
        let sandbox_dir = directory.join("sandboxes").join(id.as_str());
        std::fs::create_dir_all(&sandbox_dir).unwrap();
        let pool = Pool::open(&directory, PoolOptions { driver, reserve_bytes: 0 }).unwrap();
        let image = HostImage::prepare(&pool.images_dir(), &std::env::current_exe().unwrap()).unwrap();
        let root = image.root_spec(pool.new_upper(&id).unwrap(), pool.driver());
        let config = KeeperConfig {
            id,
            run_dir: directory.clone(),
            sandbox_dir,
            hostname: "box".into(),
            ids: IdRange::of_slot(29_500).unwrap(),
            limits: Limits { vcpus: Vcpus(1), memory: MemoryMib(512), ..Limits::default() },
            root,
            env: vec![("FROM_NODE".into(), "yes".into())],
            start: Start::Boot,
            boot_id: "this boot".into(),
            ephemeral: None,
        };
        Self { directory, pool, config, environment: Vec::new(), started: RefCell::default(), is_owner: true }
    }

    /// What the keeper wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.config.sandbox_dir.join("keeper.log")).unwrap_or_default()
    }

    pub fn keeper_path(&self) -> PathBuf {
        self.directory.join(format!("{}.keeper", self.config.id))
    }

    pub fn start(&self) -> Child {
        let file = self.config.sandbox_dir.join("keeper.json");
        std::fs::write(&file, serde_json::to_vec(&self.config).unwrap()).unwrap();
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.config.sandbox_dir.join("keeper.log"))
            .unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .arg0("branchbox-keeper")
            .arg(file)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.started.borrow_mut().push(child.id());
        child
    }

    /// After a failed test: whatever it started and did not wait for.
    fn end_keepers(&self) {
        for id in self.started.borrow().iter() {
            let pid = rustix::process::Pid::from_raw(id.cast_signed()).unwrap();
            // Only a child that was not waited for can be waited for: any other number is left alone.
            let alive = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
            if matches!(alive, Ok(None)) {
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
            }
        }
    }

    /// The same directory for a test that changes what the keeper is told.
    pub fn with_ephemeral(&self) -> Self {
        let pool = Pool::open(&self.directory, PoolOptions { driver: None, reserve_bytes: 0 }).unwrap();
        let config = KeeperConfig { ephemeral: Some(self.directory.clone()), ..self.config.clone() };
        Self {
            directory: self.directory.clone(),
            pool,
            config,
            environment: Vec::new(),
            started: RefCell::default(),
            is_owner: false,
        }
    }

    /// Another sandbox of the same state directory, to be restored from a capture.
    pub fn copy(&self, image: &Path, layer: &str) -> Self {
        let id = SandboxId::generate();
        let pool = Pool::open(&self.directory, PoolOptions { driver: None, reserve_bytes: 0 }).unwrap();
        let mut config = KeeperConfig {
            sandbox_dir: self.directory.join("sandboxes").join(id.as_str()),
            ids: IdRange::of_slot(29_501).unwrap(),
            start: Start::Restore { image: image.to_path_buf() },
            ..self.config.clone()
        };
        config.root.upper = pool.upper_from_layer(layer, &id).unwrap();
        config.id = id;
        std::fs::create_dir_all(&config.sandbox_dir).unwrap();
        Self {
            directory: self.directory.clone(),
            pool,
            config,
            environment: Vec::new(),
            started: RefCell::default(),
            is_owner: false,
        }
    }

    /// Starts a keeper and waits until the sandbox runs.
    pub fn running(&self) -> (Child, Keeper, Running) {
        let child = self.start();
        let mut keeper = Keeper::connect(&self.keeper_path());
        match keeper.hello() {
            Ok(running) => (child, keeper, running),
            Err(error) => {
                panic!("{error:?}\n{}", std::fs::read_to_string(self.config.sandbox_dir.join("keeper.log")).unwrap())
            }
        }
    }

    pub fn guest(&self) -> Guest {
        let mut guest = Guest { socket: connect(&self.directory.join(format!("{}.guest", self.config.id))), next: 1 };
        let hello = guest.call(guest::Call::Hello { version: PROTOCOL_VERSION, role: guest::Role::Node });
        assert!(matches!(hello, guest::Reply::Hello(PROTOCOL_VERSION)));
        guest
    }

    /// Nothing of the sandbox is left on the machine.
    pub fn assert_gone(&self, guest_pid: i32) {
        // An orphan is a zombie until the host's first process takes it.
        let stat = std::fs::read_to_string(format!("/proc/{guest_pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "{stat}");
        let layout = branchbox_jail::cgroup::Layout::detect().unwrap();
        let mounts = layout.legacy.iter().map(|(mount, _)| mount).chain([&layout.unified]);
        for mount in mounts {
            let group = mount.join("branchbox").join(self.config.id.as_str());
            assert!(!group.exists(), "{}", group.display());
        }
        assert!(!self.keeper_path().exists());
        assert!(!self.directory.join(format!("{}.guest", self.config.id)).exists());
        assert!(!self.config.sandbox_dir.join("keeper-run.json").exists());
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end_keepers();
        }
        if self.is_owner && self.directory.exists() {
            // A sandbox that was just ended may hold the pool for a moment longer.
            let deadline = Instant::now() + PATIENCE;
            while rustix::mount::unmount(self.directory.join("pool"), rustix::mount::UnmountFlags::empty())
                == Err(rustix::io::Errno::BUSY)
            {
                assert!(Instant::now() < deadline, "the pool stays busy");
                std::thread::sleep(Duration::from_millis(5));
            }
            std::fs::remove_dir_all(&self.directory).unwrap();
        }
    }
}

/// Waits for a keeper's end.
pub fn ended(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("the keeper did not end");
}

fn connect(path: &Path) -> OwnedFd {
    let deadline = Instant::now() + PATIENCE;
    let address = SocketAddrUnix::new(path).unwrap();
    loop {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        match rustix::net::connect(&socket, &address) {
            Ok(()) => return socket,
            Err(errno) => assert!(Instant::now() < deadline, "{}: {errno}", path.display()),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A node's connection to a keeper.
pub struct Keeper {
    pub socket: OwnedFd,
}

impl Keeper {
    pub fn connect(path: &Path) -> Self {
        Self { socket: connect(path) }
    }

    pub fn hello(&mut self) -> Result<Running, KeeperError> {
        match self.call(keeper::Call::Hello { version: PROTOCOL_VERSION })? {
            keeper::Reply::Running(running) => Ok(running),
            other => panic!("{other:?}"),
        }
    }

    pub fn call(&mut self, call: keeper::Call) -> Result<keeper::Reply, KeeperError> {
        send_packet(&self.socket, &encode(&keeper::Request { id: 7, call }).unwrap(), &[]).unwrap();
        let response: keeper::Response = decode(&recv_packet(&self.socket).unwrap().bytes).unwrap();
        assert_eq!(response.id, 7);
        response.result
    }
}

/// A node's connection to a guest.
pub struct Guest {
    socket: OwnedFd,
    next: u64,
}

impl Guest {
    pub fn call(&mut self, call: guest::Call) -> guest::Reply {
        let id = self.next;
        self.next += 1;
        send_packet(&self.socket, &encode(&guest::Request { id, call }).unwrap(), &[]).unwrap();
        let packet = recv_packet(&self.socket).and_then(Packet::unfold).unwrap();
        let response: guest::Response = decode(&packet.bytes).unwrap();
        response.result.unwrap()
    }

    pub fn spawn(&mut self, script: &str, user: (u32, u32)) -> ExecId {
        let spec = SpawnSpec {
            attached: false,
            argv: vec!["bash".into(), "-c".into(), script.into()],
            cwd: "/workspace".into(),
            env: Vec::new(),
            env_clear: false,
            user,
            stdin: Stdin::Null,
            pty: None,
            timeout_ms: None,
            display: script.into(),
            tag: String::new(),
        };
        match self.call(guest::Call::Spawn(spec)) {
            guest::Reply::Exec(info) => info.exec,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a script to its end and gives its output.
    pub fn run(&mut self, script: &str, user: (u32, u32)) -> String {
        let exec = self.spawn(script, user);
        let (mut text, mut cursor) = (Vec::new(), 0);
        loop {
            let call = guest::Call::Output { exec, cursor, bytes_max: 65_536, wait_ms: 10_000, attached: true };
            let guest::Reply::Output { chunks, next_cursor, info, .. } = self.call(call) else { panic!("no output") };
            chunks.into_iter().for_each(|chunk| text.extend(chunk.bytes));
            cursor = next_cursor;
            if info.state != ExecState::Running {
                return String::from_utf8_lossy(&text).trim_end().to_owned();
            }
        }
    }

    pub fn state(&mut self, exec: ExecId) -> ExecState {
        match self.call(guest::Call::Status { exec, wait_ms: 0 }) {
            guest::Reply::Exec(info) => info.state,
            other => panic!("{other:?}"),
        }
    }
}
