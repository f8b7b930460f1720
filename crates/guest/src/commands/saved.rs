//! The table as it travels in a snapshot: out of a guest that holds still, into a fresh one.
//!
//! What comes in was written by a guest, so by somebody inside a sandbox: it is bounded and checked like any other input,
//! and a table that makes no sense is refused whole.

use super::command::{Command, Given, Phase};
use super::group::Group;
use super::input::Input;
use super::output::Output;
use super::start::make_nonblocking;
use branchbox_protocol::guest::{ExecInfo, ExecState, STDIN_PENDING_BYTES_MAX, SavedExec};
use branchbox_sys::inherited;
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Kept output believed of one saved command.
const SAVED_OUTPUT_MAX: usize = 4 * 1024 * 1024;

/// Writes one command down.
pub fn save(command: &Command, now: Instant) -> SavedExec {
    SavedExec {
        info: command.info(now),
        timeout_left_ms: command
            .deadline
            .map(|at| u64::try_from((at.saturating_duration_since(now)).as_millis()).unwrap_or(u64::MAX)),
        stdin_fd: command.input.pipe().map(|fd| fd.as_raw_fd()),
        stdout_fd: command.stdout.as_ref().map(AsRawFd::as_raw_fd),
        stderr_fd: command.stderr.as_ref().map(AsRawFd::as_raw_fd),
        stdin_pending: command.input.pending(),
        stdin_eof: command.input.is_ended(),
        chunks: command.output.chunks().cloned().collect(),
        wait_status: command.wait_status,
        timed_out: command.timed_out,
    }
}

/// Takes one command over. `fds` gives for a saved descriptor number the one in this process, and is used up: a number
/// that occurs twice is refused.
///
/// # Errors
/// What about it makes no sense.
pub fn load(
    saved: SavedExec,
    fds: &mut Vec<(i32, i32)>,
    cgroup: BorrowedFd<'_>,
    now: Instant,
) -> Result<Command, String> {
    let exec = saved.info.exec;
    let bad = |what: &str| format!("saved command {exec}: {what}");
    let running = saved.info.state == ExecState::Running;
    let kept: usize = saved.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
    if kept > SAVED_OUTPUT_MAX || saved.stdin_pending.len() > STDIN_PENDING_BYTES_MAX {
        return Err(bad("more kept bytes than a guest keeps"));
    }
    let output =
        Output::from_saved(saved.chunks, saved.info.output_bytes).ok_or_else(|| bad("its output is not whole"))?;
    let mut take = |number: Option<i32>| number.filter(|_| running).map(|number| adopt(number, fds)).transpose();
    let pipes = (take(saved.stdin_fd), take(saved.stdout_fd), take(saved.stderr_fd));
    let (stdin, stdout, stderr) =
        (pipes.0.map_err(|e| bad(&e))?, pipes.1.map_err(|e| bad(&e))?, pipes.2.map_err(|e| bad(&e))?);
    let group = running.then(|| Group::create(cgroup, exec)).transpose().map_err(|e| bad(&e.to_string()))?;
    let phase = match (running, saved.wait_status) {
        (false, _) => Phase::Ended,
        (true, Some(_)) => Phase::Emptying(now),
        (true, None) if saved.info.pid > 1 => Phase::Running,
        (true, None) => return Err(bad("it runs and has no process")),
    };
    let ran = Duration::from_millis(saved.info.duration_ms);
    let input = Input::new(stdin, saved.stdin_pending, saved.info.stdin_offset, saved.stdin_eof);
    Ok(Command {
        pid: saved.info.pid,
        phase,
        wait_status: saved.wait_status.or_else(|| status_of(saved.info.state)),
        timed_out: saved.timed_out || saved.info.state == ExecState::TimedOut,
        deadline: saved.timeout_left_ms.filter(|_| running).and_then(|ms| now.checked_add(Duration::from_millis(ms))),
        since: now,
        ran_before: ran,
        ended: saved.info.ended_ms.filter(|_| !running).map(|ended_ms| (ended_ms, ran)),
        input: if saved.info.pty.is_some() { input.on_terminal() } else { input },
        pty: saved.info.pty,
        stdout,
        stderr,
        // Nothing on a terminal is captured.
        slave: None,
        output,
        group,
        attached: None,
        read_to_end: true,
        oom_kills: saved.info.oom_kills,
        given: given(saved.info),
    })
}

fn given(info: ExecInfo) -> Given {
    Given {
        exec: info.exec,
        display: info.display,
        cwd: info.cwd,
        user: info.user,
        tag: info.tag,
        started_ms: info.started_ms,
        timeout_ms: info.timeout_ms,
    }
}

fn status_of(state: ExecState) -> Option<i32> {
    match state {
        ExecState::Running | ExecState::TimedOut => None,
        ExecState::Exited(code) => Some((code & 0xff) << 8),
        ExecState::Killed(signal) => Some(signal & 0x7f),
    }
}

fn adopt(number: i32, fds: &mut Vec<(i32, i32)>) -> Result<OwnedFd, String> {
    let at = fds
        .iter()
        .position(|(saved, _)| *saved == number)
        .ok_or_else(|| format!("descriptor {number} did not come with it"))?;
    let (_, here) = fds.swap_remove(at);
    let fd = inherited::take(here).map_err(|error| format!("descriptor {here}: {error}"))?;
    make_nonblocking(&fd).map_err(|error| format!("descriptor {here}: {error}"))?;
    Ok(fd)
}
