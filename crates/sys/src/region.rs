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

/// Runs `work` in a short-lived child that shares this process's descriptor table and has pid `set_tid` (0: any), and waits
/// for its end; `work` gives the child's exit code, which is the answer.
///
/// What the child does to descriptors is done for this process too, but the kernel remembers the child as the doer: peer
/// credentials of sockets are those of the process that made, connected or listened.
///
/// # Errors
/// `EBUSY` when this process has more than one thread; `EEXIST` when the pid is taken; `ECHILD` when it died of a signal.
pub fn run_as_child(set_tid: i32, work: impl FnOnce() -> u8) -> io::Result<u8> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    let tid = [set_tid];
    // SAFETY: `clone_args` is plain integers; all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = libc::CLONE_FILES as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if set_tid != 0 {
        args.set_tid = tid.as_ptr() as u64;
        args.set_tid_size = 1;
    }
    // SAFETY: `args` outlives the call. Without CLONE_VM the child has its own copy of memory and goes on on a copy of this
    // stack; there is no other thread whose locks it could miss (checked).
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(u8::MAX);
        // SAFETY: always allowed; skips the exit handlers, which belong to the parent.
        unsafe { libc::_exit(i32::from(code)) }
    }
    let mut status = 0;
    // SAFETY: the status points to a live integer.
    while unsafe { libc::waitpid(pid as i32, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    if libc::WIFEXITED(status) {
        Ok(libc::WEXITSTATUS(status) as u8)
    } else {
        Err(io::Error::from_raw_os_error(libc::ECHILD))
    }
}

/// Sets all three user and group ids of the calling process, as the first thing a child does that acts for somebody else.
///
/// # Errors
/// `EPERM`.
pub fn become_ids(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain numbers.
    if unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain numbers.
    if unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
