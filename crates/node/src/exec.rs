//! Commands: starting, waiting, following, listing.
//!
//! A caller that goes away never ends a command: what reads its output is apart from what runs it.

use crate::clients::{GuestClient, Output, OutputCall};
use crate::error::NodeError;
use crate::live::{Live, Machine, Use};
use crate::node::Node;
use crate::spawn::{Kind, spawn_spec};
use crate::splitter::{self, Splitter};
use branchbox_api::{
    ExecRequest, ExecResult, InputAccepted, InputRequest, OutOfMemory, OutputAnswer, OutputChunk, OutputEncoding,
    ProcessInfo, ProcessList, ProcessState, PtySize, StreamEvent, TIMEOUT_MS_DEFAULT,
};
use branchbox_model::{ExecId, Timestamp, User};
use branchbox_protocol::guest::{self, CHUNK_BYTES_MAX, Chunk, ExecInfo, ExecState, SpawnSpec, Stream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Output of one stream in a short command's answer.
const OUTPUT_SHORT_MAX: usize = 64 * 1024;
/// Output of one stream in any command's answer.
const OUTPUT_LONG_MAX: usize = 1024 * 1024;
/// Silence after which a stream shows that it is still there.
const SILENCE_MS: u64 = 25_000;
/// Failures in a row to reach the guest of a running sandbox before a reader is told.
const FAILURES_MAX: u32 = 3;
/// Longest wait of a look at output.
const LOOK_WAIT_MS_MAX: u64 = 8000;
/// Most bytes of one look at output.
const LOOK_BYTES_MAX: usize = 1024 * 1024;
/// The signal of the memory limit.
const SIGKILL: i32 = 9;
/// How a shell ends whose command was killed by it.
const SHELL_KILLED: i32 = 128 + SIGKILL;

/// A command in a sandbox, to be followed.
#[derive(Debug)]
pub struct Process {
    live: Arc<Live>,
    machine: Arc<Machine>,
    guest: Arc<GuestClient>,
    run_dir: PathBuf,
    exec: ExecId,
    encoding: OutputEncoding,
    /// Failures to reach the guest since it last answered.
    failures: u32,
    /// Whoever waits for a command uses its sandbox.
    _use: Use,
}

impl Node {
    async fn start_command(
        &self,
        id: &str,
        request: ExecRequest,
        kind: Kind,
    ) -> Result<(Process, ExecInfo), NodeError> {
        if let Some(what) = request.wants_unavailable {
            let hint = "leave the field out";
            return Err(NodeError::Unavailable { what: what.into(), hint });
        }
        let live = self.awake(id).await?;
        let encoding = request.output_encoding.unwrap_or_default();
        let spec = spawn_spec(&live.record(), request, kind);
        self.start_in(live, spec, encoding).await
    }

    async fn start_in(
        &self,
        live: Arc<Live>,
        spec: SpawnSpec,
        encoding: OutputEncoding,
    ) -> Result<(Process, ExecInfo), NodeError> {
        let run_dir = self.inner.state.run_dir().to_path_buf();
        let (machine, guest) = live.guest(&run_dir).await?;
        let info = guest.spawn(spec).await.map_err(|error| seen(&live, error))?;
        let _use = live.using();
        Ok((Process { live, machine, guest, run_dir, exec: info.exec, encoding, failures: 0, _use }, info))
    }

    /// Starts a command of the node's own making.
    pub(crate) async fn start_spec(&self, id: &str, spec: SpawnSpec) -> Result<Process, NodeError> {
        let live = self.awake(id).await?;
        Ok(self.start_in(live, spec, OutputEncoding::default()).await?.0)
    }

    /// Starts a command.
    ///
    /// # Errors
    /// [`NodeError`]; a command that ends badly is none.
    pub async fn exec(&self, id: &str, request: ExecRequest) -> Result<Process, NodeError> {
        Ok(self.start_command(id, request, Kind::Command).await?.0)
    }

    /// Starts a process.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn spawn(&self, id: &str, request: ExecRequest) -> Result<ProcessInfo, NodeError> {
        let (process, info) = self.start_command(id, request, Kind::Process).await?;
        process.describe(&info).await
    }

    /// As [`Node::spawn`], to be followed.
    pub(crate) async fn start_process(&self, id: &str, request: ExecRequest) -> Result<Process, NodeError> {
        Ok(self.start_command(id, request, Kind::Process).await?.0)
    }

    /// Finds a command.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn process(&self, id: &str, process: &str) -> Result<(Process, ProcessInfo), NodeError> {
        let exec: ExecId = process.parse().map_err(|_| no_process(process))?;
        let live = self.awake(id).await?;
        let run_dir = self.inner.state.run_dir().to_path_buf();
        let (machine, guest) = live.guest(&run_dir).await?;
        let info = guest.status(exec).await.map_err(|error| seen(&live, error))?;
        let _use = live.using();
        let process = Process { live, machine, guest, run_dir, exec, encoding: encoding_of(&info), failures: 0, _use };
        let described = process.describe(&info).await?;
        Ok((process, described))
    }

    /// Every running command and the last ended ones.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn processes(&self, id: &str) -> Result<ProcessList, NodeError> {
        let live = self.awake(id).await?;
        let (_, guest) = live.guest(self.inner.state.run_dir()).await?;
        let list = guest.list().await.map_err(|error| seen(&live, error))?;
        Ok(ProcessList { data: list.iter().map(|info| process_info(info, None)).collect() })
    }
}

