//! inotify with the numbers its watches had.
#![expect(unsafe_code, reason = "the ioctl that sets the next number has no safe wrapper")]

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `INOTIFY_IOC_SETNEXTWD` (Linux 4.16, `CONFIG_CHECKPOINT_RESTORE`).
const SET_NEXT_WD: libc::c_ulong = 0x4004_4900;

/// inotify_init1(2), without watches.
///
/// # Errors
/// What the call says.
pub fn make() -> io::Result<OwnedFd> {
    Ok(inotify::init(CreateFlags::CLOEXEC)?)
}

/// Adds a watch under this number. Numbers must be added from the lowest up.
///
/// # Errors
/// What the calls say; [`io::ErrorKind::Other`] when the kernel gave another number.
pub fn add(fd: impl AsFd, number: i32, path: &[u8], mask: u32) -> io::Result<()> {
    // SAFETY: the ioctl takes a plain number.
    if unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), SET_NEXT_WD, number) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // The path is the file's own: a link in its last place is what was watched.
    let given = inotify::add_watch(fd, path, WatchFlags::from_bits_retain(mask) | WatchFlags::DONT_FOLLOW)?;
    if given == number { Ok(()) } else { Err(io::Error::other(format!("the watch has number {given}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_get_the_numbers_they_had() {
        let fd = make().expect("inotify");
        add(&fd, 7, b"/tmp", 2).expect("a watch");
        add(&fd, 9, b"/", 2).expect("a watch");
        let next = inotify::add_watch(&fd, "/usr", WatchFlags::MODIFY).expect("a watch");
        assert_eq!(next, 10);
    }
}
