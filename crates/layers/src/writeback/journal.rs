//! The journal of one write-back, and what the next start does with one that was left.
//!
//! A journal is a file of JSON lines in a directory of ours (never in the user's, where a step could have planted one):
//! `Begin` names the directory and its staging directory, `Commit` lists the operations, `Done` ends it. Each line is on
//! disk before what it announces begins. Without `Commit` recovery removes the staging directory: undone. With it the
//! operations are done again, which changes nothing that was done already: completed. The writer holds a lock on the
//! file, so that a live write-back is left alone.

use super::apply::Operation;
use super::{STAGING_PREFIX, WriteBackError};
use crate::beneath::Beneath;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Largest journal that is read.
const JOURNAL_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Paths as JSON text, whatever bytes they are made of.
pub(super) mod raw_path {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    pub(in crate::writeback) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        let hex: String = path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&hex)
    }

    pub(in crate::writeback) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        let hex = String::deserialize(deserializer)?;
        let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        let digits = digits.filter(|d| d.len() % 2 == 0).ok_or_else(|| D::Error::custom("no hexadecimal path"))?;
        Ok(PathBuf::from(OsString::from_vec(digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect())))
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Begin {
        #[serde(with = "raw_path")]
        directory: PathBuf,
        device: u64,
        inode: u64,
        staging: String,
    },
    Commit {
        operations: Vec<Operation>,
    },
    Done,
}

/// An open journal.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins the journal of a write-back into `directory`.
    pub(super) fn begin(
        folder: &Path,
        directory: &Path,
        root: &Beneath,
        staging: &str,
    ) -> Result<Self, WriteBackError> {
        let path = folder.join(format!("{staging}.journal"));
        let begin = || -> io::Result<Self> {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            let file = File::options().append(true).create_new(true).open(&path)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let stat = rustix::fs::fstat(&root.root)?;
            let mut journal = Self { file, path: path.clone() };
            journal.write(&Line::Begin {
                directory: directory.to_path_buf(),
                device: stat.st_dev,
                inode: stat.st_ino,
                staging: staging.to_owned(),
            })?;
            File::open(folder)?.sync_all()?;
            Ok(journal)
        };
        begin().map_err(|source| WriteBackError::Journal { path: path.clone(), source })
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()
    }

    /// From here on the write-back is completed, whatever happens.
    pub(super) fn commit(&mut self, operations: &[Operation]) -> Result<(), WriteBackError> {
        let line = Line::Commit { operations: operations.to_vec() };
        self.write(&line).map_err(|source| WriteBackError::Journal { path: self.path.clone(), source })
    }

    /// Everything is in place, or back in place; only the staging directory is left.
    pub(super) fn done(&mut self) -> Result<(), WriteBackError> {
        self.write(&Line::Done).map_err(|source| WriteBackError::Journal { path: self.path.clone(), source })
    }

    /// The staging directory is gone.
    pub(super) fn remove(self) -> Result<(), WriteBackError> {
        fs_err::remove_file(&self.path).map_err(|source| WriteBackError::Journal { path: self.path, source })
    }
}

/// What recovery did with one journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The write-back was finished.
    Completed,
    /// Nothing of it had been put in place; its staged contents are gone.
    Undone,
}

/// One recovered write-back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The host's directory.
    pub directory: PathBuf,
    /// What was done.
    pub outcome: Outcome,
}

/// Completes or undoes what a killed process left in the journal directory.
///
/// # Errors
/// [`WriteBackError`] of the first journal that cannot be dealt with; it stays.
pub fn recover(folder: &Path) -> Result<Vec<Recovered>, WriteBackError> {
    let Ok(entries) = fs_err::read_dir(folder) else { return Ok(Vec::new()) };
    let mut recovered = Vec::new();
    for entry in entries {
        let path = entry.map_err(|source| WriteBackError::Journal { path: folder.to_path_buf(), source })?.path();
        if path.extension().is_some_and(|extension| extension == "journal") {
            recovered.extend(recover_one(&path)?);
        }
    }
    Ok(recovered)
}

fn recover_one(path: &Path) -> Result<Option<Recovered>, WriteBackError> {
    let failed = |source: io::Error| WriteBackError::Journal { path: path.to_path_buf(), source };
    let file = File::options().read(true).append(true).open(path).map_err(failed)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(None);
    }
    let mut text = String::new();
    (&file).take(JOURNAL_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    // A torn last line was never acted upon.
    let mut lines = text.lines().map_while(|line| serde_json::from_str::<Line>(line).ok());
    let Some(Line::Begin { directory, device, inode, staging }) = lines.next() else {
        fs_err::remove_file(path).map_err(failed)?;
        return Ok(None);
    };
    let operations = match lines.next() {
        Some(Line::Commit { operations }) if !matches!(lines.next(), Some(Line::Done)) => Some(operations),
        _ => None,
    };
    let outcome = if operations.is_some() { Outcome::Completed } else { Outcome::Undone };
    // A directory that is gone or another by now has nothing left to complete.
    if let Some(root) = same_directory(&directory, device, inode).filter(|_| staging.starts_with(STAGING_PREFIX)) {
        if let Some(operations) = &operations {
            super::apply::complete(&root, &staging, operations)?;
        }
        super::apply::remove_staging(&root, &staging).map_err(failed)?;
    }
    fs_err::remove_file(path).map_err(failed)?;
    Ok(Some(Recovered { directory, outcome }))
}

fn same_directory(path: &Path, device: u64, inode: u64) -> Option<Beneath> {
    let root = Beneath::open(path).ok()?;
    let stat = rustix::fs::fstat(&root.root).ok()?;
    (stat.st_dev == device && stat.st_ino == inode).then_some(root)
}
