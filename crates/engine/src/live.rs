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
//! the keeper dies in between. One thread of an address space at a time is on the stub.
//!
//! Not here: syscall user dispatch (refused before) and threads that share memory without being one process (refused).

use crate::fault;
use crate::procfs::{self, Status};
use crate::stop::Task;
use branchbox_sys::memory::{DeadMan, Shared};
use branchbox_sys::ptrace::{self, Registers, Stop};
use branchbox_sys::remote::{self, Entry, Header, Saved};
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
const NO_CALL: u64 = u64::MAX;

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
fn stub_address(pid: i32, memory: &File) -> io::Result<u64> {
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
pub(crate) struct Live {
    memory: File,
    pid: i32,
    stub: u64,
    page: Option<(u64, Shared, DeadMan)>,
}

impl Live {
    pub(crate) fn open(pid: i32) -> io::Result<Self> {
        let memory = OpenOptions::new().read(true).write(true).open(procfs::path(pid, "mem"))?;
        let stub = stub_address(pid, &memory)?;
        Ok(Self { memory, pid, stub, page: None })
    }

    /// Where the batch's data lies in the process, once a thread is on the stub.
    pub(crate) fn data(&self) -> u64 {
        self.page.as_ref().map_or(0, |page| page.0 + DATA as u64)
    }

    /// Bytes the calls left in the data half.
    pub(crate) fn read_data(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.page.as_ref().map_or_else(Vec::new, |page| page.1.read(DATA + offset, bytes))
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
        self.enter(task, mask, marker)?;
        let seat_result = self.boot(task.tid).and_then(|()| ask(&mut Seat { live: self, tid: task.tid, marker }));
        let left = self.leave(task, mask, last || seat_result.is_err());
        let value = seat_result?;
        left?;
        Ok(value)
    }

    fn enter(&mut self, task: &Task, mask: u64, marker: i32) -> io::Result<()> {
        fault::point("live.enter")?;
        let stub = saved(&task.registers, mask).stub();
        let half = stub.len() / 2;
        self.memory.write_all_at(&stub[..half], self.stub)?;
        fault::point("live.half_stub")?;
        self.memory.write_all_at(&stub[half..], self.stub + half as u64)?;
        fault::point("live.stub")?;
        let mut registers = task.registers;
        registers.orig_rax = NO_CALL;
        registers.rax = SYS_READ;
        (registers.rdi, registers.rsi, registers.rdx) = (u64::MAX, 0, 0);
        registers.rbx = self.page.as_ref().map_or(0, |page| page.0);
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
        to_syscall_stop(tid)?;
        fault::point("live.boot_entry")?;
        let mut registers = ptrace::registers(tid)?;
        registers.orig_rax = SYS_MMAP;
        (registers.rdi, registers.rsi, registers.rdx) = (0, PAGE_BYTES, 3);
        (registers.r10, registers.r8, registers.r9) = (0x21, u64::MAX, 0);
        ptrace::set_registers(tid, &registers)?;
        fault::point("live.boot_mmap")?;
        to_syscall_stop(tid)?;
        let address = ptrace::registers(tid)?.rax;
        if address > u64::MAX - 4095 {
            return Err(io::Error::from_raw_os_error(address.wrapping_neg() as i32));
        }
        fault::point("live.page")?;
        let name = format!("map_files/{address:x}-{:x}", address + PAGE_BYTES);
        let file = OpenOptions::new().read(true).write(true).open(procfs::path(self.pid, &name))?;
        let shared = Shared::map(&file, PAGE_BYTES as usize)?;
        let dead_man = DeadMan::arm(&shared, Header::DEAD_MAN)?;
        self.page = Some((address, shared, dead_man));
        fault::point("live.armed")
    }

    fn leave(&mut self, task: &Task, mask: u64, unmap: bool) -> io::Result<()> {
        if let Some((address, ..)) = &self.page
            && unmap
        {
            self.unmap(task, *address)?;
            self.page = None;
        }
        fault::point("live.unmapped")?;
        ptrace::set_signal_mask(task.tid, mask)?;
        fault::point("live.mask_back")?;
        ptrace::set_registers(task.tid, &task.registers)?;
        fault::point("live.registers_back")?;
        self.memory.write_all_at(&vec![0u8; remote::code_bytes()], self.stub)?;
        fault::point("live.wiped")
    }

    fn unmap(&self, task: &Task, page: u64) -> io::Result<()> {
        let mut registers = task.registers;
        registers.orig_rax = NO_CALL;
        registers.rax = 0;
        registers.rbx = page;
        registers.rip = self.stub + remote::entry_offset(Entry::Tail) as u64;
        ptrace::set_registers(task.tid, &registers)?;
        fault::point("live.tail")?;
        to_syscall_stop(task.tid)?;
        fault::point("live.munmap_entry")?;
        to_syscall_stop(task.tid)?;
        let registers = ptrace::registers(task.tid)?;
        if registers.orig_rax == SYS_MUNMAP && registers.rax == 0 {
            return Ok(());
        }
        Err(io::Error::other("the batch page was not unmapped"))
    }
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
        let Some((page, shared, _)) = &self.live.page else { return Err(io::Error::other("no batch page")) };
        assert!(calls.len() <= CALLS_MAX, "a live batch of {} calls", calls.len());
        write_batch(shared, 0, calls, [SYS_TGKILL, inside_pid as u64, inside_tid as u64, self.marker as u64]);
        fault::point("live.batch")?;
        let mut registers = ptrace::registers(self.tid)?;
        registers.orig_rax = NO_CALL;
        registers.rax = 0;
        registers.rbx = *page;
        registers.rip = self.live.stub + remote::entry_offset(Entry::Loop) as u64;
        ptrace::set_registers(self.tid, &registers)?;
        ptrace::cont(self.tid, 0)?;
        fault::point("live.running")?;
        wait_marker(self.tid, self.marker)?;
        fault::point("live.marker")?;
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

fn to_syscall_stop(tid: i32) -> io::Result<()> {
    for _ in 0..FOREIGN_STOPS_MAX {
        ptrace::to_syscall(tid)?;
        match ptrace::wait(tid)? {
            Stop::Syscall => return Ok(()),
            Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other(format!("task {tid} ended"))),
            _ => {}
        }
    }
    Err(io::Error::other(format!("task {tid} does not come to its system call")))
}

fn wait_marker(tid: i32, marker: i32) -> io::Result<()> {
    for _ in 0..FOREIGN_STOPS_MAX {
        match ptrace::wait(tid)? {
            Stop::Signal(signal) if signal == marker => return Ok(()),
            Stop::Exited(_) | Stop::Killed(_) => return Err(io::Error::other(format!("task {tid} ended"))),
            _ => ptrace::cont(tid, 0)?,
        }
    }
    Err(io::Error::other(format!("task {tid} does not come to its marker")))
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

/// Whether a thread is on the stub of a keeper that died: it must run on and come back by itself before it can be captured.
pub(crate) fn on_stub(task: &Task) -> bool {
    let Ok(Some((start, end))) = procfs::vdso(task.pid) else { return false };
    if !(start..end).contains(&task.registers.rip) {
        return false;
    }
    let Ok(memory) = File::open(procfs::path(task.pid, "mem")) else { return false };
    stub_address(task.pid, &memory).is_ok_and(|stub| task.registers.rip >= stub)
}

/// Wipes stub bytes that a dead keeper left in processes whose threads have all come back.
pub(crate) fn wipe_leftovers(tasks: &[Task]) -> io::Result<()> {
    for task in tasks.iter().filter(|task| task.tid == task.pid) {
        let memory = OpenOptions::new().read(true).write(true).open(procfs::path(task.pid, "mem"))?;
        let Ok(stub) = stub_address(task.pid, &memory) else { continue };
        let mut bytes = vec![0u8; remote::code_bytes()];
        memory.read_exact_at(&mut bytes, stub)?;
        if bytes.iter().any(|&byte| byte != 0) {
            memory.write_all_at(&vec![0u8; bytes.len()], stub)?;
        }
    }
    Ok(())
}
