//! The table of commands.
//!
//! Running commands are bounded by [`RUNNING_MAX`]; ended ones are forgotten oldest first beyond [`ENDED_KEPT`], but not
//! before somebody had the time to read their output.

mod command;
mod group;
mod input;
mod output;
mod saved;
mod start;
mod terminal;

use branchbox_model::ExecId;
use branchbox_protocol::guest::{
    ENDED_KEPT, ExecInfo, ExecState, GuestConfig, GuestError, GuestState, OUTPUT_KEPT_BYTES, PtySize, RUNNING_MAX,
    Reply, STDIN_PENDING_BYTES_MAX, SpawnSpec, Stream,
};
use command::{ATTACHED_GRACE, Command, Phase};
use group::Group;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::process::{WaitOptions, wait};
use start::Surroundings;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
pub use terminal::TERM;

/// Kept output of all commands together, and their pending input: what one may keep shrinks when there are many.
const KEPT_TOTAL_BYTES: usize = 32 * 1024 * 1024;
/// Ended commands kept for readers that have not come yet.
const ENDED_UNREAD_MAX: usize = 256;
/// How often the end of a killed command is looked for, beside every SIGCHLD.
const EMPTYING_TICK: Duration = Duration::from_millis(10);

/// What a table's descriptor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipe {
    /// Input to be written.
    Stdin(ExecId),
    /// Output to be read.
    Output(ExecId, Stream),
}

/// The commands of a sandbox.
#[derive(Debug)]
pub struct Table {
    cgroup: OwnedFd,
    open_files: (u64, u64),
    next_exec: u64,
    commands: BTreeMap<ExecId, Command>,
    /// Numbers of ended commands in order of their end.
    ended: Vec<ExecId>,
    /// Cgroups that would not go away yet.
    leftovers: Vec<Group>,
}

impl Table {
    /// An empty table; commands' cgroups are made in `cgroup`.
    pub fn new(cgroup: OwnedFd, open_files: (u64, u64)) -> Self {
        Self { cgroup, open_files, next_exec: 1, commands: BTreeMap::new(), ended: Vec::new(), leftovers: Vec::new() }
    }

