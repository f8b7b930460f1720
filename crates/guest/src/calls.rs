//! Calls and their answers.

use crate::server::{Guest, Held, Phase};
use crate::waiting::{WAITING_MAX, Waiting, Wanted};
use crate::{dial, files, rebuild, seal};
use branchbox_model::ExecId;
use branchbox_protocol::guest::{
    CHUNK_BYTES_MAX, Call, GuestConfig, GuestError, GuestState, Reply, Request, Role, WAIT_MS_MAX,
};
use branchbox_protocol::{PROTOCOL_VERSION, Packet};
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

/// What comes of a call now: its answer, with descriptors, or nothing yet because it waits.
type Outcome = Option<(Result<Reply, GuestError>, Vec<OwnedFd>)>;

fn now(result: Result<Reply, GuestError>) -> Outcome {
    Some((result, Vec::new()))
}

fn bad(text: impl Into<String>) -> GuestError {
    GuestError::BadCall(text.into())
}

impl Guest {
    /// Takes one packet of a connection; bytes that are no request end the connection.
    pub(crate) fn take_packet(&mut self, number: u64, packet: Packet) {
        let Ok(Request { id, call }) = branchbox_protocol::decode(&packet.bytes) else {
            return self.drop_connection(number);
        };
        if let Some((result, fds)) = self.call(number, id, call, packet.fds) {
            self.send(number, id, result, fds);
        }
    }

    fn call(&mut self, number: u64, id: u64, call: Call, fds: Vec<OwnedFd>) -> Outcome {
        let role = self.connection(number).and_then(|connection| connection.role);
        match (role, call) {
            (None, Call::Hello { version, role }) => now(self.hello(number, version, role)),
            (None, _) => now(Err(bad("the first call of a connection must be Hello"))),
            (Some(_), Call::Hello { .. }) => now(Err(bad("a second Hello"))),
            (Some(Role::Keeper), Call::Rebuild) => self.rebuild(fds),
            (Some(Role::Keeper), Call::Import { fds: numbers }) => now(self.import(&fds, numbers)),
            (Some(Role::Keeper), Call::Seal(config)) => now(self.seal(config)),
            (Some(Role::Keeper), Call::Hold) => self.hold(number),
            (Some(Role::Keeper), Call::Resume) => {
                self.resume();
                now(Ok(Reply::Done))
            }
            (Some(_), Call::Rebuild | Call::Import { .. } | Call::Seal(_) | Call::Hold | Call::Resume) => {
                now(Err(bad("only the keeper may ask for this")))
            }
            (Some(_), call) => self.everyday(number, id, call),
        }
    }

    fn hello(&mut self, number: u64, version: u32, role: Role) -> Result<Reply, GuestError> {
        if version != PROTOCOL_VERSION {
            return Err(bad(format!("this guest speaks version {PROTOCOL_VERSION}, the caller {version}")));
        }
        if let Some(connection) = self.connection(number) {
            connection.role = Some(role);
        }
        Ok(Reply::Hello(PROTOCOL_VERSION))
    }

    fn everyday(&mut self, number: u64, id: u64, call: Call) -> Outcome {
        let Phase::Serving(config) = &self.phase else {
            return now(Err(bad("the sandbox is still being made")));
        };
        if self.held.is_some() && !matches!(call, Call::Status { .. } | Call::List) {
            return now(Err(bad("the table is held")));
        }
        match call {
            Call::Spawn(spec) => now(self.table.spawn(spec, config).map(Reply::Exec)),
            Call::Output { exec, cursor, bytes_max, wait_ms, attached } => {
                if attached {
                    self.table.attach(exec, cursor);
                }
                let due = self.table.has_output(exec, cursor);
                self.now_or_later(number, id, exec, Wanted::Output { cursor, bytes_max, attached }, wait_ms, due)
            }
            Call::Status { exec, wait_ms } => {
                let due = self.table.has_ended(exec);
                self.now_or_later(number, id, exec, Wanted::Status, wait_ms, due)
            }
            Call::Input { exec, offset, bytes, eof } => {
                now(self.table.input(exec, offset, &bytes, eof).map(Reply::Input))
            }
            Call::Resize { exec, size } => now(self.table.resize(exec, size).map(Reply::Exec)),
            Call::Signal { exec, signal } => now(self.table.signal(exec, signal).map(Reply::Exec)),
            Call::Dial { port, v6 } => match dial::dial(port, v6) {
                Ok(socket) => Some((Ok(Reply::Dialed), vec![socket])),
                Err(error) => now(Err(error)),
            },
            Call::List => now(Ok(Reply::List(self.table.list()))),
            Call::File { user, op } => now(files::perform(user, &op).map(Reply::File)),
            _ => now(Err(bad("not a call for now"))),
        }
    }

