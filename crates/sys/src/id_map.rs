//! User namespaces that exist only to carry an id map for `mount_setattr`.
//!
//! A user namespace is born with a process. The process made here does nothing: it blocks in `read(2)` on a pipe of
//! which its maker holds the only other end, so that it ends with its maker even when that is killed. Linux 5.12 for
//! the use in mounts; the caller needs `CAP_SETUID` and `CAP_SETGID` in the initial user namespace to write the maps.
#![expect(unsafe_code, reason = "a process in a new user namespace needs a raw clone")]

use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Most lines of an id map the kernel takes.
pub const ENTRIES_MAX: usize = 340;

/// One line of an id map: `length` ids from `inside` on stand for as many from `outside` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapEntry {
    /// First id inside; for a mount, the id on disk.
    pub inside: u32,
    /// First id outside; for a mount, the id shown.
    pub outside: u32,
    /// How many.
    pub length: u32,
}

/// Makes a user namespace with these maps and returns a descriptor that keeps it alive; no process stays in it.
///
/// # Errors
/// The kernel's error of the failing step; `EINVAL` for maps that overlap.
pub fn id_map_namespace(uids: &[MapEntry], gids: &[MapEntry]) -> io::Result<OwnedFd> {
    let (read_end, write_end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let pid = spawn_waiter(read_end.as_raw_fd(), write_end.as_raw_fd())?;
    let namespace = write_maps(pid, uids, gids)
        .and_then(|()| std::fs::File::open(format!("/proc/{pid}/ns/user")))
        .map(OwnedFd::from);
    drop(write_end);
    reap(pid);
    namespace
}

fn write_maps(pid: libc::pid_t, uids: &[MapEntry], gids: &[MapEntry]) -> io::Result<()> {
    for (file, entries) in [("uid_map", uids), ("gid_map", gids)] {
        if entries.len() > ENTRIES_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut text = String::new();
        for entry in entries {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{} {} {}", entry.inside, entry.outside, entry.length);
        }
        std::fs::write(format!("/proc/{pid}/{file}"), text)?;
    }
    Ok(())
}

fn spawn_waiter(read_end: RawFd, write_end: RawFd) -> io::Result<libc::pid_t> {
    let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
    // SAFETY: without CLONE_VM the child gets its own copy of memory; a null stack means the same stack pointer in that
    // copy. The child only makes the raw system calls of `wait_for_maker`, which need no locks of the parent.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => wait_for_maker(read_end, write_end),
        pid => Ok(pid as libc::pid_t),
    }
}

/// The child's whole life: waits until the maker closes its end of the pipe or dies.
fn wait_for_maker(read_end: RawFd, write_end: RawFd) -> ! {
    let mut byte = 0u8;
    // SAFETY: closes the child's own copy of the descriptor, which nothing else in the child uses.
    unsafe { libc::syscall(libc::SYS_close, write_end) };
    // SAFETY: the buffer is one live byte, as the length says.
    unsafe { libc::syscall(libc::SYS_read, read_end, &raw mut byte, 1usize) };
    loop {
        // SAFETY: ends the child at once; no destructor may run in it.
        unsafe { libc::syscall(libc::SYS_exit_group, 0) };
    }
}

fn reap(pid: libc::pid_t) {
    loop {
        let mut status = 0;
        // SAFETY: `pid` is a child of this process that nobody else waits for; `status` is a live integer.
        let rc = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if rc >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_outlives_its_process() {
        let map = [MapEntry { inside: 0, outside: 131_072, length: 65_536 }];
        match id_map_namespace(&map, &map) {
            Ok(fd) => assert!(rustix::fs::fstat(&fd).is_ok()),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