    /// The directory that commands' cgroups are made in.
    pub fn cgroup(&self) -> BorrowedFd<'_> {
        self.cgroup.as_fd()
    }

    fn share(&self, bytes_max: usize) -> usize {
        bytes_max.min(KEPT_TOTAL_BYTES / self.commands.len().max(1))
    }

    fn output_max(&self) -> usize {
        self.share(OUTPUT_KEPT_BYTES)
    }

    fn get(&self, exec: ExecId) -> Result<&Command, GuestError> {
        self.commands.get(&exec).ok_or(GuestError::NoSuchExec(exec))
    }

    fn get_mut(&mut self, exec: ExecId) -> Result<&mut Command, GuestError> {
        self.commands.get_mut(&exec).ok_or(GuestError::NoSuchExec(exec))
    }

    /// Starts a command.
    ///
    /// # Errors
    /// [`GuestError::TooManyExecs`], [`GuestError::BadCall`].
    pub fn spawn(&mut self, spec: SpawnSpec, config: &GuestConfig) -> Result<ExecInfo, GuestError> {
        if self.commands.len() - self.ended.len() >= RUNNING_MAX {
            return Err(GuestError::TooManyExecs);
        }
        let exec = ExecId(self.next_exec);
        let around = Surroundings {
            cgroup: self.cgroup.as_fd(),
            config,
            open_files: self.open_files,
            output_cost_max: self.output_max(),
        };
        let command = start::start(exec, spec, &around)?;
        self.next_exec += 1;
        self.commands.insert(exec, command);
        let now = Instant::now();
        self.finish(exec, now);
        Ok(self.get(exec)?.info(now))
    }

    /// One command's record.
    ///
    /// # Errors
    /// [`GuestError::NoSuchExec`].
    pub fn info(&self, exec: ExecId) -> Result<ExecInfo, GuestError> {
        Ok(self.get(exec)?.info(Instant::now()))
    }

    /// Running commands and the last ended ones, by number.
    pub fn list(&self) -> Vec<ExecInfo> {
        let now = Instant::now();
        self.listed().map(|command| command.info(now)).collect()
    }

    fn listed(&self) -> impl Iterator<Item = &Command> {
        let last = &self.ended[self.ended.len().saturating_sub(ENDED_KEPT)..];
        self.commands
            .values()
            .filter(move |command| command.phase != Phase::Ended || last.contains(&command.given.exec))
    }

    /// Whether a reader at `cursor` would get something.
    pub fn has_output(&self, exec: ExecId, cursor: u64) -> bool {
        self.commands.get(&exec).is_none_or(|command| command.output.end() > cursor || command.phase == Phase::Ended)
    }

    /// Whether a command has ended, or is not known.
    pub fn has_ended(&self, exec: ExecId) -> bool {
        self.commands.get(&exec).is_none_or(|command| command.phase == Phase::Ended)
    }

    /// Remembers that a reader keeps reading from there.
    pub fn attach(&mut self, exec: ExecId, cursor: u64) {
        if let Some(command) = self.commands.get_mut(&exec) {
            command.attached = Some((cursor, Instant::now()));
        }
    }

    /// Output from a cursor.
    ///
    /// # Errors
    /// [`GuestError::NoSuchExec`].
    pub fn output(&mut self, exec: ExecId, cursor: u64, bytes_max: usize) -> Result<Reply, GuestError> {
        let command = self.get_mut(exec)?;
        let part = command.output.read(cursor, bytes_max);
        let mut info = command.info(Instant::now());
        if part.next < command.output.end() {
            info.state = ExecState::Running;
        } else if command.phase == Phase::Ended {
            command.read_to_end = true;
        }
        Ok(Reply::Output { chunks: part.chunks, next_cursor: part.next, dropped: part.dropped, info })
    }

    /// Input for a command.
    ///
    /// # Errors
    /// [`GuestError::NoSuchExec`]; [`GuestError::BadCall`] when it takes none.
    pub fn input(&mut self, exec: ExecId, offset: u64, bytes: &[u8], eof: bool) -> Result<u64, GuestError> {
        let pending_max = self.share(STDIN_PENDING_BYTES_MAX);
        let command = self.get_mut(exec)?;
        let accepted = command.input.accept(offset, bytes, eof, pending_max);
        accepted.map_err(|_| GuestError::BadCall(format!("standard input of {exec} is closed")))
    }

    /// Signals every process of a command.
    ///
    /// # Errors
    /// [`GuestError::NoSuchExec`]; [`GuestError::BadCall`] for a number that is no signal.
    pub fn signal(&mut self, exec: ExecId, signal: i32) -> Result<ExecInfo, GuestError> {
        if !(1..=64).contains(&signal) {
            return Err(GuestError::BadCall(format!("{signal} is no signal")));
        }
        let command = self.get(exec)?;
        if signal == 9 {
            command.kill()
        } else {
            command.signal(signal)
        }
        Ok(command.info(Instant::now()))
    }

    /// Gives a command's terminal another size.
    ///
    /// # Errors
    /// [`GuestError::NoSuchExec`]; [`GuestError::BadCall`] for a command without one, or a size that none has.
    pub fn resize(&mut self, exec: ExecId, size: PtySize) -> Result<ExecInfo, GuestError> {
        let command = self.get_mut(exec)?;
        match (command.pty, command.pipe(Stream::Stdout)) {
            (None, _) => return Err(GuestError::BadCall(format!("{exec} has no terminal"))),
            // One that has ended shows the size it had.
            (Some(_), None) => {}
            (Some(_), Some(master)) => {
                terminal::resize(master, size).map_err(|error| {
                    GuestError::BadCall(format!("the terminal of {exec} cannot be resized: {error}"))
                })?;
                command.pty = Some(size);
            }
        }
        Ok(command.info(Instant::now()))
    }

    /// Every descriptor that waits for something.
    pub fn pipes<'a>(&'a self, now: Instant, found: &mut Vec<(Pipe, BorrowedFd<'a>)>) {
        let output_max = self.output_max();
        for (exec, command) in self.commands.iter().filter(|(_, command)| command.phase != Phase::Ended) {
            if let Some(pipe) = command.input.wants_write() {
                found.push((Pipe::Stdin(*exec), pipe));
            }
            if command.wants_output(output_max, now) {
                for stream in [Stream::Stdout, Stream::Stderr] {
                    found.extend(command.pipe(stream).map(|pipe| (Pipe::Output(*exec, stream), pipe)));
                }
            }
        }
    }

    /// Moves bytes of a descriptor that is ready.
    pub fn ready(&mut self, pipe: Pipe, now: Instant) {
        let output_max = self.output_max();
        match pipe {
            Pipe::Stdin(exec) => {
                if let Some(command) = self.commands.get_mut(&exec) {
                    command.input.write();
                }
            }
            Pipe::Output(exec, stream) => {
                if let Some(command) = self.commands.get_mut(&exec) {
                    command.read(stream, output_max, now);
                }
            }
        }
    }

    /// Reaps every child that has ended, orphans included.
    pub fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::io::retry_on_intr(|| wait(WaitOptions::NOHANG)) {
            let (pid, now) = (pid.as_raw_nonzero().get(), Instant::now());
            let first =
                self.commands.values_mut().find(|command| command.pid == pid && command.phase == Phase::Running);
            if let Some(command) = first {
                command.first_process_ended(status.as_raw(), now);
            }
        }
    }

    /// Does what time brings: ends commands whose time is up, goes on with those that are ending, forgets old ones.
    pub fn tick(&mut self, now: Instant) {
        for command in self.commands.values_mut() {
            if command.phase == Phase::Running && command.deadline.is_some_and(|deadline| deadline <= now) {
                command.deadline = None;
                command.timed_out = true;
                command.kill();
            }
        }
        let emptying = |command: &&Command| matches!(command.phase, Phase::Emptying(_));
        let execs: Vec<ExecId> = self.commands.values().filter(emptying).map(|command| command.given.exec).collect();
        for exec in execs {
            self.finish(exec, now);
        }
        self.leftovers.retain(|group| group.remove(self.cgroup.as_fd()).is_err());
        self.forget(now);
    }

    fn finish(&mut self, exec: ExecId, now: Instant) {
        let output_max = self.output_max();
        let Some(command) = self.commands.get_mut(&exec) else { return };
        if let Some(group) = command.finish(output_max, now)
            && group.remove(self.cgroup.as_fd()).is_err()
        {
            self.leftovers.push(group);
        }
        if command.phase == Phase::Ended {
            self.ended.push(exec);
        }
    }

    fn forget(&mut self, now: Instant) {
        while self.ended.len() > ENDED_KEPT {
            let oldest = self.ended[0];
            let Some(command) = self.commands.get(&oldest) else { return };
            let ran = now - command.since;
            let ended_for = command
                .ended
                .map_or(Duration::ZERO, |(_, until_end)| (ran + command.ran_before).saturating_sub(until_end));
            if !command.read_to_end && ended_for < ATTACHED_GRACE && self.ended.len() <= ENDED_UNREAD_MAX {
                return;
            }
            self.commands.remove(&oldest);
            self.ended.remove(0);
        }
    }

    /// When `tick` has something to do next.
    pub fn next_tick(&self, now: Instant) -> Option<Instant> {
        let output_max = self.output_max();
        let due = self.commands.values().filter(|command| command.phase != Phase::Ended).flat_map(|command| {
            let emptying = matches!(command.phase, Phase::Emptying(_)).then(|| now + EMPTYING_TICK);
            let blocked = !command.wants_output(output_max, now);
            let reader_gone = command.attached.filter(|_| blocked).map(|(_, at)| at + ATTACHED_GRACE);
            [command.deadline, emptying, reader_gone]
        });
        let leftovers = (!self.leftovers.is_empty()).then(|| now + Duration::from_secs(1));
        due.chain([leftovers]).flatten().min()
    }

    /// Moves every time limit, after time stood still.
    pub fn shift_deadlines(&mut self, by: Duration) {
        for command in self.commands.values_mut() {
            command.deadline = command.deadline.and_then(|deadline| deadline.checked_add(by));
        }
    }

    /// The table as it is now, for a snapshot.
    pub fn save(&self) -> GuestState {
        let now = Instant::now();
        GuestState {
            next_exec: self.next_exec,
            last_pid: last_pid(),
            execs: self.listed().map(|command| saved::save(command, now)).collect(),
        }
    }

    /// Takes a saved table over; only into an empty one.
    ///
    /// # Errors
    /// [`GuestError::Rebuild`] naming what makes no sense.
    pub fn load(&mut self, state: GuestState, mut fds: Vec<(i32, i32)>) -> Result<(), GuestError> {
        if !self.commands.is_empty() || state.execs.len() > RUNNING_MAX + ENDED_KEPT {
            return Err(GuestError::Rebuild(format!(
                "a saved table of {} commands cannot be taken over",
                state.execs.len()
            )));
        }
        let now = Instant::now();
        let mut ended = Vec::new();
        for exec in state.execs {
            let command = saved::load(exec, &mut fds, self.cgroup.as_fd(), now).map_err(GuestError::Rebuild)?;
            let number = command.given.exec;
            if command.phase == Phase::Ended {
                ended.push((command.ended.map_or(0, |(at, _)| at), number));
            }
            if number.0 >= state.next_exec || self.commands.insert(number, command).is_some() {
                return Err(GuestError::Rebuild(format!("saved command {number}: its number is wrong")));
            }
        }
        ended.sort_unstable();
        self.ended = ended.into_iter().map(|(_, exec)| exec).collect();
        self.next_exec = state.next_exec;
        Ok(())
    }
}

/// The last pid given out in this namespace; 0 where the kernel does not tell.
fn last_pid() -> i32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/ns_last_pid").unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}