    fn now_or_later(
        &mut self,
        connection: u64,
        id: u64,
        exec: ExecId,
        wanted: Wanted,
        wait_ms: u64,
        due: bool,
    ) -> Outcome {
        if due || wait_ms == 0 {
            return now(self.answer(exec, wanted));
        }
        if self.waiting.len() >= WAITING_MAX {
            return now(Err(bad(format!("{WAITING_MAX} calls are waiting already"))));
        }
        let deadline = Instant::now() + Duration::from_millis(wait_ms.min(WAIT_MS_MAX));
        self.waiting.push(Waiting { connection, id, exec, wanted, deadline });
        None
    }

    /// Answers a call that waited, or need not wait.
    pub(crate) fn answer(&mut self, exec: ExecId, wanted: Wanted) -> Result<Reply, GuestError> {
        match wanted {
            Wanted::Status => self.table.info(exec).map(Reply::Exec),
            Wanted::Output { cursor, bytes_max, attached } => {
                if attached {
                    self.table.attach(exec, cursor);
                }
                let bytes_max = usize::try_from(bytes_max).unwrap_or(CHUNK_BYTES_MAX).min(CHUNK_BYTES_MAX);
                self.table.output(exec, cursor, bytes_max)
            }
        }
    }

    fn rebuild(&mut self, fds: Vec<OwnedFd>) -> Outcome {
        if !matches!(self.phase, Phase::Building) {
            return now(Err(bad("the sandbox is sealed")));
        }
        match rebuild::rebuild(fds, self.table.cgroup(), self.last_pid.as_ref()) {
            Ok(answer) => Some((Ok(Reply::Attached), vec![answer])),
            Err(error) => now(Err(error)),
        }
    }

    fn import(&mut self, attached: &[OwnedFd], numbers: Vec<(i32, i32)>) -> Result<Reply, GuestError> {
        if !matches!(self.phase, Phase::Building) {
            return Err(bad("the sandbox is sealed"));
        }
        let file = attached.first().ok_or_else(|| bad("an import without a table"))?;
        let broken = |error: branchbox_protocol::FrameError| GuestError::Rebuild(format!("the saved table: {error}"));
        let bytes = branchbox_protocol::read_memory_file(file).map_err(broken)?;
        let state: GuestState = branchbox_protocol::decode(&bytes).map_err(broken)?;
        self.table.load(state, numbers)?;
        Ok(Reply::Done)
    }

    fn seal(&mut self, config: GuestConfig) -> Result<Reply, GuestError> {
        if !matches!(self.phase, Phase::Building) {
            return Err(bad("the sandbox is sealed already"));
        }
        seal::seal(&config)?;
        self.last_pid = None;
        self.phase = Phase::Serving(config);
        // What ended while the engine owned this process's children.
        self.table.reap();
        Ok(Reply::Done)
    }

    fn hold(&mut self, connection: u64) -> Outcome {
        if self.held.is_some() || matches!(self.phase, Phase::Building) {
            return now(Err(bad("the table is held already, or the sandbox is still being made")));
        }
        self.table.reap();
        self.table.tick(Instant::now());
        let state = branchbox_protocol::encode_attached(&self.table.save());
        match state.and_then(|bytes| branchbox_protocol::memory_file(&bytes)) {
            Ok(file) => {
                self.held = Some(Held { connection, since: Instant::now() });
                Some((Ok(Reply::Attached), vec![file]))
            }
            Err(error) => now(Err(bad(format!("the table cannot be saved: {error}")))),
        }
    }
}
