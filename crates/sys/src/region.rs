//! Processes that begin their life on the remote's code instead of ours.
#![expect(unsafe_code, reason = "clone3 with a jump, and mappings at chosen addresses")]

use std::arch::asm;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Maps `bytes` of `file` at exactly `address`, shared, and makes the first `code_bytes` of it executable and read-only.
///
/// # Errors
/// `EEXIST` when something is there; else what mmap(2) and mprotect(2) say.
pub fn map_region(file: impl AsFd, address: u64, bytes: usize, code_bytes: usize) -> io::Result<()> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: MAP_FIXED_NOREPLACE never replaces an existing mapping.
    let got = unsafe {
        libc::mmap(
            address as *mut libc::c_void,
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE,
            fd,
            0,
        )
    };
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range was mapped just now and nothing else knows it.
    let result = unsafe { libc::mprotect(got, code_bytes, libc::PROT_READ | libc::PROT_EXEC) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Removes a region mapped by [`map_region`].
///
/// # Errors
/// What munmap(2) says.
pub fn unmap_region(address: u64, bytes: usize) -> io::Result<()> {
    // SAFETY: the range is one that `map_region` made; no reference into it is ever created in this process.
    let result = unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a child with pid `set_tid` (0: any) in the caller's pid namespace whose first instruction is at `entry`, code that
/// never returns and uses no stack. The child is a copy of the caller (memory, descriptors).
///
/// # Errors
/// `EEXIST` when the pid is taken, `EPERM` without `CAP_CHECKPOINT_RESTORE` over the pid namespace.
pub fn clone_at(set_tid: i32, entry: u64) -> io::Result<i32> {
    let tid = [set_tid];
    // SAFETY: `clone_args` is plain integers; all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if set_tid != 0 {
        args.set_tid = tid.as_ptr() as u64;
        args.set_tid_size = 1;
    }
    let result: i64;
    // SAFETY: in the parent this is one system call whose argument outlives it. The child has its own copy of memory and
    // leaves at once for `entry`, which the caller vouches for and which never returns here.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "jmp {entry}",
            "2:",
            entry = in(reg) entry,
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw const args,
            in("rsi") size_of::<libc::clone_args>(),
            out("rcx") _,
            out("r11") _,
        );
    }
    if result < 0 { Err(io::Error::from_raw_os_error(-result as i32)) } else { Ok(result as i32) }
}
