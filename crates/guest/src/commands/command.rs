//! One command: its record, its pipes, and its way from running to ended.
//!
//! Its first process ends → what else it started is killed → its cgroup is empty → what is left in its pipes is read →
//! it has ended. Until the last of these it counts as running, so whoever sees an ended command sees all of its output.

use super::group::Group;
use super::input::Input;
use super::output::Output;
use branchbox_model::ExecId;
use branchbox_protocol::guest::{ExecInfo, ExecState, PtySize, Stream};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Read from a pipe at once: what a pipe holds.
const READ_BYTES: usize = 64 * 1024;
/// A reader that was not heard of for so long is gone, and the command waits for it no longer.
pub const ATTACHED_GRACE: Duration = Duration::from_secs(10);
/// How long a killed command may take to be gone before it counts as ended all the same.
const EMPTYING_MAX: Duration = Duration::from_secs(10);
/// Read from a pipe at the end, at most: the largest size that a user can give a pipe.
const LEFT_IN_PIPE_MAX: usize = 1024 * 1024;
/// Kill signal's number.
const SIGKILL: i32 = 9;

/// Where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Its first process lives.
    Running,
    /// That has ended; the rest is being ended since then.
    Emptying(Instant),
    /// Over.
    Ended,
}

/// A command.
#[derive(Debug)]
pub struct Command {
    /// What does not change.
    pub given: Given,
    /// Its first process.
    pub pid: i32,
    /// Where it is.
    pub phase: Phase,
    /// How its first process ended.
    pub wait_status: Option<i32>,
    /// Its time was up.
    pub timed_out: bool,
    /// When its time is up.
    pub deadline: Option<Instant>,
    /// When it started, on this guest's clock.
    pub since: Instant,
    /// How long it ran before that, in a guest that was saved.
    pub ran_before: Duration,
    /// When it ended, and how long it had run.
    pub ended: Option<(u64, Duration)>,
    /// The size of its terminal, if it has one: then both its pipes are that one's master.
    pub pty: Option<PtySize>,
    /// Its input.
    pub input: Input,
    /// Its pipes.
    pub stdout: Option<OwnedFd>,
    /// See `stdout`.
    pub stderr: Option<OwnedFd>,
    /// The end of its terminal that its programs have, until it has ended. Without it the master would read as ended as soon as
    /// they have closed theirs: many do so before they exit, and some open `/dev/tty` later. A master closed then would hang
    /// up the terminal, which kills what is about to exit well (`drivers/tty/pty.c`, `pty_close`).
    pub slave: Option<OwnedFd>,
    /// Its output.
    pub output: Output,
    /// Its cgroup, until it has ended.
    pub group: Option<Group>,
    /// A reader that keeps reading: from where, and when it last asked.
    pub attached: Option<(u64, Instant)>,
    /// Somebody has read to the end.
    pub read_to_end: bool,
    /// Killed by the memory limit.
    pub oom_kills: u32,
}

/// What a command was started with and its record shows.
#[derive(Debug, Clone)]
pub struct Given {
    /// Its number.
    pub exec: ExecId,
    /// As shown.
    pub display: String,
    /// Working directory.
    pub cwd: String,
    /// Uid, gid.
    pub user: (u32, u32),
    /// The caller's.
    pub tag: String,
    /// Wall clock.
    pub started_ms: u64,
    /// Its limit.
    pub timeout_ms: Option<u64>,
}

