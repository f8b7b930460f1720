//! What keepers and guests can be asked, as typed methods.

use crate::error::NodeError;
use crate::peer::{Answer, Peer, PeerError, Wire};
use branchbox_model::{ExecId, SandboxId};
use branchbox_protocol::guest::{self, ExecInfo, FileOp, FileReply, GuestError, Role, SpawnSpec};
use branchbox_protocol::keeper::{self, CaptureReport, KeeperError, Running, Usage};
use branchbox_protocol::{FrameError, PROTOCOL_VERSION, Packet, decode};
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a call that does no work may take: a sandbox full of runaway processes leaves its guest little time.
const CALL_WAIT: Duration = Duration::from_secs(60);
/// How long a sandbox may take to start; a restore reads its memory from disk.
pub(crate) const START_WAIT: Duration = Duration::from_secs(110);
/// How long a capture may take.
const CAPTURE_WAIT: Duration = Duration::from_secs(600);
/// How long every process of a sandbox may take to die.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct KeeperWire;

impl Wire for KeeperWire {
    type Call = keeper::Call;
    type Reply = keeper::Reply;
    type Fault = KeeperError;
    const WHO: &'static str = "keeper";

    fn request(id: u64, call: keeper::Call) -> Result<Packet, FrameError> {
        Packet::fold(&keeper::Request { id, call }, Vec::new())
    }

    fn response(packet: Packet) -> Result<Answer<Self>, FrameError> {
        decode(&packet.bytes).map(|response: keeper::Response| (response.id, response.result))
    }
}

#[derive(Debug)]
struct GuestWire;

impl Wire for GuestWire {
    type Call = guest::Call;
    type Reply = (guest::Reply, Vec<OwnedFd>);
    type Fault = GuestError;
    const WHO: &'static str = "guest";

    fn request(id: u64, call: guest::Call) -> Result<Packet, FrameError> {
        Packet::fold(&guest::Request { id, call }, Vec::new())
    }

    fn response(packet: Packet) -> Result<Answer<Self>, FrameError> {
        let Packet { bytes, fds } = packet;
        decode(&bytes).map(|response: guest::Response| (response.id, response.result.map(|reply| (reply, fds))))
    }
}

/// A sandbox's keeper.
#[derive(Debug)]
pub(crate) struct KeeperClient {
    id: SandboxId,
    peer: Peer<KeeperWire>,
}

impl KeeperClient {
    pub(crate) fn connect(id: &SandboxId, run_dir: &Path) -> Result<Self, PeerError> {
        Ok(Self { id: id.clone(), peer: Peer::connect(&run_dir.join(format!("{id}.keeper")))? })
    }

