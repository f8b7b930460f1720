//! Looking at and opening things strictly below one directory, whatever hostile tree lies there.
//!
//! Every path is resolved by the kernel beneath the directory's own descriptor, through no symlink, no magic link and no
//! other mount (`openat2`). A path that cannot be resolved so is an error, never something else's content.

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// An open directory that paths are resolved beneath.
#[derive(Debug)]
pub(crate) struct Beneath {
    pub(crate) root: OwnedFd,
}

impl Beneath {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::openat(CWD, path, flags, Mode::empty())? })
    }

    /// Opens `path` as `flags` say; a symlink at its end is never followed.
    pub(crate) fn open_at(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        rustix::fs::openat2(&self.root, path, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    pub(crate) fn directory(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        self.open_at(path, OFlags::DIRECTORY)
    }

    /// Opens a regular file for reading; never waits for a pipe's other end.
    pub(crate) fn file(&self, path: &Path) -> io::Result<std::fs::File> {
        let file = std::fs::File::from(self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(Errno::INVAL.into()) }
    }

    /// What is there; `None` when nothing is, or nothing that belongs to this tree.
    pub(crate) fn stat(&self, path: &Path) -> io::Result<Option<Stat>> {
        match self.open_at(path, OFlags::PATH) {
            Ok(fd) => Ok(Some(rustix::fs::fstat(fd)?)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let link = self.open_at(path, OFlags::PATH)?;
        let target = rustix::fs::readlinkat(&link, c"", Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Sorted names in a directory; none when it is not there.
    pub(crate) fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let directory = match self.directory(path) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut names: Vec<OsString> =
            crate::copy::names(&directory)?.into_iter().map(|name| OsString::from_vec(name.into_bytes())).collect();
        names.sort();
        Ok(names)
    }

    /// An extended attribute of a directory.
    pub(crate) fn directory_attribute(&self, path: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
        let directory = self.directory(path)?;
        let mut value = vec![0u8; 4096];
        match rustix::fs::fgetxattr(&directory, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                Ok(Some(value))
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the file was copied up from below rather than made new.
    pub(crate) fn was_copied_up(&self, path: &Path) -> io::Result<bool> {
        let Some(stat) = self.stat(path)? else { return Ok(false) };
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Ok(false);
        }
        let file = self.file(path)?;
        Ok(rustix::fs::fgetxattr(&file, "trusted.overlay.origin", &mut [0u8; 512][..]).is_ok())
    }

    /// The parent directory, open, and the last name.
    pub(crate) fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a std::ffi::OsStr)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        Ok((self.directory(path.parent().unwrap_or(Path::new("")))?, name))
    }
}