/// Wall-clock milliseconds since 1970.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Command {
    /// Its state as told.
    pub fn state(&self) -> ExecState {
        match (self.phase, self.wait_status) {
            (Phase::Ended, _) if self.timed_out => ExecState::TimedOut,
            (Phase::Ended, Some(status)) if status & 0x7f == 0 => ExecState::Exited((status >> 8) & 0xff),
            (Phase::Ended, status) => ExecState::Killed(status.map_or(SIGKILL, |status| status & 0x7f)),
            _ => ExecState::Running,
        }
    }

    /// Its record.
    pub fn info(&self, now: Instant) -> ExecInfo {
        let ran = self.ended.map_or_else(|| self.ran_before + (now - self.since), |(_, ran)| ran);
        let given = self.given.clone();
        ExecInfo {
            exec: given.exec,
            state: self.state(),
            pid: self.pid,
            display: given.display,
            cwd: given.cwd,
            user: given.user,
            tag: given.tag,
            started_ms: given.started_ms,
            ended_ms: self.ended.map(|(ended_ms, _)| ended_ms),
            timeout_ms: given.timeout_ms,
            duration_ms: u64::try_from(ran.as_millis()).unwrap_or(u64::MAX),
            pty: self.pty,
            stdin_open: self.input.is_open(),
            stdin_offset: self.input.accepted(),
            output_bytes: self.output.end(),
            first_offset: self.output.first_offset(),
            oom_kills: self.oom_kills,
        }
    }

    /// The position from which on nothing may be dropped, because a reader is attached that has not seen it.
    fn kept_from(&self, now: Instant) -> Option<u64> {
        self.attached
            .filter(|(cursor, at)| now - *at < ATTACHED_GRACE && *cursor >= self.output.first_offset())
            .map(|(cursor, _)| cursor)
    }

    /// Whether its pipes are to be read now.
    pub fn wants_output(&self, cost_max: usize, now: Instant) -> bool {
        self.kept_from(now).is_none_or(|cursor| self.output.has_room(cost_max, cursor))
    }

    /// A stream's pipe.
    pub fn pipe(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        match stream {
            Stream::Stdout => self.stdout.as_ref(),
            Stream::Stderr => self.stderr.as_ref(),
        }
        .map(AsFd::as_fd)
    }

    /// Reads once from a stream's pipe; `true` when something came.
    pub fn read(&mut self, stream: Stream, cost_max: usize, now: Instant) -> bool {
        let Some(pipe) = self.pipe(stream) else { return false };
        let mut bytes = Vec::with_capacity(READ_BYTES);
        let read = rustix::io::retry_on_intr(|| rustix::io::read(pipe, rustix::buffer::spare_capacity(&mut bytes)));
        match read {
            Err(Errno::AGAIN) => false,
            Ok(0) | Err(_) => {
                match stream {
                    Stream::Stdout => self.stdout = None,
                    Stream::Stderr => self.stderr = None,
                }
                false
            }
            Ok(_) => {
                bytes.shrink_to_fit();
                let keep_from = self.kept_from(now);
                self.output.push(stream, bytes, cost_max, keep_from);
                true
            }
        }
    }

    /// Ends everything of it.
    pub fn kill(&self) {
        if let Some(group) = &self.group
            && group.kill().is_err()
        {
            self.signal(SIGKILL);
        }
    }

    /// Sends a signal to each of its processes; one that is gone meanwhile is no error.
    pub fn signal(&self, signal: i32) {
        for pid in self.group.iter().flat_map(Group::pids) {
            let _ = branchbox_sys::spawn::send_signal(pid, signal);
        }
    }

    /// Its first process has ended.
    pub fn first_process_ended(&mut self, status: i32, now: Instant) {
        self.wait_status = Some(status);
        self.deadline = None;
        if self.group.as_ref().is_some_and(Group::is_populated) {
            self.kill();
        }
        self.phase = Phase::Emptying(now);
    }

    /// Goes on from `Emptying` to `Ended` if it can; gives the cgroup, to be removed.
    pub fn finish(&mut self, cost_max: usize, now: Instant) -> Option<Group> {
        let Phase::Emptying(since) = self.phase else { return None };
        if self.group.as_ref().is_some_and(Group::is_populated) && now - since < EMPTYING_MAX {
            // Again: what was being made when the first kill came, or what a restore brought back.
            self.kill();
            return None;
        }
        self.slave = None;
        for stream in [Stream::Stdout, Stream::Stderr] {
            let end = self.output.end();
            while self.output.end() - end < LEFT_IN_PIPE_MAX as u64 && self.read(stream, cost_max, now) {}
        }
        (self.stdout, self.stderr) = (None, None);
        self.input.close();
        self.oom_kills = self.group.as_ref().map_or(0, Group::oom_kills);
        self.ended = Some((wall_ms(), self.ran_before + (now - self.since)));
        self.phase = Phase::Ended;
        self.group.take()
    }
}