    async fn ask(&self, call: keeper::Call, wait: Duration) -> Result<keeper::Reply, NodeError> {
        match self.peer.call(call, wait).await {
            Ok(answer) => answer.map_err(|error| NodeError::Keeper(Box::new(error))),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: PeerError) -> NodeError {
        NodeError::Peer { id: self.id.clone(), who: "keeper", source }
    }

    /// Waits until the sandbox runs.
    pub(crate) async fn hello(&self) -> Result<Running, NodeError> {
        match self.ask(keeper::Call::Hello { version: PROTOCOL_VERSION }, START_WAIT).await? {
            keeper::Reply::Running(running) if running.version == PROTOCOL_VERSION => Ok(running),
            keeper::Reply::Running(running) => {
                Err(self.failed(PeerError::Version { theirs: running.version, ours: PROTOCOL_VERSION }))
            }
            _ => Err(self.failed(PeerError::Unexpected)),
        }
    }

    /// Saves the machine, or only its files.
    pub(crate) async fn capture(&self, image: Option<PathBuf>, layer: PathBuf) -> Result<CaptureReport, NodeError> {
        match self.ask(keeper::Call::Capture { image, layer }, CAPTURE_WAIT).await? {
            keeper::Reply::Captured(report) => Ok(report),
            _ => Err(self.failed(PeerError::Unexpected)),
        }
    }

    /// Saves the machine and ends it in that state; the keeper ends too. After an answer that says no, it runs on.
    pub(crate) async fn pause(&self, image: PathBuf) -> Result<(CaptureReport, Usage), NodeError> {
        match self.ask(keeper::Call::Pause { image }, CAPTURE_WAIT).await? {
            keeper::Reply::Paused { report, usage } => Ok((report, usage)),
            _ => Err(self.failed(PeerError::Unexpected)),
        }
    }

    pub(crate) async fn usage(&self) -> Result<Usage, NodeError> {
        match self.ask(keeper::Call::Usage, CALL_WAIT).await? {
            keeper::Reply::Usage(usage) => Ok(usage),
            _ => Err(self.failed(PeerError::Unexpected)),
        }
    }

    /// Ends the sandbox; the keeper ends too.
    pub(crate) async fn shutdown(&self) -> Result<Usage, NodeError> {
        match self.ask(keeper::Call::Shutdown, SHUTDOWN_WAIT).await? {
            keeper::Reply::Ended(usage) => Ok(usage),
            _ => Err(self.failed(PeerError::Unexpected)),
        }
    }

    /// Ends a keeper that does not answer. Its process has our pid namespace's number, so the kernel can name it.
    pub(crate) fn kill(&self) {
        self.peer.kill();
    }

    pub(crate) fn closed(&self) -> impl Future<Output = ()> + use<> {
        self.peer.closed()
    }
}

/// Output of a command, as the guest said it.
#[derive(Debug)]
pub(crate) struct Output {
    pub chunks: Vec<guest::Chunk>,
    pub next_cursor: u64,
    pub dropped: u64,
    pub info: ExecInfo,
}

/// Which output is asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputCall {
    pub exec: ExecId,
    pub cursor: u64,
    pub bytes_max: u32,
    pub wait_ms: u64,
    pub attached: bool,
}

/// A sandbox's process 1.
#[derive(Debug)]
pub(crate) struct GuestClient {
    id: SandboxId,
    peer: Peer<GuestWire>,
}

impl GuestClient {
    pub(crate) async fn connect(id: &SandboxId, run_dir: &Path) -> Result<Self, NodeError> {
        let failed = |source| NodeError::Peer { id: id.clone(), who: "guest", source };
        let peer = Peer::connect(&run_dir.join(format!("{id}.guest"))).map_err(failed)?;
        let client = Self { id: id.clone(), peer };
        match client.ask(guest::Call::Hello { version: PROTOCOL_VERSION, role: Role::Node }, CALL_WAIT).await? {
            guest::Reply::Hello(PROTOCOL_VERSION) => Ok(client),
            guest::Reply::Hello(theirs) => Err(client.failed(PeerError::Version { theirs, ours: PROTOCOL_VERSION })),
            _ => Err(client.unexpected()),
        }
    }

    async fn ask(&self, call: guest::Call, wait: Duration) -> Result<guest::Reply, NodeError> {
        // Descriptors that nobody asked for are closed here.
        Ok(self.ask_for_fds(call, wait).await?.0)
    }

    async fn ask_for_fds(&self, call: guest::Call, wait: Duration) -> Result<(guest::Reply, Vec<OwnedFd>), NodeError> {
        match self.peer.call(call, wait).await {
            Ok(answer) => answer.map_err(NodeError::Guest),
            Err(source) => Err(self.failed(source)),
        }
    }

    fn failed(&self, source: PeerError) -> NodeError {
        NodeError::Peer { id: self.id.clone(), who: "guest", source }
    }

    fn unexpected(&self) -> NodeError {
        self.failed(PeerError::Unexpected)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.peer.is_closed()
    }

