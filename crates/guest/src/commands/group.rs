//! The cgroup of one command: everything it started is in there, and dies with it.
//!
//! Version 2 always (also on a hybrid layout), below the directory that the jail delegated to the guest.

use branchbox_model::ExecId;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::io::{self, Read, Write};

/// Most bytes read of one of a cgroup's files: tens of thousands of pids.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A command's cgroup, `e<N>`.
#[derive(Debug)]
pub struct Group {
    name: String,
    directory: OwnedFd,
}

impl Group {
    /// Makes it, or takes the one that a restore made.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn create(parent: BorrowedFd<'_>, exec: ExecId) -> io::Result<Self> {
        let name = format!("e{}", exec.0);
        match mkdirat(parent, name.as_str(), Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name.as_str(), flags, Mode::empty())?;
        Ok(Self { name, directory })
    }

    /// Its directory, to start a process in.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Whether a process lives in it. An unreadable answer counts as yes: the bounded wait ends it.
    pub fn is_populated(&self) -> bool {
        self.read("cgroup.events").map_or(true, |text| text.lines().any(|line| line == "populated 1"))
    }

    /// Kills all of it at once.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn kill(&self) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.directory, "cgroup.kill", flags, Mode::empty())?;
        std::fs::File::from(file).write_all(b"1")
    }

    /// Its processes.
    pub fn pids(&self) -> Vec<i32> {
        let text = self.read("cgroup.procs").unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Processes in it that the memory limit killed, where the controller is delegated this far.
    pub fn oom_kills(&self) -> u32 {
        let text = self.read("memory.events").unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Removes it.
    ///
    /// # Errors
    /// `EBUSY` while a process is in it.
    pub fn remove(&self, parent: BorrowedFd<'_>) -> io::Result<()> {
        match unlinkat(parent, self.name.as_str(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read(&self, file: &str) -> io::Result<String> {
        let fd = openat(&self.directory, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        std::fs::File::from(fd).take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }
}
