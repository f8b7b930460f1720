//! The remote in a live process: system calls that a stopped thread makes for us, and nobody notices.
//!
//! What the kernel tells a process about itself alone is asked through the thread itself. The remote's code is written into
//! the zero tail of the vdso's last page (behind the ELF image, whose end the section headers tell), with the thread's own
//! registers and mask as data beside it. The order of steps is such that at every instant, should the keeper die there, the
//! thread comes back by itself:
//!
//! 1. write the stub while nobody runs it; 2. registers to the stub; 3. block all signals but the marker;
//! 4. map the batch page by turning a harmless `read(-1)` into mmap at its entry stop; 5. arm the dead-man word; run batches;
//! 6. registers to the stub's tail, up to the end of its munmap; 7. the original mask; 8. the original registers;
//! 9. only now wipe the stub.
//!
//! Registers go before blocking signals and the mask before the original registers: the reverse leaves signals blocked when
//! the keeper dies in between. One thread of an address space at a time is on the stub. Between two threads of a process the
//! batch page stays mapped and nobody is on the stub to unmap it; it carries a mark, by which the next keeper finds it.
//!
//! An error puts the thread back in the same order: a thread is only ever given other registers outside of system calls.
//! What a dead keeper left is put right by [`crate::leftovers`].
//!
//! Not here: syscall user dispatch (refused before) and threads that share memory without being one process (refused).

use crate::fault;
use crate::procfs::{self, Status};
use crate::stop::Task;
use branchbox_sys::memory::{DeadMan, Shared};
use branchbox_sys::ptrace::{self, Registers, Stop};
use branchbox_sys::remote::{self, Entry, Header, Saved};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of the batch page in a live process: entries in the lower half, data in the upper.
pub(crate) const PAGE_BYTES: u64 = 32 * 1024;
/// Where a batch's data begins.
pub(crate) const DATA: usize = 16 * 1024;
/// Entries that fit.
const CALLS_MAX: usize = (DATA - Header::ENTRIES) / Header::ENTRY_BYTES;
/// Stops that are not ours (a SIGSTOP, say) before a batch's marker.
const FOREIGN_STOPS_MAX: u32 = 64;

const SYS_READ: u64 = 0;
const SYS_MMAP: u64 = 9;
const SYS_MUNMAP: u64 = 11;
const SYS_TGKILL: u64 = 234;
const SIGSTOP: i32 = 19;
const NO_CALL: u64 = u64::MAX;

/// Bytes by which a batch page is known, and where they lie in it: behind the marker call, before the first entry.
pub(crate) const PAGE_MARK: [u8; 16] = *b"branchbox batch\0";
/// Offset of [`PAGE_MARK`].
pub(crate) const PAGE_MARK_AT: usize = 48;

/// One system call for a remote.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub number: u64,
    pub args: [u64; 6],
}

impl Call {
    pub(crate) fn new(number: i64, args: &[u64]) -> Self {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        Self { number: number.cast_unsigned(), args: all }
    }
}

/// Where the stub lies in a process: the last bytes of the vdso's mapping, when they are free.
pub(crate) fn stub_address(pid: i32, memory: &File) -> io::Result<u64> {
    let (start, end) = procfs::vdso(pid)?.ok_or_else(|| io::Error::other("the process has no vdso"))?;
    let mut header = [0u8; 64];
    memory.read_exact_at(&mut header, start)?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let half = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let image_end = start.saturating_add(word(40)).saturating_add(half(58) * half(60));
    let address = end - (remote::code_bytes() as u64).next_multiple_of(32);
    if &header[..4] != b"\x7fELF" || image_end > address {
        return Err(io::Error::other("no room behind the vdso's image"));
    }
    Ok(address)
}

/// A process whose threads can be asked, one after the other.
///
/// Dropped, it takes the batch page away again if the last thread did not come to be asked.
pub(crate) struct Live {
    memory: File,
    pid: i32,
    stub: u64,
    /// Whether the stub is written to its end.
    whole: bool,
    page: Option<Page>,
    /// Whom we asked last.
    last: Option<(Task, u64)>,
    /// Whether a SIGSTOP came meanwhile, which no mask holds back.
    stop_came: bool,
}

/// The batch page in the process, and on our side once it is mapped here.
struct Page {
    address: u64,
    link: Option<Link>,
}

/// The order matters: the word is disarmed before it is unmapped.
struct Link {
    _dead_man: DeadMan,
    shared: Shared,
}