pub(crate) fn no_process(id: &str) -> NodeError {
    NodeError::NoSandbox { id: format!("process {}", id.chars().take(64).collect::<String>()) }
}

/// A connection that broke because the sandbox was stopped says so.
fn seen(live: &Live, error: NodeError) -> NodeError {
    use branchbox_model::SandboxState::{Stopped, Stopping};
    match error {
        NodeError::Peer { .. } if matches!(live.state(), Stopped | Stopping) => {
            NodeError::Stopped { id: live.id.clone() }
        }
        other => other,
    }
}

fn encoding_of(info: &ExecInfo) -> OutputEncoding {
    if info.tag == "base64" { OutputEncoding::Base64 } else { OutputEncoding::Utf8 }
}

pub(crate) fn has_ended(info: &ExecInfo) -> bool {
    info.state != ExecState::Running
}

pub(crate) fn exit_of(state: ExecState) -> (ProcessState, Option<i32>) {
    match state {
        ExecState::Running => (ProcessState::Running, None),
        ExecState::Exited(code) => (ProcessState::Exited, Some(code)),
        ExecState::Killed(signal) => (ProcessState::Killed, Some(signal.saturating_neg())),
        ExecState::TimedOut => (ProcessState::TimedOut, Some(-SIGKILL)),
    }
}

fn process_info(info: &ExecInfo, out_of_memory: Option<OutOfMemory>) -> ProcessInfo {
    let (state, exit_code) = exit_of(info.state);
    let time = |ms: u64| Timestamp(i64::try_from(ms).unwrap_or(i64::MAX));
    ProcessInfo {
        id: info.exec.to_string(),
        kind: "process".into(),
        state,
        exit_code,
        command: info.display.clone(),
        cwd: info.cwd.clone(),
        user: if info.user.0 == 0 { User::Root } else { User::Sandbox },
        pty: info.pty.map(|size| PtySize { cols: size.cols, rows: size.rows }),
        stdin_open: info.stdin_open,
        stdin_offset: info.stdin_offset,
        output_encoding: encoding_of(info),
        started_at: time(info.started_ms),
        ended_at: info.ended_ms.map(time),
        timeout_ms: info.timeout_ms,
        output_bytes: info.output_bytes,
        first_offset: info.first_offset,
        out_of_memory,
    }
}

impl Process {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> String {
        self.exec.to_string()
    }

    pub(crate) fn exec(&self) -> ExecId {
        self.exec
    }

