//! Files inside a sandbox, with the rights of its user.

use crate::clients::GuestClient;
use crate::error::NodeError;
use crate::node::Node;
use branchbox_api::{FileEntry, FileEntryType, FileList, FileRequest, Removed};
use branchbox_model::Timestamp;
use branchbox_protocol::guest::{self, CHUNK_BYTES_MAX, FileKind, FileOp, FileReply};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries of one listing.
pub const LIST_ENTRIES_MAX: u32 = 2000;
/// Levels of one listing.
pub const LIST_DEPTH_MAX: u32 = 10;
/// Files are used as this user, whatever the sandbox's commands default to.
pub(crate) const USER: (u32, u32) = (1000, 1000);

/// What to list.
#[derive(Debug, Clone)]
pub struct ListFiles {
    /// The directory.
    pub path: String,
    /// Levels, from 1.
    pub depth: u32,
    /// Names beginning with a dot too.
    pub hidden: bool,
    /// Only paths that match.
    pub glob: Option<String>,
    /// At most this many.
    pub limit: u32,
}

/// A file being read.
#[derive(Debug)]
pub struct FileReader {
    guest: Arc<GuestClient>,
    path: String,
    /// Bytes there were at the first read.
    pub size: u64,
    offset: u64,
    first: Option<Bytes>,
}

impl FileReader {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// [`NodeError`]; also when the file has shrunk meanwhile.
    pub async fn next(&mut self) -> Result<Option<Bytes>, NodeError> {
        if let Some(first) = self.first.take() {
            return Ok((!first.is_empty()).then_some(first));
        }
        if self.offset >= self.size {
            return Ok(None);
        }
        let (bytes, _) = read(&self.guest, &self.path, self.offset).await?;
        let left = usize::try_from(self.size - self.offset).unwrap_or(usize::MAX);
        let bytes = bytes.slice(..bytes.len().min(left));
        if bytes.is_empty() {
            return Err(self.guest.wrong_reply());
        }
        self.offset += bytes.len() as u64;
        Ok(Some(bytes))
    }
}

pub(crate) async fn read(guest: &GuestClient, path: &str, offset: u64) -> Result<(Bytes, u64), NodeError> {
    let bytes_max = u32::try_from(CHUNK_BYTES_MAX).unwrap_or(u32::MAX);
    let op = FileOp::Read { path: path.to_owned(), offset, bytes_max };
    match guest.file(USER, op).await? {
        FileReply::Content { bytes, size } if bytes.len() <= CHUNK_BYTES_MAX => Ok((bytes.into(), size)),
        _ => Err(guest.wrong_reply()),
    }
}

impl Node {
    pub(crate) async fn guest(&self, id: &str) -> Result<Arc<GuestClient>, NodeError> {
        Ok(self.awake(id).await?.guest(self.inner.state.run_dir()).await?.1)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn read_file(&self, id: &str, path: String) -> Result<FileReader, NodeError> {
        let guest = self.guest(id).await?;
        let (first, size) = read(&guest, &path, 0).await?;
        if first.len() as u64 > size {
            return Err(guest.wrong_reply());
        }
        Ok(FileReader { guest, path, size, offset: first.len() as u64, first: Some(first) })
    }

    /// Writes a file whole: nobody sees a part of it.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn write_file(&self, id: &str, path: &str, mode: u32, content: &Bytes) -> Result<(), NodeError> {
        let guest = self.guest(id).await?;
        let token = self.inner.write_token.fetch_add(1, Ordering::Relaxed);
        let mut offset = 0;
        loop {
            let end = (offset + CHUNK_BYTES_MAX).min(content.len());
            let bytes = content.slice(offset..end).to_vec();
            let last = end == content.len();
            let op = FileOp::Write { path: path.to_owned(), offset: offset as u64, bytes, last, mode, token };
            if let Err(error) = guest.file(USER, op).await {
                let _ = guest.file(USER, FileOp::WriteAbort { path: path.to_owned(), token }).await;
                return Err(error);
            }
            if last {
                return Ok(());
            }
            offset = end;
        }
    }

    /// One entry's facts; `None` when there is no such entry.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn stat_file(&self, id: &str, path: String) -> Result<Option<FileEntry>, NodeError> {
        let guest = self.guest(id).await?;
        match guest.file(USER, FileOp::Stat { path }).await? {
            FileReply::Entry(found) => Ok(found.map(|found| FileEntry { exists: true, ..entry(found) })),
            _ => Err(guest.wrong_reply()),
        }
    }

    /// Entries below a directory.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn list_files(&self, id: &str, list: ListFiles) -> Result<FileList, NodeError> {
        let guest = self.guest(id).await?;
        let ListFiles { path, depth, hidden, glob, limit } = list;
        match guest.file(USER, FileOp::List { path, depth, hidden, glob, limit }).await? {
            FileReply::Entries { entries, truncated } if entries.len() <= limit as usize => {
                Ok(FileList { data: entries.into_iter().map(entry).collect(), truncated })
            }
            _ => Err(guest.wrong_reply()),
        }
    }

    /// Makes, removes, renames or changes an entry; to a remove, whether there was something.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn change_file(&self, id: &str, request: FileRequest) -> Result<Option<Removed>, NodeError> {
        let guest = self.guest(id).await?;
        let op = match request {
            FileRequest::Mkdir { path, parents } => FileOp::Mkdir { path, parents },
            FileRequest::Remove { path, recursive } => FileOp::Remove { path, recursive },
            FileRequest::Rename { from, to, overwrite } => FileOp::Rename { from, to, overwrite },
            FileRequest::Chmod { path, mode } => FileOp::Chmod { path, mode },
        };
        match guest.file(USER, op).await? {
            FileReply::Removed(removed) => Ok(Some(Removed { removed })),
            FileReply::Done => Ok(None),
            _ => Err(guest.wrong_reply()),
        }
    }
}

fn entry(found: guest::FileEntry) -> FileEntry {
    FileEntry {
        name: found.name,
        path: found.path,
        kind: match found.kind {
            FileKind::File => FileEntryType::File,
            FileKind::Directory => FileEntryType::Directory,
            FileKind::Symlink => FileEntryType::Symlink,
            FileKind::Other => FileEntryType::Other,
        },
        size: found.size,
        mode: format!("{:o}", found.mode & 0o7777),
        modified_at: Timestamp(found.mtime_ms),
        mtime_ms: found.mtime_ms,
        uid: found.uid,
        gid: found.gid,
        symlink_target: found.target,
        exists: false,
    }
}
