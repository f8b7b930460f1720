//! An entry's facts.

use branchbox_protocol::guest::{FileEntry, FileKind};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Facts of one entry, its last symlink not followed; `None` if there is none.
pub fn stat(path: &str) -> io::Result<Option<FileEntry>> {
    let path = Path::new(path);
    match std::fs::symlink_metadata(path) {
        Ok(facts) => Ok(Some(entry(path, &facts))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts an entry's facts together.
pub fn entry(path: &Path, facts: &Metadata) -> FileEntry {
    let kind = match facts.file_type() {
        kind if kind.is_file() => FileKind::File,
        kind if kind.is_dir() => FileKind::Directory,
        kind if kind.is_symlink() => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let target = (kind == FileKind::Symlink).then(|| std::fs::read_link(path).ok()).flatten();
    FileEntry {
        name: path.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy().into_owned()),
        path: path.to_string_lossy().into_owned(),
        kind,
        size: facts.len(),
        mode: facts.mode() & super::MODE_BITS,
        mtime_ms: facts.mtime().saturating_mul(1000).saturating_add(facts.mtime_nsec() / 1_000_000),
        uid: facts.uid(),
        gid: facts.gid(),
        target: target.map(|target| target.to_string_lossy().into_owned()),
    }
}
