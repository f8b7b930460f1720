//! Which system call a thread waits in.
//!
//! A thread that was stopped in `nanosleep`, `poll` or `futex` goes on in `restart_syscall`, whose arguments live in the
//! kernel and nowhere else; stopped a second time, its registers name only that. A copy has no such kernel state and must
//! make the first call again, so a capture remembers what it saw, by thread and place. For a thread that somebody else
//! stopped first (a SIGSTOP), the instruction before the call often tells the number. Where nothing tells, the capture is
//! refused; the same wait ends or is seen anew at the next attempt.

use crate::procfs;
use crate::stop::Task;
use branchbox_sys::ptrace::Registers;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

const RESTART_SYSCALL: u64 = 219;
const ERESTART_RESTARTBLOCK: u64 = (-516i64).cast_unsigned();

/// What earlier captures of one sandbox saw. Kept by its keeper; empty after a keeper's restart.
#[derive(Debug, Default)]
pub struct CallHistory(HashMap<i32, Seen>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    rip: u64,
    rsp: u64,
    number: u64,
}

impl CallHistory {
    /// Remembers every wait that these stops will turn into `restart_syscall`, and forgets the rest.
    pub(crate) fn note(&mut self, tasks: &[Task]) {
        let mut next = HashMap::new();
        for task in tasks.iter().filter(|task| waits(&task.registers)) {
            if let Some(number) = self.number(task) {
                next.insert(task.tid, Seen { rip: task.registers.rip, rsp: task.registers.rsp, number });
            }
        }
        self.0 = next;
    }

    /// The number of the call that a waiting thread first made.
    pub(crate) fn number(&self, task: &Task) -> Option<u64> {
        let registers = &task.registers;
        if registers.orig_rax != RESTART_SYSCALL {
            return Some(registers.orig_rax);
        }
        let seen = self.0.get(&task.tid).filter(|seen| (seen.rip, seen.rsp) == (registers.rip, registers.rsp));
        seen.map(|seen| seen.number).or_else(|| number_in_code(task))
    }
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
