//! An address space made anew: the guest's mappings go, the process's own come, and their content is filled in.

use super::remote::Batch;
use crate::error::RestoreError;
use crate::procfs::{self, Area};
use branchbox_snapshot::{Backing, BlobReader, Mapping, MemoryLayout};
use nix::sys::uio::{RemoteIoVec, process_vm_writev};
use std::io::{self, IoSlice};

const SYS_MMAP: i64 = 9;
const SYS_MPROTECT: i64 = 10;
const SYS_MUNMAP: i64 = 11;
const SYS_MREMAP: i64 = 25;
const SYS_MADVISE: i64 = 28;
const SYS_PRCTL: i64 = 157;
const SYS_MLOCK2: i64 = 325;
const SYS_RSEQ: i64 = 334;
const MAP_SHARED: u64 = 1;
const MAP_PRIVATE: u64 = 2;
/// A kind of mapping of its own (Linux 6.11).
const MAP_DROPPABLE: u64 = 8;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_GROWSDOWN: u64 = 0x100;
const MAP_NORESERVE: u64 = 0x4000;
const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const PROT_WRITE: u64 = 2;
const MREMAP_FIXED: u64 = 3;
const MADV_MERGEABLE: i32 = 12;
const MADV_GUARD_INSTALL: u64 = 102;
const CHUNK_BYTES: usize = 1 << 20;
/// Calls gathered before a batch is made, so that data for them fits.
const CALLS_AT_ONCE: usize = 256;

/// What the memory of one process is made from.
pub(crate) struct Source<'a> {
    pub host_pid: i32,
    pub fds: &'a [i32],
    pub pages: &'a BlobReader,
    /// First and last address of the shared region.
    pub region: (u64, u64),
    /// A free range of at least 64 KiB that nothing else uses.
    pub spare: u64,
}

/// Makes the address space; gives the address of a `syscall` instruction in it.
pub(crate) fn build(batch: &mut Batch<'_>, layout: &MemoryLayout, source: &Source<'_>) -> Result<u64, io::Error> {
    let old = procfs::areas(source.host_pid)?;
    // The kernel writes the rseq area at every return from the kernel; it goes with the guest's memory.
    let rseq = branchbox_sys::ptrace::rseq(source.host_pid)?;
    if rseq.address != 0 {
        const UNREGISTER: u64 = 1;
        batch.call(SYS_RSEQ, &[rseq.address, u64::from(rseq.bytes), UNREGISTER, u64::from(rseq.signature)]);
        batch.run()?;
    }
    clear(batch, &old, source)?;
    let syscall_at = move_vdso(batch, &old, layout, source)?;
    for (index, mapping) in layout.mappings.iter().enumerate() {
        map(batch, mapping, source.fds)?;
        if index % CALLS_AT_ONCE == CALLS_AT_ONCE - 1 {
            batch.run()?;
        }
    }
    batch.run()?;
    for mapping in &layout.mappings {
        fill(source, mapping)?;
    }
    for mapping in &layout.mappings {
        if batch.room() < 256 {
            batch.run()?;
        }
        finish(batch, mapping)?;
    }
    batch.run()?;
    set_fields(batch, layout, source)?;
    Ok(syscall_at)
}

fn is_kernel(area: &Area) -> bool {
    matches!(area.name.as_str(), "[vdso]" | "[vvar]" | "[vvar_vclock]")
}

fn clear(batch: &mut Batch<'_>, old: &[Area], source: &Source<'_>) -> io::Result<()> {
    for area in old {
        let in_region = area.start >= source.region.0 && area.end <= source.region.1;
        if !in_region && !is_kernel(area) && area.name != "[vsyscall]" {
            batch.call(SYS_MUNMAP, &[area.start, area.end - area.start]);
        }
    }
    batch.run().map(drop)
}

