//! Which system call a thread waits in.
//!
//! A thread that was stopped in `nanosleep`, `poll` or `futex` goes on in `restart_syscall`, whose arguments live in the
//! kernel and nowhere else; stopped a second time, its registers name only that. A copy has no such kernel state and must
//! make the first call again, so a capture remembers what it saw, by thread and place. For a thread that somebody else
//! stopped first (a SIGSTOP), the instruction before the call often tells the number. Where nothing tells, the capture is
//! refused; the same wait ends or is seen anew at the next attempt.

use crate::procfs::{self, Status};
use crate::stop::Task;
use branchbox_sys::ptrace::{self, Registers};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const RESTART_SYSCALL: u64 = 219;
const ERESTART_RESTARTBLOCK: u64 = (-516i64).cast_unsigned();

/// What earlier captures of one sandbox saw. Kept by its keeper; empty after a keeper's restart.
#[derive(Debug, Default)]
pub struct CallHistory(HashMap<i32, Seen>);

#[derive(Debug, Clone, Copy)]
struct Seen {
    rip: u64,
    rsp: u64,
    number: u64,
    /// When it was first seen in this very wait, and when last.
    first: Instant,
    last: Instant,
    /// How often the thread had given the processor away by itself.
    switches: u64,
}

impl CallHistory {
    /// Remembers every wait with a time limit, and forgets the rest.
    ///
    /// A limit in a register that starts anew at every stop would never end under frequent captures: where a thread is still
    /// in the wait it was last seen in, the limit is shortened by the time since, in the source too.
    ///
    /// # Errors
    /// What reading a task or setting its registers says.
    pub(crate) fn note(&mut self, tasks: &mut [Task]) -> io::Result<()> {
        let now = Instant::now();
        let mut next = HashMap::new();
        for task in tasks.iter_mut().filter(|task| waits(&task.registers) || has_epoll_limit(&task.registers)) {
            let Some(number) = self.number(task) else { continue };
            let switches = Status::read(task.tid)?.number("voluntary_ctxt_switches");
            let before = self.seen(task).filter(|seen| seen.number == number && is_same_wait(seen.switches, switches));
            if let Some(seen) = before
                && has_epoll_limit(&task.registers)
            {
                task.registers.r10 = shortened(task.registers.r10, now - seen.last);
                ptrace::set_registers(task.tid, &task.registers)?;
            }
            let (rip, rsp) = (task.registers.rip, task.registers.rsp);
            let first = before.map_or(now, |seen| seen.first);
            next.insert(task.tid, Seen { rip, rsp, number, first, last: now, switches });
        }
        self.0 = next;
        Ok(())
    }

    /// Counts anew from here: what the capture made a thread do is over, and it is about to be let go.
    pub(crate) fn settle(&mut self) {
        for (&tid, seen) in &mut self.0 {
            if let Ok(status) = Status::read(tid) {
                seen.switches = status.number("voluntary_ctxt_switches");
            }
        }
    }

    fn seen(&self, task: &Task) -> Option<Seen> {
        let at = (task.registers.rip, task.registers.rsp);
        self.0.get(&task.tid).copied().filter(|seen| (seen.rip, seen.rsp) == at)
    }

    /// The number of the call that a waiting thread first made.
    pub(crate) fn number(&self, task: &Task) -> Option<u64> {
        if task.registers.orig_rax != RESTART_SYSCALL {
            return Some(task.registers.orig_rax);
        }
        self.seen(task).map(|seen| seen.number).or_else(|| number_in_code(task))
    }

    /// How long a thread is known to have been in the wait it is in.
    pub(crate) fn waited(&self, task: &Task) -> Duration {
        self.seen(task).map_or(Duration::ZERO, |seen| seen.last - seen.first)
    }
}

/// A thread that a capture let go and another one stopped gave the processor away at most three times in between: to wait on,
/// to the freezer, to the tracer. Once more, and it has been somewhere else.
fn is_same_wait(before: u64, after: u64) -> bool {
    const STOPS: u64 = 3;
    after.wrapping_sub(before) <= STOPS
}

/// `epoll_wait` or `epoll_pwait` that will be made again, with a limit in milliseconds.
fn has_epoll_limit(registers: &Registers) -> bool {
    const ERESTARTNOHAND: u64 = (-514i64).cast_unsigned();
    matches!(registers.orig_rax, 232 | 281) && registers.rax == ERESTARTNOHAND && registers.r10 as i32 > 0
}

/// A limit in milliseconds less what is over.
pub(crate) fn shortened(limit_ms: u64, over: Duration) -> u64 {
    limit_ms.saturating_sub(over.as_millis() as u64)
}

/// Whether the kernel will make the call again by `restart_syscall`.
pub(crate) fn waits(registers: &Registers) -> bool {
    registers.rax == ERESTART_RESTARTBLOCK && registers.orig_rax.cast_signed() >= 0
}

/// `mov eax, imm32` right before `syscall`.
fn number_in_code(task: &Task) -> Option<u64> {
    const RESTARTABLE: [u32; 4] = [7, 35, 202, 230];
    let mut code = [0u8; 7];
    let memory = File::open(procfs::path(task.pid, "mem")).ok()?;
    memory.read_exact_at(&mut code, task.registers.rip.checked_sub(7)?).ok()?;
    let [0xb8, a, b, c, d, 0x0f, 0x05] = code else { return None };
    let number = u32::from_le_bytes([a, b, c, d]);
    RESTARTABLE.contains(&number).then_some(u64::from(number))
}

#[cfg(test)]
mod tests {
    use super::{is_same_wait, shortened};
    use std::time::Duration;

    #[test]
    fn limits_shrink_to_nothing_and_not_below() {
        assert_eq!(shortened(3000, Duration::from_millis(700)), 2300);
        assert_eq!(shortened(300, Duration::from_millis(700)), 0);
    }

    #[test]
    fn a_thread_that_was_elsewhere_is_in_a_new_wait() {
        assert!(is_same_wait(10, 13) && !is_same_wait(10, 14));
    }
}
