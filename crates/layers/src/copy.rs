//! An exact copy of a directory tree, or its removal, when the tree is hostile.
//!
//! Exact: content, holes, owners, modes, times to the nanosecond, extended attributes (the overlay's marks among them),
//! hard links, symlinks, device nodes (an overlay's whiteout is the device 0:0), pipes and sockets; inode numbers cannot
//! be kept. Blocks are shared where the file system can. Every directory is opened beneath the root's own descriptor
//! without following symlinks, so nothing outside is ever read or written. The tree must stand still meanwhile.

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, ResolveFlags, SeekFrom, Stat, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest list of attribute names, and largest attribute, that the kernel returns.
const XATTR_BYTES_MAX: usize = 64 * 1024;
/// Bytes moved by one call.
const CHUNK_BYTES: usize = 1024 * 1024;

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Copied {
    /// Files, directories and all else.
    pub entries: u64,
    /// Bytes of data copied or shared.
    pub bytes: u64,
}

/// A failure with the path below the root it happened at.
#[derive(Debug, thiserror::Error)]
#[error("at {}", path.display())]
pub struct CopyError {
    /// Below the root.
    pub path: PathBuf,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

/// Copies the directory `from` to the new directory `to`. Directories named in `emptied` (paths below `from`) are made
/// empty.
///
/// # Errors
/// [`CopyError`]; what was copied so far stays.
pub fn copy_tree(from: &Path, to: &Path, emptied: &[PathBuf]) -> Result<Copied, CopyError> {
    let at = |source: Errno| CopyError { path: PathBuf::new(), source: source.into() };
    rustix::fs::mkdir(to, Mode::from_raw_mode(0o700)).map_err(at)?;
    let mut copy = TreeCopy {
        from: open_root(from).map_err(at)?,
        to: open_root(to).map_err(at)?,
        links: HashMap::new(),
        reflink: true,
        done: Copied::default(),
    };
    // Parents come before children here, so attributes are set from the end: a child's copy touches its parent's times.
    let mut directories = vec![PathBuf::from(".")];
    let mut next = 0;
    while next < directories.len() {
        let path = directories[next].clone();
        next += 1;
        let emptied = emptied.iter().any(|e| Path::new(".").join(e) == path);
        let wrap = |source: io::Error| CopyError { path: path.clone(), source };
        if !emptied {
            copy.directory(&path, &mut directories).map_err(wrap)?;
        }
    }
    for path in directories.iter().rev() {
        copy.finish_directory(path).map_err(|source| CopyError { path: path.clone(), source })?;
    }
    Ok(copy.done)
}

fn open_root(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Opens a directory beneath `root`; `ENAMETOOLONG` for paths the kernel cannot take in one call.
fn open_beneath(root: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

struct TreeCopy {
    from: OwnedFd,
    to: OwnedFd,
    /// Where a file with several names was copied first.
    links: HashMap<u64, PathBuf>,
    /// Until the first refusal.
    reflink: bool,
    done: Copied,
}

/// One entry and the two directories it is copied between.
struct Entry<'a> {
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    name: &'a CStr,
    stat: Stat,
}

impl TreeCopy {
    fn directory(&mut self, path: &Path, directories: &mut Vec<PathBuf>) -> io::Result<()> {
        let (from, to) = (open_beneath(&self.from, path)?, open_beneath(&self.to, path)?);
        for name in names(&from)? {
            let stat = rustix::fs::statat(&from, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            let below = path.join(OsStr::from_bytes(name.to_bytes()));
            self.done.entries += 1;
            let entry = Entry { from: &from, to: &to, name: &name, stat };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                rustix::fs::mkdirat(&to, &name, Mode::from_raw_mode(0o700))?;
                directories.push(below);
            } else if !self.linked(&entry, &below)? {
                self.leaf(&entry)?;
            }
        }
        Ok(())
    }

    /// Makes a further name of a file that was copied before.
    fn linked(&mut self, entry: &Entry<'_>, below: &Path) -> io::Result<bool> {
        if entry.stat.st_nlink < 2 {
            return Ok(false);
        }
        match self.links.get(&entry.stat.st_ino) {
            Some(first) => {
                rustix::fs::linkat(&self.to, first, entry.to, entry.name, AtFlags::empty())?;
                Ok(true)
            }
            None => {
                self.links.insert(entry.stat.st_ino, below.to_path_buf());
                Ok(false)
            }
        }
    }

    fn leaf(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        match FileType::from_raw_mode(entry.stat.st_mode) {
            FileType::RegularFile => return self.file(entry),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(entry.from, entry.name, Vec::new())?;
                rustix::fs::symlinkat(target, entry.to, entry.name)?;
            }
            kind => {
                let mode = Mode::from_raw_mode(entry.stat.st_mode);
                rustix::fs::mknodat(entry.to, entry.name, kind, mode, entry.stat.st_rdev)?;
            }
        }
        entry.finish_by_name()
    }

    fn file(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NOATIME | OFlags::NONBLOCK;
        let from = rustix::fs::openat(entry.from, entry.name, read, Mode::empty())?;
        let write = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let to = rustix::fs::openat(entry.to, entry.name, write, Mode::from_raw_mode(0o600))?;
        self.reflink = self.reflink && entry.stat.st_size > 0 && share_blocks(&from, &to)?
            || self.reflink && entry.stat.st_size == 0;
        if !self.reflink {
            copy_data(&from, &to, entry.stat.st_size.cast_unsigned())?;
        }
        self.done.bytes += entry.stat.st_blocks.cast_unsigned() * 512;
        finish_by_descriptor(&from, &to, &entry.stat)
    }

    fn finish_directory(&self, path: &Path) -> io::Result<()> {
        let (from, to) = (open_beneath(&self.from, path)?, open_beneath(&self.to, path)?);
        finish_by_descriptor(&from, &to, &rustix::fs::fstat(&from)?)
    }
}

/// The names in a directory, without `.` and `..`.
pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Shares all blocks; `false` when this pair of file systems cannot.
fn share_blocks(from: &OwnedFd, to: &OwnedFd) -> io::Result<bool> {
    match rustix::fs::ioctl_ficlone(to, from) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Copies the data of a file and leaves its holes.
pub(crate) fn copy_data(from: &OwnedFd, to: &OwnedFd, size: u64) -> io::Result<()> {
    rustix::fs::ftruncate(to, size)?;
    let mut position = 0;
    while position < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(position)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size);
        copy_range(from, to, start, end)?;
        position = end.max(start + 1);
    }
    Ok(())
}

fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    let (mut read_at, mut write_at) = (start, start);
    while read_at < end {
        let wanted = usize::try_from(end - read_at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), wanted) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                return copy_through_buffer(from, to, read_at, end);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn copy_through_buffer(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut position = start;
    while position < end {
        let wanted = usize::try_from(end - position).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let count = rustix::io::pread(from, &mut buffer[..wanted], position)?;
        if count == 0 {
            return Ok(());
        }
        let mut written = 0;
        while written < count {
            written += rustix::io::pwrite(to, &buffer[written..count], position + written as u64)?;
        }
        position += count as u64;
    }
    Ok(())
}

/// Owner first (a change of owner clears set-id bits and capabilities), then attributes, mode, and times at the end.
fn finish_by_descriptor(from: &OwnedFd, to: &OwnedFd, stat: &Stat) -> io::Result<()> {
    rustix::fs::fchown(to, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    let mut list = vec![0u8; XATTR_BYTES_MAX];
    let length = match rustix::fs::flistxattr(from, &mut list[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0u8; XATTR_BYTES_MAX];
        let length = rustix::fs::fgetxattr(from, name, &mut value[..])?;
        rustix::fs::fsetxattr(to, name, &value[..length], XattrFlags::empty())?;
    }
    rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    Ok(rustix::fs::futimens(to, &times(stat))?)
}

fn times(stat: &Stat) -> Timestamps {
    let time = |sec: i64, nsec: u64| Timespec { tv_sec: sec, tv_nsec: nsec.cast_signed() };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

impl Entry<'_> {
    /// For what cannot be opened: symlinks, devices, pipes, sockets.
    fn finish_by_name(&self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.stat.st_uid), Gid::from_raw(self.stat.st_gid));
        rustix::fs::chownat(self.to, self.name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        let path = |directory: &OwnedFd| {
            let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
            path.extend_from_slice(self.name.to_bytes());
            path
        };
        let (from, to) = (path(self.from), path(self.to));
        let mut list = vec![0u8; XATTR_BYTES_MAX];
        let length = match rustix::fs::llistxattr(&from[..], &mut list[..]) {
            Err(Errno::OPNOTSUPP) => 0,
            other => other?,
        };
        for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0u8; XATTR_BYTES_MAX];
            let length = rustix::fs::lgetxattr(&from[..], name, &mut value[..])?;
            rustix::fs::lsetxattr(&to[..], name, &value[..length], XattrFlags::empty())?;
        }
        if FileType::from_raw_mode(self.stat.st_mode) != FileType::Symlink {
            let mode = Mode::from_raw_mode(self.stat.st_mode & 0o7777);
            rustix::fs::chmodat(self.to, self.name, mode, AtFlags::empty())?;
        }
        Ok(rustix::fs::utimensat(self.to, self.name, &times(&self.stat), AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

/// Removes the directory `name` of `parent` with everything in it. However deep it is, one directory is open at a time:
/// a subdirectory that is not empty is first moved up beside `name`.
pub(crate) fn remove_tree(parent: &OwnedFd, name: &str) -> io::Result<()> {
    let mut counter = 0u64;
    let mut pending: Vec<CString> = vec![CString::new(name).map_err(|_| Errno::INVAL)?];
    while let Some(directory) = pending.last().cloned() {
        let before = pending.len();
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = rustix::fs::openat(parent, &directory, flags, Mode::empty())?;
        for entry in names(&open)? {
            match rustix::fs::unlinkat(&open, &entry, AtFlags::empty()) {
                Ok(()) => continue,
                Err(Errno::ISDIR | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
            }
            match rustix::fs::unlinkat(&open, &entry, AtFlags::REMOVEDIR) {
                Ok(()) => {}
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    counter += 1;
                    let moved = CString::new(format!("{name}.{counter}")).map_err(|_| Errno::INVAL)?;
                    rustix::fs::renameat(&open, &entry, parent, &moved)?;
                    pending.push(moved);
                }
                Err(error) => return Err(error.into()),
            }
        }
        if pending.len() == before {
            rustix::fs::unlinkat(parent, &directory, AtFlags::REMOVEDIR)?;
            pending.pop();
        }
    }
    Ok(())
}