    async fn ask_exec(&self, call: guest::Call, wait: Duration) -> Result<ExecInfo, NodeError> {
        match self.ask(call, wait).await? {
            guest::Reply::Exec(info) => Ok(info),
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) async fn spawn(&self, spec: SpawnSpec) -> Result<ExecInfo, NodeError> {
        self.ask_exec(guest::Call::Spawn(spec), CALL_WAIT).await
    }

    pub(crate) async fn status(&self, exec: ExecId) -> Result<ExecInfo, NodeError> {
        self.ask_exec(guest::Call::Status { exec, wait_ms: 0 }, CALL_WAIT).await
    }

    pub(crate) async fn resize(&self, exec: ExecId, size: guest::PtySize) -> Result<ExecInfo, NodeError> {
        match self.ask(guest::Call::Resize { exec, size }, CALL_WAIT).await? {
            guest::Reply::Exec(info) => Ok(info),
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) async fn signal(&self, exec: ExecId, signal: i32) -> Result<ExecInfo, NodeError> {
        self.ask_exec(guest::Call::Signal { exec, signal }, CALL_WAIT).await
    }

    /// Checks what a hostile guest might get wrong: more than was asked for, or offsets that go backwards.
    pub(crate) async fn output(&self, call: OutputCall) -> Result<Output, NodeError> {
        let OutputCall { exec, cursor, bytes_max, wait_ms, attached } = call;
        let wait = CALL_WAIT + Duration::from_millis(wait_ms);
        match self.ask(guest::Call::Output { exec, cursor, bytes_max, wait_ms, attached }, wait).await? {
            guest::Reply::Output { chunks, next_cursor, dropped, info } => {
                let mut position = cursor.saturating_add(dropped);
                let adjacent = chunks.iter().all(|chunk| {
                    let fits = chunk.offset == position;
                    position = position.saturating_add(chunk.bytes.len() as u64);
                    fits
                });
                // A cursor beyond the end is answered with the end.
                let beyond = chunks.is_empty() && next_cursor <= position;
                if adjacent && (position == next_cursor || beyond) {
                    Ok(Output { chunks, next_cursor, dropped, info })
                } else {
                    Err(self.unexpected())
                }
            }
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) async fn input(&self, exec: ExecId, offset: u64, bytes: Vec<u8>, eof: bool) -> Result<u64, NodeError> {
        match self.ask(guest::Call::Input { exec, offset, bytes, eof }, CALL_WAIT).await? {
            guest::Reply::Input(accepted) => Ok(accepted),
            _ => Err(self.unexpected()),
        }
    }

    /// Begins a connection to a port inside: whatever descriptor the guest sends, unchecked.
    pub(crate) async fn dial(&self, port: u16, v6: bool) -> Result<OwnedFd, NodeError> {
        match self.ask_for_fds(guest::Call::Dial { port, v6 }, CALL_WAIT).await? {
            (guest::Reply::Dialed, mut fds) if fds.len() == 1 => fds.pop().ok_or_else(|| self.unexpected()),
            _ => Err(self.unexpected()),
        }
    }

    /// Returns when the connection has ended: the sandbox is paused or stopped, or its process 1 has died.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + use<> {
        self.peer.closed()
    }

    pub(crate) async fn list(&self) -> Result<Vec<ExecInfo>, NodeError> {
        match self.ask(guest::Call::List, CALL_WAIT).await? {
            guest::Reply::List(list) if list.len() <= guest::RUNNING_MAX + guest::ENDED_KEPT => Ok(list),
            _ => Err(self.unexpected()),
        }
    }

    pub(crate) async fn file(&self, user: (u32, u32), op: FileOp) -> Result<FileReply, NodeError> {
        match self.ask(guest::Call::File { user, op }, CALL_WAIT).await? {
            guest::Reply::File(reply) => Ok(reply),
            _ => Err(self.unexpected()),
        }
    }

    /// For file calls whose reply has another shape than the call: nonsense.
    pub(crate) fn wrong_reply(&self) -> NodeError {
        self.unexpected()
    }
}
