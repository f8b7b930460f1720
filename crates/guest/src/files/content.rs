//! Reading and writing whole files in pieces.
//!
//! A write goes into a new file beside the target and is renamed over it by its last piece: a reader sees the old content
//! or the new one, and a watcher sees one event.

use crate::text;
use branchbox_protocol::guest::{CHUNK_BYTES_MAX, FileReply};
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Kept of a target's name in that of its temporary file, which must stay below 255 bytes.
const NAME_KEPT_BYTES: usize = 200;

/// One piece of a file being written.
#[derive(Debug)]
pub struct Piece<'a> {
    /// Where it goes.
    pub offset: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// The file is whole with it.
    pub last: bool,
    /// The file's permission bits.
    pub mode: u32,
}

/// Reads part of a regular file.
pub fn read(path: &str, offset: u64, bytes_max: u32) -> io::Result<FileReply> {
    // Non-blocking, so that a fifo without a writer or a device stops nobody before it is seen for what it is.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)?;
    let stat = rustix::fs::fstat(&fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Errno::ISDIR.into()),
        _ => return Err(Errno::INVAL.into()),
    }
    let wanted = usize::try_from(bytes_max).unwrap_or(CHUNK_BYTES_MAX).min(CHUNK_BYTES_MAX);
    let mut bytes = vec![0; wanted];
    let mut done = 0;
    while done < wanted {
        match rustix::io::retry_on_intr(|| {
            rustix::io::pread(&fd, &mut bytes[done..], offset.saturating_add(done as u64))
        })? {
            0 => break,
            read => done += read,
        }
    }
    bytes.truncate(done);
    // Files of /proc have content and no size; a file may also have grown since.
    let size = stat.st_size.cast_unsigned().max(offset.saturating_add(done as u64) * u64::from(done > 0));
    Ok(FileReply::Content { bytes, size })
}

/// Writes one piece.
pub fn write(path: &str, token: u64, piece: &Piece<'_>) -> io::Result<()> {
    let target = resolve(path)?;
    let beside = temporary(&target, token)?;
    let fd = if piece.offset == 0 { begin(&target, &beside)? } else { open(&beside, OFlags::empty())? };
    let result = write_all(&fd, piece).and_then(|()| {
        if piece.last {
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(piece.mode))?;
            std::fs::rename(&beside, &target)?;
        }
        Ok(())
    });
    if result.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    result
}

/// Makes the file that pieces go into in any order.
pub fn stage(path: &str, token: u64) -> io::Result<FileReply> {
    let target = resolve(path)?;
    let staged = temporary(&target, token)?;
    begin(&target, &staged)?;
    let text = |path: PathBuf| path.into_os_string().into_string().map_err(|_| Errno::ILSEQ);
    Ok(FileReply::Staged { staged: text(staged)?, target: text(target)? })
}

/// Writes a piece of a staged file.
pub fn part(staged: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let fd = open(Path::new(staged), OFlags::empty())?;
    write_all(&fd, &Piece { offset, bytes, last: false, mode: 0 })
}

/// Forgets a write.
pub fn abort(path: &str, token: u64) -> io::Result<()> {
    match std::fs::remove_file(temporary(&resolve(path)?, token)?) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// The file that is meant: one behind a link is replaced there, and the link stays.
fn resolve(path: &str) -> io::Result<PathBuf> {
    let target = Path::new(path);
    let is_link = std::fs::symlink_metadata(target).is_ok_and(|facts| facts.file_type().is_symlink());
    // A link to nothing is replaced itself.
    Ok(if is_link { std::fs::canonicalize(target).unwrap_or_else(|_| target.to_owned()) } else { target.to_owned() })
}

fn temporary(target: &Path, token: u64) -> io::Result<PathBuf> {
    let name = target.file_name().and_then(|name| name.to_str()).ok_or(Errno::ISDIR)?;
    let kept = text::cut(name, NAME_KEPT_BYTES);
    Ok(target.with_file_name(format!(".{kept}.bbx-{token:016x}")))
}

fn begin(target: &Path, beside: &Path) -> io::Result<OwnedFd> {
    match std::fs::metadata(target) {
        Ok(facts) if facts.is_dir() => return Err(Errno::ISDIR.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = target.parent() {
                std::fs::DirBuilder::new().mode(super::DIRECTORY_MODE).recursive(true).create(parent)?;
            }
        }
        _ => {}
    }
    open(beside, OFlags::CREATE | OFlags::TRUNC)
}

fn open(path: &Path, how: OFlags) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | how;
    let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600))?;
    let regular = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) == FileType::RegularFile;
    if regular { Ok(fd) } else { Err(Errno::INVAL.into()) }
}

fn write_all(fd: &OwnedFd, piece: &Piece<'_>) -> io::Result<()> {
    let mut done = 0;
    while done < piece.bytes.len() {
        let at = piece.offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
        done += rustix::io::retry_on_intr(|| rustix::io::pwrite(fd, &piece.bytes[done..], at))?;
    }
    Ok(())
}
