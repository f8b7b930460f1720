//! What a keeper that died in the middle of a capture left in the processes, and how the next one puts it right.
//!
//! A thread on the stub would come back by itself, but not one that is stopped by job control, and not within any time that
//! one could promise. So it is brought back from here, with the registers and the mask that lie beside the stub's code. Then
//! no thread is on a stub, and its bytes can be wiped and batch pages that nobody unmapped can be taken away.
//!
//! Every step can be cut off too: a page is marked before the thread that knows of it is brought back.

use crate::live::{Live, PAGE_BYTES, PAGE_MARK, PAGE_MARK_AT, stub_address};
use crate::procfs;
use crate::stop::Task;
use branchbox_sys::ptrace;
use branchbox_sys::remote::{self, Entry, Saved};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

const NO_CALL: u64 = u64::MAX;
const RESTART_SYSCALL: u64 = 219;
const ERESTART_RESTARTBLOCK: u64 = (-516i64).cast_unsigned();
const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// Brings a stopped thread back from a dead keeper's stub; others are left alone.
pub(crate) fn bring_back(task: &mut Task) -> io::Result<()> {
    if !in_vdso(task) {
        return Ok(());
    }
    let memory = open(task.pid)?;
    let Ok(stub) = stub_address(task.pid, &memory) else { return Ok(()) };
    let Some(place) = task.registers.rip.checked_sub(stub) else { return Ok(()) };
    let mut bytes = vec![0u8; remote::code_bytes()];
    memory.read_exact_at(&mut bytes, stub)?;
    let Some(saved) = Saved::of_stub(&bytes) else { return Ok(()) };
    if place <= remote::entry_offset(Entry::TailNoCall) as u64 {
        mark_page(task, &memory)?;
    }
    ptrace::set_signal_mask(task.tid, saved.mask)?;
    task.registers = original(task, &saved, &memory);
    ptrace::set_registers(task.tid, &task.registers)
}

fn in_vdso(task: &Task) -> bool {
    procfs::vdso(task.pid).is_ok_and(|area| area.is_some_and(|(start, end)| (start..end).contains(&task.registers.rip)))
}

fn open(pid: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(procfs::path(pid, "mem"))
}

/// A call that was to go on by `restart_syscall` is shown as interrupted, which is how the kernel shows it: so it can also be
/// captured.
fn original(task: &Task, saved: &Saved, memory: &File) -> ptrace::Registers {
    let mut r = task.registers;
    let words = [
        &mut r.r15, &mut r.r14, &mut r.r13, &mut r.r12, &mut r.rbp, &mut r.rbx, &mut r.r11, &mut r.r10, &mut r.r9,
        &mut r.r8, &mut r.rax, &mut r.rcx, &mut r.rdx, &mut r.rsi, &mut r.rdi,
    ];
    for (word, value) in words.into_iter().zip(saved.registers) {
        *word = value;
    }
    r.rip = saved.rip;
    r.eflags = saved.flags_in(r.eflags);
    r.orig_rax = NO_CALL;
    let mut instruction = [0u8; 2];
    let is_call = memory.read_exact_at(&mut instruction, r.rip).is_ok() && instruction == SYSCALL_INSTRUCTION;
    if is_call && r.rax == RESTART_SYSCALL {
        (r.rax, r.orig_rax, r.rip) = (ERESTART_RESTARTBLOCK, RESTART_SYSCALL, r.rip + 2);
    }
    r
}

/// A page that was mapped and not marked any more is known by the thread's registers alone.
fn mark_page(task: &Task, memory: &File) -> io::Result<()> {
    for area in batch_areas(task.pid)?.filter(|area| [task.registers.rax, task.registers.rbx].contains(area)) {
        memory.write_all_at(&PAGE_MARK, area + PAGE_MARK_AT as u64)?;
    }
    Ok(())
}

/// Where mappings lie that look like a batch page from outside.
fn batch_areas(pid: i32) -> io::Result<impl Iterator<Item = u64>> {
    let alike = |area: &procfs::Area| {
        area.end - area.start == PAGE_BYTES && area.shared && area.writable && area.name.starts_with("/dev/zero")
    };
    Ok(procfs::maps(pid)?.into_iter().filter(alike).map(|area| area.start))
}

/// Clears what is left in processes none of whose threads is on a stub.
pub(crate) fn clear(tasks: &[Task]) -> io::Result<()> {
    let mut done = None;
    for task in tasks {
        // One thread of each process will do; threads of one process follow each other.
        if done != Some(task.pid) {
            done = Some(task.pid);
            clear_process(task)?;
        }
    }
    Ok(())
}

fn clear_process(task: &Task) -> io::Result<()> {
    let memory = open(task.pid)?;
    let Ok(stub) = stub_address(task.pid, &memory) else { return Ok(()) };
    let mut bytes = vec![0u8; remote::code_bytes()];
    memory.read_exact_at(&mut bytes, stub)?;
    if bytes.iter().any(|&byte| byte != 0) {
        memory.write_all_at(&vec![0u8; bytes.len()], stub)?;
    }
    for page in batch_areas(task.pid)? {
        let mut mark = [0u8; PAGE_MARK.len()];
        if memory.read_exact_at(&mut mark, page + PAGE_MARK_AT as u64).is_ok() && mark == PAGE_MARK {
            Live::open(task.pid)?.discard(task, ptrace::signal_mask(task.tid)?, page)?;
        }
    }
    Ok(())
}