impl Live {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        let memory = OpenOptions::new().read(true).write(true).open(procfs::path(pid, "mem"))?;
        let stub = stub_address(pid, &memory)?;
        Ok(Self { memory, pid, stub, whole: false, page: None, last: None, stop_came: false })
    }

    fn page_address(&self) -> u64 {
        self.page.as_ref().map_or(0, |page| page.address)
    }

    fn shared(&self) -> Option<&Shared> {
        Some(&self.page.as_ref()?.link.as_ref()?.shared)
    }

    /// Where the batch's data lies in the process, once a thread is on the stub.
    pub(crate) fn data(&self) -> u64 {
        self.page.as_ref().map_or(0, |page| page.address + DATA as u64)
    }

    /// Bytes the calls left in the data half.
    pub(crate) fn read_data(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.shared().map_or_else(Vec::new, |shared| shared.read(DATA + offset, bytes))
    }

    /// Puts a thread on the stub, lets `ask` run batches on it, and puts the thread back as it was. With `last` the batch
    /// page is removed as well.
    pub(crate) fn with_thread<T>(
        &mut self,
        task: &Task,
        last: bool,
        ask: impl FnOnce(&mut Seat<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mask = ptrace::signal_mask(task.tid)?;
        let marker = marker(task.tid)?;
        self.last = Some((task.clone(), mask));
        let entered = self.enter(task, mask, marker).and_then(|()| self.boot(task.tid));
        let answer = entered.and_then(|()| ask(&mut Seat { live: self, tid: task.tid, marker }));
        let left = self.leave(task, mask, last || answer.is_err());
        let value = answer?;
        left?;
        Ok(value)
    }

    /// Takes away a batch page that a dead keeper left in the process.
    pub(crate) fn discard(&mut self, task: &Task, mask: u64, page: u64) -> io::Result<()> {
        self.page = Some(Page { address: page, link: None });
        let entered = self.enter(task, mask, marker(task.tid)?);
        let left = self.leave(task, mask, true);
        entered.and(left)
    }

    fn enter(&mut self, task: &Task, mask: u64, marker: i32) -> io::Result<()> {
        self.whole = false;
        fault::point("live.enter")?;
        let stub = saved(&task.registers, mask).stub();
        let half = stub.len() / 2;
        self.memory.write_all_at(&stub[..half], self.stub)?;
        fault::point("live.half_stub")?;
        self.memory.write_all_at(&stub[half..], self.stub + half as u64)?;
        self.whole = true;
        fault::point("live.stub")?;
        let mut registers = task.registers;
        registers.orig_rax = NO_CALL;
        registers.rax = SYS_READ;
        (registers.rdi, registers.rsi, registers.rdx) = (u64::MAX, 0, 0);
        registers.rbx = self.page_address();
        registers.rip = self.stub + remote::entry_offset(Entry::Start) as u64;
        ptrace::set_registers(task.tid, &registers)?;
        fault::point("live.on_stub")?;
        ptrace::set_signal_mask(task.tid, !(1 << (marker - 1)))?;
        fault::point("live.blocked")
    }

    fn boot(&mut self, tid: i32) -> io::Result<()> {
        if self.page.is_some() {
            return Ok(());
        }
        self.run_to_syscall(tid)?;
        // Whatever fails in the call, the thread comes out of it first: other registers would be other arguments.
        let aimed = aim_at_mmap(tid);
        self.run_to_syscall(tid)?;
        let registers = ptrace::registers(tid)?;
        let address = registers.rax;
        if registers.orig_rax == SYS_MMAP && address <= u64::MAX - 4095 {
            self.page = Some(Page { address, link: None });
        }
        aimed?;
        if self.page.is_none() {
            return Err(io::Error::from_raw_os_error(address.wrapping_neg() as i32));
        }
        fault::point("live.page")?;
        let name = format!("map_files/{address:x}-{:x}", address + PAGE_BYTES);
        let file = OpenOptions::new().read(true).write(true).open(procfs::path(self.pid, &name))?;
        let shared = Shared::map(&file, PAGE_BYTES as usize)?;
        shared.write(PAGE_MARK_AT, &PAGE_MARK);
        let dead_man = DeadMan::arm(&shared, Header::DEAD_MAN)?;
        self.page = Some(Page { address, link: Some(Link { _dead_man: dead_man, shared }) });
        fault::point("live.armed")
    }

    /// Puts a thread back. A fault point that fails here is reported once the thread is back.
    fn leave(&mut self, task: &Task, mask: u64, unmap: bool) -> io::Result<()> {
        let mut passed = Ok(());
        if let Some(address) = self.page.as_ref().map(|page| page.address)
            && unmap
        {
            // A thread that does not come to the end of it is on the stub, and comes back by itself.
            passed = self.unmap(task, mask, address)?;
            self.page = None;
        }
        passed = passed.and(fault::point("live.unmapped"));
        ptrace::set_signal_mask(task.tid, mask)?;
        passed = passed.and(fault::point("live.mask_back"));
        ptrace::set_registers(task.tid, &task.registers)?;
        passed = passed.and(fault::point("live.registers_back"));
        self.memory.write_all_at(&vec![0u8; remote::code_bytes()], self.stub)?;
        passed.and(fault::point("live.wiped"))
    }

    /// The inner result is that of the fault points on the way.
    fn unmap(&mut self, task: &Task, mask: u64, page: u64) -> io::Result<io::Result<()>> {
        if !self.whole {
            self.memory.write_all_at(&saved(&task.registers, mask).stub(), self.stub)?;
        }
        let mut registers = task.registers;
        registers.orig_rax = NO_CALL;
        registers.rax = 0;
        registers.rbx = page;
        registers.rip = self.stub + remote::entry_offset(Entry::Tail) as u64;
        ptrace::set_registers(task.tid, &registers)?;
        // It is so already, but for a thread that an error cut off before.
        ptrace::set_signal_mask(task.tid, u64::MAX)?;
        let mut passed = fault::point("live.tail");
        self.run_to_syscall(task.tid)?;
        passed = passed.and(fault::point("live.munmap_entry"));
        self.run_to_syscall(task.tid)?;
        let registers = ptrace::registers(task.tid)?;
        if registers.orig_rax == SYS_MUNMAP && registers.rax == 0 {
            return Ok(passed);
        }
        Err(io::Error::other("the batch page was not unmapped"))
    }

    fn run_to_syscall(&mut self, tid: i32) -> io::Result<()> {
        for _ in 0..FOREIGN_STOPS_MAX {
            ptrace::to_syscall(tid)?;
            match ptrace::wait(tid)? {
                Stop::Syscall => return Ok(()),
                Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other(format!("task {tid} ended"))),
                Stop::Signal(SIGSTOP) => self.stop_came = true,
                _ => {}
            }
        }
        Err(io::Error::other(format!("task {tid} does not come to its system call")))
    }

    fn wait_marker(&mut self, tid: i32, marker: i32) -> io::Result<()> {
        for _ in 0..FOREIGN_STOPS_MAX {
            match ptrace::wait(tid)? {
                Stop::Signal(signal) if signal == marker => return Ok(()),
                Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other(format!("task {tid} ended"))),
                Stop::Signal(SIGSTOP) => self.stop_came = true,
                _ => {}
            }
            ptrace::cont(tid, 0)?;
        }
        Err(io::Error::other(format!("task {tid} does not come to its marker")))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let (Some(page), Some((task, mask))) = (self.page.take(), self.last.take())
            && let Err(error) = self.discard(&task, mask, page.address)
        {
            tracing::warn!(pid = self.pid, %error, "a batch page stays in a captured process");
        }
        if let (true, Some(pid)) = (self.stop_came, Pid::from_raw(self.pid)) {
            // It acts when the process is let go; one that is gone needs none.
            let _ = kill_process(pid, Signal::STOP);
        }
    }
}

