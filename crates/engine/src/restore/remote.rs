//! Processes that are being made: each thread runs batches of calls from its own slot of the shared region.

use crate::live::{Call, read_results, write_batch};
use branchbox_sys::memory::Shared;
use branchbox_sys::ptrace::{self, Stop};
use branchbox_sys::remote::{self, Entry, Header};
use std::io;

/// Bytes of one thread's slot: entries in the lower half, data in the upper.
pub(crate) const SLOT_BYTES: usize = 128 * 1024;
const DATA: usize = SLOT_BYTES / 2;
const CALLS_MAX: usize = (DATA - Header::ENTRIES) / Header::ENTRY_BYTES;
const MARKER: i32 = 5;
const SYS_TGKILL: u64 = 234;
const NO_CALL: u64 = u64::MAX;
const STOPS_MAX: u32 = 4096;

/// How a restored task is traced: it dies with the keeper until it is released.
pub(crate) const OPTIONS: u64 =
    ptrace::SUSPEND_SECCOMP | ptrace::TRACE_SYSGOOD | ptrace::TRACE_NEW_TASKS | ptrace::EXIT_KILL;

/// One task on the remote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    /// Host id.
    pub host_tid: i32,
    /// Process id inside.
    pub pid: i32,
    /// Thread id inside.
    pub tid: i32,
    /// Offset of its slot in the region.
    pub slot: usize,
}

/// Calls and the data they point to, gathered for one task.
pub(crate) struct Batch<'a> {
    remote: Remote,
    shared: &'a Shared,
    region: u64,
    calls: Vec<(Call, bool)>,
    data: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(remote: Remote, shared: &'a Shared, region: u64) -> Self {
        Self { remote, shared, region, calls: Vec::new(), data: 0 }
    }

    /// Puts bytes where the task sees them and gives their address.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.data.next_multiple_of(16);
        if at + bytes.len() > SLOT_BYTES - DATA {
            return Err(io::Error::other("more data than fits one batch"));
        }
        self.shared.write(self.remote.slot + DATA + at, bytes);
        self.data = at + bytes.len();
        Ok(self.region + (self.remote.slot + DATA + at) as u64)
    }

    /// Room left for data.
    pub(crate) fn room(&self) -> usize {
        SLOT_BYTES - DATA - self.data.next_multiple_of(16)
    }

    /// Adds a call that must succeed.
    pub(crate) fn call(&mut self, number: i64, args: &[u64]) {
        self.calls.push((Call::new(number, args), true));
    }

    /// Adds a call that may fail.
    pub(crate) fn attempt(&mut self, number: i64, args: &[u64]) {
        self.calls.push((Call::new(number, args), false));
    }

    /// Makes all calls and gives their results.
    pub(crate) fn run(&mut self) -> io::Result<Vec<i64>> {
        let calls = std::mem::take(&mut self.calls);
        let mut results = Vec::with_capacity(calls.len());
        for chunk in calls.chunks(CALLS_MAX) {
            let plain: Vec<Call> = chunk.iter().map(|(call, _)| *call).collect();
            let part = run(self.remote, self.shared, self.region, &plain, &mut Vec::new())?;
            for ((call, must), &result) in chunk.iter().zip(&part) {
                if *must && (-4095..0).contains(&result) {
                    let error = io::Error::from_raw_os_error(-result as i32);
                    let message = format!("call {} {:x?}: {error}", call.number, call.args);
                    return Err(io::Error::new(error.kind(), message));
                }
            }
            results.extend(part);
        }
        self.data = 0;
        Ok(results)
    }
}

/// Seizes a new child of the guest, which waits in the region, and stops it.
pub(crate) fn adopt(host_tid: i32) -> io::Result<()> {
    ptrace::seize(host_tid, OPTIONS)?;
    ptrace::interrupt(host_tid)?;
    await_event(host_tid)?;
    ptrace::set_signal_mask(host_tid, !(1 << (MARKER - 1)))
}

/// Waits for the first stop of a new task that its maker's tracing brought.
pub(crate) fn await_event(host_tid: i32) -> io::Result<()> {
    for _ in 0..STOPS_MAX {
        match ptrace::wait(host_tid)? {
            Stop::Event(_) => return Ok(()),
            Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other("a new task ended")),
            _ => ptrace::cont(host_tid, 0)?,
        }
    }
    Err(io::Error::other("a new task does not stop"))
}

/// Makes calls in a task; host ids of tasks that they made are appended to `new_tasks`.
pub(crate) fn run(
    remote: Remote,
    shared: &Shared,
    region: u64,
    calls: &[Call],
    new_tasks: &mut Vec<i32>,
) -> io::Result<Vec<i64>> {
    let marker = [SYS_TGKILL, remote.pid as u64, remote.tid as u64, MARKER as u64];
    write_batch(shared, remote.slot, calls, marker);
    start(remote, region)?;
    for _ in 0..STOPS_MAX {
        match ptrace::wait(remote.host_tid)? {
            Stop::Signal(MARKER) => return read_results(shared, remote.slot, calls.len()),
            Stop::NewTask => {
                new_tasks.push(ptrace::event_message(remote.host_tid)? as i32);
                ptrace::cont(remote.host_tid, 0)?;
            }
            Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other("the task ended")),
            // SIGILL, SIGBUS, SIGFPE, SIGSEGV, SIGSYS: the remote itself went wrong.
            Stop::Signal(signal @ (4 | 7 | 8 | 11 | 31)) => {
                let at = ptrace::registers(remote.host_tid)?.rip;
                let done = shared.get_u32(remote.slot + Header::DONE);
                return Err(io::Error::other(format!("signal {signal} at {at:x} after {done} calls")));
            }
            _ => ptrace::cont(remote.host_tid, 0)?,
        }
    }
    Err(io::Error::other("the task does not come to its marker"))
}

/// Sets a task on its batch without waiting for it.
pub(crate) fn start(remote: Remote, region: u64) -> io::Result<()> {
    let mut registers = ptrace::registers(remote.host_tid)?;
    registers.orig_rax = NO_CALL;
    registers.rax = 0;
    registers.rbx = region + remote.slot as u64;
    registers.rip = region + remote::entry_offset(Entry::Loop) as u64;
    ptrace::set_registers(remote.host_tid, &registers)?;
    ptrace::cont(remote.host_tid, 0)
}

/// Makes one last call in a task through a `syscall` instruction outside the region: the unmapping of the region itself.
pub(crate) fn unmap_region(remote: Remote, syscall_at: u64, region: u64, bytes: u64) -> io::Result<()> {
    const SYS_MUNMAP: u64 = 11;
    let mut registers = ptrace::registers(remote.host_tid)?;
    registers.orig_rax = NO_CALL;
    (registers.rax, registers.rdi, registers.rsi) = (SYS_MUNMAP, region, bytes);
    registers.rip = syscall_at;
    ptrace::set_registers(remote.host_tid, &registers)?;
    for _ in 0..2 {
        loop {
            ptrace::to_syscall(remote.host_tid)?;
            match ptrace::wait(remote.host_tid)? {
                Stop::Syscall => break,
                Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other("the task ended")),
                _ => {}
            }
        }
    }
    match ptrace::registers(remote.host_tid)?.rax.cast_signed() {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error as i32)),
    }
}