    /// What it was marked with at its start.
    pub(crate) async fn tag(&self) -> Result<String, NodeError> {
        Ok(self.guest.status(self.exec).await.map_err(|error| seen(&self.live, error))?.tag)
    }

    pub(crate) async fn info(&self) -> Result<ExecInfo, NodeError> {
        self.guest.status(self.exec).await.map_err(|error| seen(&self.live, error))
    }

    pub(crate) async fn has_ended(&self) -> Result<bool, NodeError> {
        let info = self.guest.status(self.exec).await.map_err(|error| seen(&self.live, error))?;
        Ok(has_ended(&info))
    }

    async fn describe(&self, info: &ExecInfo) -> Result<ProcessInfo, NodeError> {
        Ok(process_info(info, self.out_of_memory(info).await))
    }

    /// Whether the memory limit killed something of it: the guest's own count, or on a host where the guest cannot see
    /// that, a kill that came together with a new one in the sandbox's group.
    async fn out_of_memory(&self, info: &ExecInfo) -> Option<OutOfMemory> {
        let mut killed = u64::from(info.oom_kills);
        let was_killed = matches!(info.state, ExecState::Killed(SIGKILL) | ExecState::Exited(SHELL_KILLED));
        if killed == 0 && was_killed {
            let now = self.machine.keeper.usage().await.ok()?.oom_kills;
            killed = now.saturating_sub(self.machine.oom_kills.swap(now, Ordering::Relaxed));
        }
        let memory_mib = self.live.record().detail.limits.memory.0;
        (killed > 0).then(|| OutOfMemory {
            code: "out_of_memory".into(),
            processes_killed: killed,
            memory_mib,
            message: format!("the memory limit of {memory_mib} MiB was reached and {killed} processes were killed"),
            hint: "use less memory, or create the sandbox with a larger memoryMiB".into(),
        })
    }

    async fn output(&self, cursor: u64, bytes_max: usize, wait_ms: u64, attached: bool) -> Result<Output, NodeError> {
        let bytes_max = u32::try_from(bytes_max.min(CHUNK_BYTES_MAX)).unwrap_or(u32::MAX);
        let call = OutputCall { exec: self.exec, cursor, bytes_max, wait_ms, attached };
        if !self.guest.is_closed() {
            return self.guest.output(call).await.map_err(|error| seen(&self.live, error));
        }
        // The connection broke; the command may run on, or be paused and go on later.
        let (_, guest) = self.live.guest(&self.run_dir).await?;
        guest.output(call).await.map_err(|error| seen(&self.live, error))
    }

    /// As [`Process::output`]; `None` while the sandbox is paused: the command is, too, and goes on when it is woken.
    pub(crate) async fn output_when_awake(&mut self, cursor: u64) -> Result<Option<Output>, NodeError> {
        match self.output(cursor, CHUNK_BYTES_MAX, SILENCE_MS, true).await {
            Ok(output) => {
                self.failures = 0;
                Ok(Some(output))
            }
            Err(NodeError::Peer { .. } | NodeError::Paused { .. } | NodeError::NotReady { .. })
                if self.failures < FAILURES_MAX =>
            {
                if self.live.wait_awake(Duration::from_millis(SILENCE_MS)).await {
                    // It was woken already, or the connection broke for another reason, which lasts.
                    self.failures += 1;
                }
                Ok(None)
            }
            Err(error) => Err(seen(&self.live, error)),
        }
    }

