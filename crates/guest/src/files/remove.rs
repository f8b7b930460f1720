//! Removing an entry, or a tree, without following a link in it.
//!
//! Goes down by descriptors, so a directory that is replaced by a link meanwhile leads nowhere else.

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;

/// Deepest tree removed: one descriptor is held per level.
const DEPTH_MAX: usize = 768;

/// Removes; `false` if there was nothing.
pub fn remove(path: &str, recursive: bool) -> io::Result<bool> {
    let trimmed = path.trim_end_matches('/');
    if trimmed.is_empty() {
        return Err(Errno::BUSY.into());
    }
    match statat(CWD, trimmed, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(false),
        Err(errno) => return Err(errno.into()),
        Ok(facts) if FileType::from_raw_mode(facts.st_mode) != FileType::Directory => {
            return gone(unlinkat(CWD, trimmed, AtFlags::empty()));
        }
        Ok(_) => {}
    }
    if recursive {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(CWD, trimmed, flags, Mode::empty()) {
            Ok(directory) => empty(directory.as_fd(), 1)?,
            Err(Errno::NOENT) => return Ok(false),
            // One that cannot be read may still be empty.
            Err(Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    gone(unlinkat(CWD, trimmed, AtFlags::REMOVEDIR))
}

fn gone(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn empty(directory: BorrowedFd<'_>, depth: usize) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            remove_in(directory, name, depth)?;
        }
    }
    Ok(())
}

fn remove_in(directory: BorrowedFd<'_>, name: &CStr, depth: usize) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(inner) => empty(inner.as_fd(), depth + 1)?,
        Err(Errno::NOENT | Errno::ACCESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    gone(unlinkat(directory, name, AtFlags::REMOVEDIR)).map(|_| ())
}
