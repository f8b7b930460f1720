//! File handles: a file by what its file system calls it.
#![expect(unsafe_code, reason = "neither call has a safe wrapper")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// `MAX_HANDLE_SZ` (`include/linux/exportfs.h`).
pub const HANDLE_BYTES_MAX: usize = 128;
/// A handle that names and cannot be opened, which more file systems give (Linux 6.5).
const AT_HANDLE_FID: libc::c_int = 0x200;

/// `struct file_handle` with room for the largest.
#[repr(C)]
struct Raw {
    bytes: libc::c_uint,
    kind: libc::c_int,
    handle: [u8; HANDLE_BYTES_MAX],
}

/// A handle: its type, which the file system chose, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    /// Type.
    pub kind: i32,
    /// Bytes.
    pub bytes: Vec<u8>,
}

/// The handle of what a path leads to, links not followed, as `fdinfo` shows it for an inotify watch.
///
/// # Errors
/// What name_to_handle_at(2) says.
pub fn name_of(directory: impl AsFd, path: &CStr) -> io::Result<Handle> {
    let mut raw = Raw { bytes: HANDLE_BYTES_MAX as libc::c_uint, kind: 0, handle: [0; HANDLE_BYTES_MAX] };
    let (mut mount, directory) = (0 as libc::c_int, directory.as_fd().as_raw_fd());
    // SAFETY: the path ends with a NUL; the handle says how much room it has, which it has; the mount id is live.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            directory,
            path.as_ptr(),
            &raw mut raw,
            &raw mut mount,
            AT_HANDLE_FID,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = raw.handle.get(..raw.bytes as usize).ok_or_else(|| io::Error::other("a handle longer than any"))?;
    Ok(Handle { kind: raw.kind, bytes: bytes.to_vec() })
}

/// Opens a handle as a path (`O_PATH`) on the file system that `mount` is on. Needs `CAP_DAC_READ_SEARCH`.
///
/// # Errors
/// What open_by_handle_at(2) says; `ESTALE` when there is no such file any more.
pub fn open(mount: impl AsFd, handle: &Handle) -> io::Result<OwnedFd> {
    let mut raw = Raw { bytes: handle.bytes.len() as libc::c_uint, kind: handle.kind, handle: [0; HANDLE_BYTES_MAX] };
    let room = raw.handle.get_mut(..handle.bytes.len()).ok_or(io::ErrorKind::InvalidInput)?;
    room.copy_from_slice(&handle.bytes);
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    let mount = mount.as_fd().as_raw_fd();
    // SAFETY: the handle is live and has the bytes it says.
    let result = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount, &raw mut raw, flags) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just made this number and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result as libc::c_int) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_same_by_every_path_and_another_for_another_file() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("a"), "a").expect("written");
        std::fs::hard_link(dir.path().join("a"), dir.path().join("b")).expect("linked");
        std::fs::write(dir.path().join("c"), "c").expect("written");
        let open = std::fs::File::open(dir.path()).expect("open");
        let name = |path: &CStr| name_of(&open, path).expect("a handle");
        assert_eq!(name(c"a"), name(c"b"));
        assert_ne!(name(c"a"), name(c"c"));
        assert!(name_of(&open, c"none").is_err());
    }
}