/// At the entry of the harmless call: makes it an mmap of the batch page.
fn aim_at_mmap(tid: i32) -> io::Result<()> {
    fault::point("live.boot_entry")?;
    let mut registers = ptrace::registers(tid)?;
    registers.orig_rax = SYS_MMAP;
    (registers.rdi, registers.rsi, registers.rdx) = (0, PAGE_BYTES, 3);
    (registers.r10, registers.r8, registers.r9) = (0x21, u64::MAX, 0);
    ptrace::set_registers(tid, &registers)?;
    fault::point("live.boot_mmap")
}

/// A thread on the stub.
pub(crate) struct Seat<'a> {
    live: &'a mut Live,
    tid: i32,
    marker: i32,
}

impl Seat<'_> {
    /// The process.
    pub(crate) fn live(&self) -> &Live {
        self.live
    }

    /// Makes the calls and gives their raw results (negative: an error number).
    pub(crate) fn run(&mut self, inside_pid: i32, inside_tid: i32, calls: &[Call]) -> io::Result<Vec<i64>> {
        let page = self.live.page_address();
        let shared = self.live.shared().ok_or_else(|| io::Error::other("no batch page"))?;
        assert!(calls.len() <= CALLS_MAX, "a live batch of {} calls", calls.len());
        write_batch(shared, 0, calls, [SYS_TGKILL, inside_pid as u64, inside_tid as u64, self.marker as u64]);
        fault::point("live.batch")?;
        let mut registers = ptrace::registers(self.tid)?;
        registers.orig_rax = NO_CALL;
        registers.rax = 0;
        registers.rbx = page;
        registers.rip = self.live.stub + remote::entry_offset(Entry::Loop) as u64;
        ptrace::set_registers(self.tid, &registers)?;
        ptrace::cont(self.tid, 0)?;
        let passed = fault::point("live.running");
        self.live.wait_marker(self.tid, self.marker)?;
        passed?;
        fault::point("live.marker")?;
        let shared = self.live.shared().ok_or_else(|| io::Error::other("no batch page"))?;
        read_results(shared, 0, calls.len())
    }
}