    /// Waits for its end and answers with its output, cut at a limit.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn wait(mut self) -> Result<ExecResult, NodeError> {
        let mut kept = [Kept::default(), Kept::default()];
        let mut cursor = 0;
        loop {
            let Some(output) = self.output_when_awake(cursor).await? else { continue };
            cursor = output.next_cursor;
            let is_long = output.info.timeout_ms.is_none_or(|ms| ms > TIMEOUT_MS_DEFAULT);
            let bytes_max = if is_long { OUTPUT_LONG_MAX } else { OUTPUT_SHORT_MAX };
            if output.dropped > 0 {
                kept.iter_mut().for_each(|kept| kept.truncated = true);
            }
            for chunk in &output.chunks {
                kept[usize::from(chunk.stream == Stream::Stderr)].add(chunk, bytes_max);
            }
            if has_ended(&output.info) {
                return Ok(self.result(&output.info, kept).await);
            }
        }
    }

    async fn result(&self, info: &ExecInfo, [stdout, stderr]: [Kept; 2]) -> ExecResult {
        ExecResult {
            exit_code: exit_of(info.state).1,
            stdout: String::from_utf8_lossy(&stdout.bytes).into_owned(),
            stderr: String::from_utf8_lossy(&stderr.bytes).into_owned(),
            timed_out: info.state == ExecState::TimedOut,
            stdout_truncated: stdout.truncated,
            stderr_truncated: stderr.truncated,
            duration_ms: info.duration_ms,
            process_id: self.id(),
            out_of_memory: self.out_of_memory(info).await,
            replayed: false,
        }
    }

    /// Follows its output from a cursor.
    #[must_use]
    pub fn follow(self, cursor: u64) -> Follow {
        let splitter = Splitter::new(self.encoding, cursor);
        Follow { process: self, splitter, cursor, ended: false }
    }

    /// One look at its output.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn look(&self, cursor: u64, bytes_max: usize, wait_ms: u64) -> Result<OutputAnswer, NodeError> {
        let bytes_max = bytes_max.min(LOOK_BYTES_MAX);
        let mut splitter = Splitter::new(self.encoding, cursor);
        let mut events = Vec::new();
        let (mut at, mut taken, mut wait_ms) = (cursor, 0, wait_ms.min(LOOK_WAIT_MS_MAX));
        let info = loop {
            let output = self.output(at, bytes_max - taken, wait_ms, false).await?;
            events.extend(splitter.skip(output.dropped));
            let read: usize = output.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
            events.extend(output.chunks.into_iter().filter_map(|chunk| splitter.push(chunk)));
            (at, taken, wait_ms) = (output.next_cursor, taken + read, 0);
            if read == 0 || taken >= bytes_max || has_ended(&output.info) {
                break output.info;
            }
        };
        if has_ended(&info) {
            events.extend(splitter.flush());
        }
        let truncated = events.iter().any(|event| matches!(event, StreamEvent::Truncated { .. }));
        let chunks = events.into_iter().filter_map(output_chunk).collect();
        Ok(OutputAnswer { chunks, next_cursor: splitter.position(), truncated, process: self.describe(&info).await? })
    }

    /// Gives it input.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn input(&self, request: InputRequest) -> Result<InputAccepted, NodeError> {
        let failed = |error| seen(&self.live, error);
        let start = match request.offset {
            Some(offset) => offset,
            None => self.guest.status(self.exec).await.map_err(failed)?.stdin_offset,
        };
        let mut offset = start;
        let pieces = request.bytes.chunks(CHUNK_BYTES_MAX);
        let count = pieces.len();
        for (number, piece) in pieces.enumerate() {
            let eof = request.eof && number + 1 == count;
            // Where it belongs, whatever was accepted before: a request that comes twice is ahead of its own pieces.
            let begin = start.saturating_add((number * CHUNK_BYTES_MAX) as u64);
            offset = self.guest.input(self.exec, begin, piece.to_vec(), eof).await.map_err(failed)?;
            if offset < begin.saturating_add(piece.len() as u64) {
                return Ok(InputAccepted { offset });
            }
        }
        if count == 0 {
            offset = self.guest.input(self.exec, start, Vec::new(), request.eof).await.map_err(failed)?;
        }
        Ok(InputAccepted { offset })
    }

    /// Gives its terminal another size.
    ///
    /// # Errors
    /// [`NodeError`]; also for one without a terminal.
    pub async fn resize(&self, size: PtySize) -> Result<ProcessInfo, NodeError> {
        let size = guest::PtySize { cols: size.cols, rows: size.rows };
        let info = self.guest.resize(self.exec, size).await.map_err(|error| seen(&self.live, error))?;
        self.describe(&info).await
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn signal(&self, signal: i32) -> Result<ProcessInfo, NodeError> {
        let info = self.guest.signal(self.exec, signal).await.map_err(|error| seen(&self.live, error))?;
        self.describe(&info).await
    }
}