/// Moves the kernel's own pages to where the process has them, by way of the spare range so that old and new may overlap.
fn move_vdso(batch: &mut Batch<'_>, old: &[Area], layout: &MemoryLayout, source: &Source<'_>) -> io::Result<u64> {
    let wanted = |backing: Backing| layout.mappings.iter().find(|mapping| mapping.backing == backing);
    let pairs = [("[vvar]", Backing::Vvar), ("[vvar_vclock]", Backing::VvarVclock), ("[vdso]", Backing::Vdso)];
    let mut spare = source.spare;
    let mut moves = Vec::new();
    let mut syscall_at = None;
    for (name, backing) in pairs {
        let own = old.iter().find(|area| area.name == name);
        match (own, wanted(backing)) {
            (Some(own), Some(mapping)) if own.end - own.start == mapping.end - mapping.start => {
                let bytes = own.end - own.start;
                if backing == Backing::Vdso {
                    syscall_at = find_syscall(source.host_pid, own)?.map(|offset| mapping.start + offset);
                }
                batch.call(SYS_MREMAP, &[own.start, bytes, bytes, MREMAP_FIXED, spare]);
                moves.push((spare, bytes, mapping.start));
                spare += bytes;
            }
            (None, None) => {}
            (Some(own), None) => batch.call(SYS_MUNMAP, &[own.start, own.end - own.start]),
            _ => return Err(io::Error::other(format!("{name} is of another size on this kernel"))),
        }
    }
    for (from, bytes, to) in moves {
        batch.call(SYS_MREMAP, &[from, bytes, bytes, MREMAP_FIXED, to]);
    }
    batch.run()?;
    syscall_at.ok_or_else(|| io::Error::other("the process has no vdso"))
}

fn find_syscall(pid: i32, vdso: &Area) -> io::Result<Option<u64>> {
    use std::os::unix::fs::FileExt;
    let mut code = vec![0u8; (vdso.end - vdso.start) as usize];
    std::fs::File::open(procfs::path(pid, "mem"))?.read_exact_at(&mut code, vdso.start)?;
    Ok(code.windows(2).position(|two| two == [0x0f, 0x05]).map(|at| at as u64))
}

fn map(batch: &mut Batch<'_>, mapping: &Mapping, fds: &[i32]) -> io::Result<()> {
    let (fd, sharing) = match mapping.backing {
        Backing::Anonymous if mapping.droppable => (u64::MAX, MAP_DROPPABLE | MAP_ANONYMOUS),
        Backing::Anonymous => (u64::MAX, MAP_PRIVATE | MAP_ANONYMOUS),
        Backing::Object(object) => {
            let fd = fds.get(object.0 as usize).copied().filter(|&fd| fd >= 0);
            let fd = fd.ok_or_else(|| io::Error::other("a mapping of something that was not made"))?;
            (fd as u64, if mapping.shared { MAP_SHARED } else { MAP_PRIVATE })
        }
        Backing::Vdso | Backing::Vvar | Backing::VvarVclock => return Ok(()),
    };
    let mut flags = sharing | MAP_FIXED_NOREPLACE;
    if mapping.grows_down {
        flags |= MAP_GROWSDOWN;
    }
    if mapping.no_reserve {
        flags |= MAP_NORESERVE;
    }
    let mut protection = u64::from(mapping.protection);
    if !mapping.extents.is_empty() {
        protection |= PROT_WRITE;
    }
    let offset = if mapping.backing == Backing::Anonymous { 0 } else { mapping.offset };
    batch.call(SYS_MMAP, &[mapping.start, mapping.end - mapping.start, protection, flags, fd, offset]);
    Ok(())
}

fn fill(source: &Source<'_>, mapping: &Mapping) -> io::Result<()> {
    let mut buffer = vec![0u8; CHUNK_BYTES];
    for extent in &mapping.extents {
        let mut at = 0;
        while at < extent.blob.bytes {
            let part = &mut buffer[..CHUNK_BYTES.min((extent.blob.bytes - at) as usize)];
            source.pages.read(extent.blob, at, part).map_err(|error| io::Error::other(RestoreError::Image(error)))?;
            write_memory(source.host_pid, extent.address + at, part)?;
            at += part.len() as u64;
        }
    }
    Ok(())
}