/// Writes a batch at `base` of a shared page.
pub(crate) fn write_batch(shared: &Shared, base: usize, calls: &[Call], marker: [u64; 4]) {
    shared.put_u32(base + Header::COUNT, calls.len() as u32);
    shared.put_u32(base + Header::DONE, 0);
    for (index, word) in marker.into_iter().enumerate() {
        shared.put_u64(base + Header::MARKER + index * 8, word);
    }
    for (index, call) in calls.iter().enumerate() {
        let at = base + Header::ENTRIES + index * Header::ENTRY_BYTES;
        shared.put_u64(at, call.number);
        for (place, argument) in call.args.into_iter().enumerate() {
            shared.put_u64(at + 8 + place * 8, argument);
        }
    }
}

/// Reads a batch's results.
pub(crate) fn read_results(shared: &Shared, base: usize, calls: usize) -> io::Result<Vec<i64>> {
    let done = shared.get_u32(base + Header::DONE) as usize;
    if done != calls {
        return Err(io::Error::other(format!("{done} of {calls} calls were made")));
    }
    Ok((0..calls)
        .map(|index| {
            shared.get_u64(base + Header::ENTRIES + index * Header::ENTRY_BYTES + Header::RESULT).cast_signed()
        })
        .collect())
}

/// The signal that ends a batch: one that the program ignores, so that an orphan does not notice it, and that is not pending,
/// so that none is lost.
fn marker(tid: i32) -> io::Result<i32> {
    const CANDIDATES: [i32; 3] = [23, 28, 17];
    let status = Status::read(tid)?;
    let pending = status.hex("SigPnd") | status.hex("ShdPnd");
    let caught = status.hex("SigCgt");
    let free = |mask: u64, signal: i32| mask >> (signal - 1) & 1 == 0;
    CANDIDATES
        .into_iter()
        .find(|&signal| free(pending | caught, signal))
        .or_else(|| CANDIDATES.into_iter().find(|&signal| free(pending, signal)))
        .ok_or_else(|| io::Error::other("SIGURG, SIGWINCH and SIGCHLD are all pending"))
}

/// What a thread needs to come back alone. A call that waits to be restarted is restarted by hand, since the kernel only does
/// so for a thread that it interrupted itself.
fn saved(registers: &Registers, mask: u64) -> Saved {
    let r = restarted(registers);
    Saved {
        mask,
        page_bytes: PAGE_BYTES,
        rip: r.rip,
        registers: [
            r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi, r.rdi,
        ],
        overflow: r.eflags >> 11 & 1 == 1,
        flags: r.eflags as u8,
    }
}

fn restarted(registers: &Registers) -> Registers {
    const RESTART_SYSCALL: u64 = 219;
    let mut r = *registers;
    if r.orig_rax.cast_signed() >= 0 {
        match r.rax.cast_signed() {
            -514..=-512 => (r.rax, r.rip) = (r.orig_rax, r.rip - 2),
            -516 => (r.rax, r.rip) = (RESTART_SYSCALL, r.rip - 2),
            _ => {}
        }
    }
    r
}