fn output_chunk(event: StreamEvent) -> Option<OutputChunk> {
    match event {
        StreamEvent::Stdout { data, offset, base64 } => {
            Some(OutputChunk { stream: "stdout".into(), text: data, offset, base64 })
        }
        StreamEvent::Stderr { data, offset, base64 } => {
            Some(OutputChunk { stream: "stderr".into(), text: data, offset, base64 })
        }
        _ => None,
    }
}

/// One stream's output, up to a limit.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn add(&mut self, chunk: &Chunk, bytes_max: usize) {
        let room = bytes_max.saturating_sub(self.bytes.len()).min(chunk.bytes.len());
        self.bytes.extend_from_slice(&chunk.bytes[..room]);
        self.truncated |= room < chunk.bytes.len();
        if self.truncated {
            // A character that was cut is not shown as a broken one.
            let whole = splitter::whole_characters(&self.bytes);
            self.bytes.truncate(whole);
        }
    }
}

/// A command's output as it comes.
#[derive(Debug)]
pub struct Follow {
    process: Process,
    splitter: Splitter,
    cursor: u64,
    ended: bool,
}

impl Follow {
    /// The command's id.
    #[must_use]
    pub fn process_id(&self) -> String {
        self.process.id()
    }

    /// The next events; none of them is a sign of life after a silence. `None` after the command's end.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn next(&mut self) -> Result<Option<Vec<StreamEvent>>, NodeError> {
        if self.ended {
            return Ok(None);
        }
        let Some(output) = self.process.output_when_awake(self.cursor).await? else { return Ok(Some(Vec::new())) };
        self.cursor = output.next_cursor;
        let mut events = self.splitter.skip(output.dropped);
        events.extend(output.chunks.into_iter().filter_map(|chunk| self.splitter.push(chunk)));
        if has_ended(&output.info) {
            self.ended = true;
            events.extend(self.splitter.flush());
            events.push(self.exit(&output.info).await);
        }
        Ok(Some(events))
    }

    async fn exit(&self, info: &ExecInfo) -> StreamEvent {
        let (state, exit_code) = exit_of(info.state);
        StreamEvent::Exit {
            exit_code,
            state,
            timed_out: state == ProcessState::TimedOut,
            duration_ms: info.duration_ms,
            out_of_memory: self.process.out_of_memory(info).await,
        }
    }

    /// The line that tells a reader to come back.
    #[must_use]
    pub fn come_back(&self) -> StreamEvent {
        StreamEvent::Continue { process_id: self.process_id(), cursor: self.splitter.position() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn ends_are_spelled_as_the_contract_says() {
        assert_eq!(exit_of(ExecState::Exited(3)), (ProcessState::Exited, Some(3)));
        assert_eq!(exit_of(ExecState::Killed(15)), (ProcessState::Killed, Some(-15)));
        assert_eq!(exit_of(ExecState::TimedOut), (ProcessState::TimedOut, Some(-9)));
        assert_eq!(exit_of(ExecState::Killed(i32::MIN)).1, Some(i32::MAX), "a hostile number is no panic");
    }

    #[test]
    fn output_is_cut_between_characters() {
        let mut kept = Kept::default();
        let chunk = |bytes: &[u8]| Chunk { stream: Stream::Stdout, offset: 0, bytes: bytes.to_vec() };
        kept.add(&chunk("a€".as_bytes()), 3);
        assert_eq!((kept.bytes.as_slice(), kept.truncated), (b"a".as_slice(), true));
        kept.add(&chunk(b""), 3);
        assert!(kept.truncated);
    }
}
