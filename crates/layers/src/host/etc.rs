//! The filtered copy of `/etc`: see [`super::allow`] for what may come along.

use super::HostError;
use super::allow::{
    ANY_NAMES, ETC, ETC_DEPTH_MAX, ETC_ENTRIES_MAX, ETC_FILE_BYTES_MAX, looks_like_credentials, matches, may_copy,
};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown, lchown};
use std::path::{Path, PathBuf};

/// What everybody may read.
const OTHERS_READ: u32 = 0o004;

/// Copies the allowed part of `from` (the host's `/etc`) into the existing directory `to`; returns what was left out
/// of the allowed entries because it looks like a secret.
pub(super) fn copy_etc(from: &Path, to: &Path) -> Result<Vec<PathBuf>, HostError> {
    let mut copy = EtcCopy { entries: 0, left_out: Vec::new() };
    for entry in allowed_entries(from) {
        let relative = entry.strip_prefix(from).unwrap_or(&entry);
        make_parents(from, to, relative)?;
        copy.entry(&entry, &to.join(relative), 0)?;
    }
    Ok(copy.left_out)
}

/// The paths of the host's `/etc` that the list names and that exist, sorted.
pub(super) fn allowed_entries(etc: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for pattern in ETC {
        let (dir, last) = match pattern.rsplit_once('/') {
            Some((dir, last)) => (etc.join(dir), last),
            None => (etc.to_path_buf(), *pattern),
        };
        if !last.ends_with('*') {
            let path = dir.join(last);
            found.extend(path.symlink_metadata().is_ok().then_some(path));
            continue;
        }
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| matches(last, name)) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> HostError {
    let path = path.to_path_buf();
    move |source| HostError::Copy { path, source }
}

/// The directories between `/etc` and an entry such as `ssl/certs`, without their other contents.
fn make_parents(from: &Path, to: &Path, relative: &Path) -> Result<(), HostError> {
    let Some(parent) = relative.parent() else { return Ok(()) };
    let mut below = PathBuf::new();
    for name in parent.components() {
        below.push(name);
        let made = to.join(&below);
        if made.symlink_metadata().is_err() {
            let metadata = from.join(&below).metadata().map_err(failed(&from.join(&below)))?;
            fs_err::create_dir(&made).map_err(failed(&made))?;
            set_owner_and_mode(&made, &metadata).map_err(failed(&made))?;
        }
    }
    Ok(())
}

struct EtcCopy {
    entries: usize,
    left_out: Vec<PathBuf>,
}

impl EtcCopy {
    fn entry(&mut self, from: &Path, to: &Path, depth: usize) -> Result<(), HostError> {
        self.entries += 1;
        if self.entries > ETC_ENTRIES_MAX || depth > ETC_DEPTH_MAX {
            return Err(HostError::TooMuch { path: from.to_path_buf() });
        }
        let parent = from.parent().and_then(Path::file_name).and_then(OsStr::to_str);
        let any_name = parent.is_some_and(|parent| ANY_NAMES.contains(&parent));
        if !any_name && !from.file_name().and_then(OsStr::to_str).is_some_and(may_copy) {
            self.left_out.push(from.to_path_buf());
            return Ok(());
        }
        // A file that goes away meanwhile is as good as one that never was.
        let Ok(metadata) = from.symlink_metadata() else { return Ok(()) };
        if metadata.is_dir() {
            self.directory(from, to, &metadata, depth)
        } else if metadata.is_symlink() {
            copy_symlink(from, to, &metadata).map_err(failed(from))
        } else if metadata.is_file() {
            self.file(from, to, &metadata)
        } else {
            Ok(())
        }
    }

    fn directory(
        &mut self,
        from: &Path,
        to: &Path,
        metadata: &std::fs::Metadata,
        depth: usize,
    ) -> Result<(), HostError> {
        if metadata.mode() & OTHERS_READ == 0 {
            self.left_out.push(from.to_path_buf());
            return Ok(());
        }
        if to.symlink_metadata().is_err() {
            fs_err::create_dir(to).map_err(failed(to))?;
        }
        for entry in fs_err::read_dir(from).map_err(failed(from))? {
            let name = entry.map_err(failed(from))?.file_name();
            self.entry(&from.join(&name), &to.join(&name), depth + 1)?;
        }
        set_owner_and_mode(to, metadata).map_err(failed(to))
    }

    fn file(&mut self, from: &Path, to: &Path, metadata: &std::fs::Metadata) -> Result<(), HostError> {
        let content = if metadata.mode() & OTHERS_READ != 0 && metadata.len() <= ETC_FILE_BYTES_MAX {
            read_limited(from).map_err(failed(from))?
        } else {
            None
        };
        match content {
            Some(bytes) if !looks_like_credentials(&bytes) => write_like(to, &bytes, metadata).map_err(failed(to)),
            _ => {
                self.left_out.push(from.to_path_buf());
                Ok(())
            }
        }
    }
}

/// The file's content, unless it has grown over the limit since it was looked at.
fn read_limited(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    fs_err::File::open(path)?.take(ETC_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= ETC_FILE_BYTES_MAX).then_some(bytes))
}

fn write_like(to: &Path, bytes: &[u8], metadata: &std::fs::Metadata) -> io::Result<()> {
    let file = std::fs::File::create(to)?;
    io::Write::write_all(&mut &file, bytes)?;
    fchown(&file, Some(metadata.uid()), Some(metadata.gid()))?;
    file.set_permissions(std::fs::Permissions::from_mode(metadata.mode() & 0o777))?;
    set_times(to, metadata)
}

fn copy_symlink(from: &Path, to: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    std::os::unix::fs::symlink(fs_err::read_link(from)?, to)?;
    lchown(to, Some(metadata.uid()), Some(metadata.gid()))?;
    set_times(to, metadata)
}

fn set_owner_and_mode(path: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    lchown(path, Some(metadata.uid()), Some(metadata.gid()))?;
    fs_err::set_permissions(path, std::fs::Permissions::from_mode(metadata.mode() & 0o7777))?;
    set_times(path, metadata)
}

fn set_times(path: &Path, metadata: &std::fs::Metadata) -> io::Result<()> {
    let time = Timespec { tv_sec: metadata.mtime(), tv_nsec: metadata.mtime_nsec() };
    let times = Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
