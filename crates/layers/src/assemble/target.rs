//! Mount points inside the root tree: made in the upper before the overlay is mounted.
//!
//! The upper of a fork is written by a hostile tree, so every component is opened by descriptor and never through a
//! symlink. What exists in a lower directory needs nothing. A component that does, on the way to something that does
//! not, gets the same mode and owner in the upper, since a directory there hides the attributes of the one below (their
//! contents are merged).

use super::AssembleError;
use crate::beneath::Beneath;
use crate::changes::Owners;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// What a mount point must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// For trees and directory binds.
    Directory,
    /// For binds of a file.
    File,
}

/// Owner and mode of directories that exist neither in the upper nor below it.
#[derive(Debug, Clone, Copy)]
pub struct NewDirectory {
    /// Permission bits.
    pub mode: u32,
    /// Owner on disk, unshifted.
    pub uid: u32,
    /// Group on disk, unshifted.
    pub gid: u32,
}

impl Default for NewDirectory {
    fn default() -> Self {
        Self { mode: 0o755, uid: 0, gid: 0 }
    }
}

/// A tree whose upper is not mounted now.
#[derive(Debug, Clone, Copy)]
pub struct Unmounted<'a> {
    /// Its `up` directory.
    pub up: &'a Path,
    /// Its lower directories, topmost first.
    pub lowers: &'a [PathBuf],
    /// How owners on disk below appear inside; the upper holds ids as they appear.
    pub owners: Owners,
}

impl Unmounted<'_> {
    /// Makes `target` (absolute, seen from the tree's root) exist, in the upper where it is in no lower directory.
    /// Directories that are missing everywhere are made with `new`.
    ///
    /// # Errors
    /// [`AssembleError::Target`] naming the path, also when a component is a symlink or of the wrong kind.
    pub fn ensure(&self, target: &Path, kind: TargetKind, new: NewDirectory) -> Result<(), AssembleError> {
        self.try_ensure(target, kind, new)
            .map_err(|source| AssembleError::Target { path: target.to_path_buf(), source })
    }

    fn try_ensure(&self, target: &Path, kind: TargetKind, new: NewDirectory) -> io::Result<()> {
        let names = components(target).ok_or(Errno::INVAL)?;
        let mut lowers = Lowers { open: self.open_lowers()?, owners: self.owners };
        let whole: PathBuf = names.iter().collect();
        let mut upper = open_directory(CWD, self.up.as_os_str())?;
        let mut below = PathBuf::new();
        for (index, name) in names.iter().enumerate() {
            below.push(name);
            let missing = rustix::fs::statat(&upper, *name, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT);
            if missing && lowers.has(&whole, kind)? {
                return Ok(());
            }
            if index + 1 == names.len() && kind == TargetKind::File {
                return lowers.ensure_file(&upper, &below, name);
            }
            upper = lowers.ensure_directory(&upper, &below, name, new)?;
            if rustix::fs::fgetxattr(&upper, "trusted.overlay.opaque", &mut [0u8; 8][..]).is_ok() {
                lowers.open.clear();
            }
        }
        Ok(())
    }

    fn open_lowers(&self) -> io::Result<Vec<Beneath>> {
        self.lowers.iter().map(|lower| Beneath::open(lower)).collect()
    }
}

fn components(target: &Path) -> Option<Vec<&OsStr>> {
    let mut names = Vec::new();
    for component in target.components() {
        match component {
            Component::RootDir => {}
            Component::Normal(name) => names.push(name),
            _ => return None,
        }
    }
    target.is_absolute().then_some(names)
}

fn open_directory(at: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// What can be seen below the upper.
struct Lowers {
    open: Vec<Beneath>,
    owners: Owners,
}

impl Lowers {
    /// The entry of the topmost lower directory that has one.
    fn stat(&self, below: &Path) -> io::Result<Option<Stat>> {
        for lower in &self.open {
            if let Some(stat) = lower.stat(below)? {
                return Ok(Some(stat));
            }
        }
        Ok(None)
    }

    fn has(&self, path: &Path, kind: TargetKind) -> io::Result<bool> {
        let wanted = match kind {
            TargetKind::Directory => FileType::Directory,
            TargetKind::File => FileType::RegularFile,
        };
        Ok(self.stat(path)?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == wanted))
    }

    fn ensure_directory(&self, upper: &OwnedFd, below: &Path, name: &OsStr, new: NewDirectory) -> io::Result<OwnedFd> {
        match open_directory(upper, name) {
            Err(Errno::NOENT) => {}
            other => return Ok(other?),
        }
        let (mode, uid, gid) = match self.stat(below)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => {
                let (uid, gid) = self.owners.shown(stat.st_uid, stat.st_gid);
                (stat.st_mode & 0o7777, uid, gid)
            }
            Some(_) => return Err(Errno::NOTDIR.into()),
            None => (new.mode, new.uid, new.gid),
        };
        rustix::fs::mkdirat(upper, name, Mode::from_raw_mode(0o700))?;
        let made = open_directory(upper, name)?;
        rustix::fs::fchown(&made, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
        Ok(made)
    }

    fn ensure_file(&self, upper: &OwnedFd, below: &Path, name: &OsStr) -> io::Result<()> {
        let found = match rustix::fs::statat(upper, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => self.stat(below)?,
            Err(error) => return Err(error.into()),
        };
        match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Some(FileType::RegularFile) => Ok(()),
            Some(_) => Err(Errno::EXIST.into()),
            None => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::openat(upper, name, flags, Mode::from_raw_mode(0o644))?;
                Ok(())
            }
        }
    }
}
