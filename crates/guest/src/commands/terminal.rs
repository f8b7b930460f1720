//! A command's terminal: a pair in the sandbox's own /dev/pts, of which the guest holds the master.
//!
//! The command's session gets the slave as its controlling terminal and as all three standard descriptors; what it prints is
//! one stream. The master is one open file, held twice: once to write input, once to read output.

use branchbox_protocol::guest::PtySize;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use std::io;

/// The group of terminals, and what its members may do: write messages to them.
const GROUP_TTY: u32 = 5;
const SLAVE_MODE: u32 = 0o620;
/// What a terminal is taken for when nobody says (terminfo).
pub const TERM: &str = "xterm-256color";
/// Columns and rows of a terminal.
const SIZE_MAX: u16 = 4096;

/// Both ends.
#[derive(Debug)]
pub struct Terminal {
    /// Non-blocking.
    pub master: OwnedFd,
    /// For the command.
    pub slave: OwnedFd,
}

impl Terminal {
    /// Opens a pair that belongs to this user.
    ///
    /// # Errors
    /// What the kernel says: `ENOSPC` when the sandbox has as many terminals as it may.
    pub fn open(size: PtySize, uid: u32) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let master = rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty())?;
        rustix::pty::unlockpt(&master)?;
        let slave =
            rustix::pty::ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::fs::fchown(&slave, Some(Uid::from_raw(uid)), Some(Gid::from_raw(GROUP_TTY)))?;
        rustix::fs::fchmod(&slave, Mode::from_raw_mode(SLAVE_MODE))?;
        resize(&master, size)?;
        Ok(Self { master, slave })
    }
}

/// Sets a terminal's size; the foreground processes hear of it by `SIGWINCH`, from the kernel.
///
/// # Errors
/// `EINVAL` for a size that no terminal has; else what the kernel says.
pub fn resize(terminal: impl AsFd, size: PtySize) -> io::Result<()> {
    if size.cols == 0 || size.rows == 0 || size.cols > SIZE_MAX || size.rows > SIZE_MAX {
        return Err(rustix::io::Errno::INVAL.into());
    }
    let size = Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(terminal, size)?)
}