fn write_memory(pid: i32, address: u64, mut part: &[u8]) -> io::Result<()> {
    let mut address = address as usize;
    while !part.is_empty() {
        let remote = [RemoteIoVec { base: address, len: part.len() }];
        let written = process_vm_writev(nix::unistd::Pid::from_raw(pid), &[IoSlice::new(part)], &remote)?;
        if written == 0 {
            return Err(io::Error::other("memory that cannot be filled"));
        }
        address += written;
        part = &part[written..];
    }
    Ok(())
}

/// What comes after the content: final protection, advice, locks and names.
fn finish(batch: &mut Batch<'_>, mapping: &Mapping) -> io::Result<()> {
    const PR_SET_VMA: u64 = 0x5356_4d41;
    let (start, bytes) = (mapping.start, mapping.end - mapping.start);
    for &(from, to) in &mapping.guards {
        batch.call(SYS_MADVISE, &[from, to - from, MADV_GUARD_INSTALL]);
    }
    // The kernel gives droppable memory its advice by itself, and takes no other.
    for &advice in mapping.advice.iter().filter(|_| !mapping.droppable) {
        if advice == MADV_MERGEABLE {
            batch.attempt(SYS_MADVISE, &[start, bytes, advice as u64]);
        } else {
            batch.call(SYS_MADVISE, &[start, bytes, advice as u64]);
        }
    }
    if let Some(on_fault) = mapping.locked {
        batch.call(SYS_MLOCK2, &[start, bytes, u64::from(on_fault)]);
    }
    if let Some(name) = &mapping.name {
        let text = batch.data(&[name.as_slice(), b"\0"].concat())?;
        batch.attempt(SYS_PRCTL, &[PR_SET_VMA, 0, start, bytes, text]);
    }
    if !mapping.extents.is_empty() && u64::from(mapping.protection) & PROT_WRITE == 0 {
        batch.call(SYS_MPROTECT, &[start, bytes, u64::from(mapping.protection)]);
    }
    Ok(())
}

/// Whether a process's program is the file that it has open at this number.
fn same_file(host_pid: i32, fd: i32) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let of = |link: String| std::fs::metadata(format!("/proc/{host_pid}/{link}")).map(|file| (file.dev(), file.ino()));
    Ok(of("exe".into())? == of(format!("fd/{fd}"))?)
}

/// `PR_SET_MM_MAP` (prctl(2)): where code, data, heap, stack, arguments and environment lie, the auxiliary vector, and the
/// running program.
fn set_fields(batch: &mut Batch<'_>, layout: &MemoryLayout, source: &Source<'_>) -> io::Result<()> {
    const PR_SET_MM: u64 = 35;
    const PR_SET_MM_MAP: u64 = 14;
    const KEEP_EXE: i32 = -1;
    let exe = layout.exe.and_then(|object| source.fds.get(object.0 as usize)).copied();
    let exe = exe.ok_or_else(|| io::Error::other("a process without a program"))?;
    // A remote runs the guest's program. One that ran it itself, under the name of a tool, has it still mapped, and then the
    // kernel lets nobody set it (EBUSY, `replace_mm_exe_file` in kernel/fork.c); it need not be set either.
    let is_there = same_file(source.host_pid, exe)?;
    let exe = if is_there { KEEP_EXE } else { exe };
    let auxv = batch.data(&layout.auxv)?;
    let mut raw: Vec<u8> = layout.fields.iter().flat_map(|field| field.to_le_bytes()).collect();
    raw.extend_from_slice(&auxv.to_le_bytes());
    raw.extend_from_slice(&(layout.auxv.len() as u32).to_le_bytes());
    raw.extend_from_slice(&exe.to_le_bytes());
    let map = batch.data(&raw)?;
    batch.call(SYS_PRCTL, &[PR_SET_MM, PR_SET_MM_MAP, map, raw.len() as u64]);
    batch.run().map(drop)
}
