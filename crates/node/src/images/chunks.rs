//! Chunks of archives, sent before what they belong to: named by their digests, so each is sent once.
//!
//! They are kept for a day after they were last used, since the next build of a folder differs in a few of them.

use super::ImagesError;
use crate::capture::check_room;
use crate::error::NodeError;
use crate::node::{Inner, Node, blocking};
use branchbox_api::image::{ARCHIVE_BYTES_MAX, ArchiveRef, CHUNK_BYTES_MAX};
use branchbox_model::SpecError;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// How long a chunk is kept without use.
const KEPT: Duration = Duration::from_secs(24 * 3600);

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file_error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.to_path_buf();
    move |source| NodeError::File { action, path, source }
}

impl Inner {
    fn chunks_dir(&self) -> PathBuf {
        self.state.path().join("chunks")
    }

    /// Where archives are put together and looked into.
    pub(super) fn incoming_dir(&self, id: &str) -> PathBuf {
        self.state.path().join("incoming").join(id)
    }

    /// Removes old chunks.
    pub(super) async fn sweep_chunks(&self) {
        let dir = self.chunks_dir();
        let swept = blocking(move || {
            let Ok(entries) = std::fs::read_dir(&dir) else { return Ok(()) };
            let oldest = SystemTime::now().checked_sub(KEPT);
            for entry in entries.flatten() {
                let used = entry.metadata().and_then(|metadata| metadata.modified()).ok();
                if used < oldest {
                    // One that is gone meanwhile is gone.
                    let _ = std::fs::remove_file(entry.path());
                }
            }
            Ok(())
        });
        if let Err(error) = swept.await {
            tracing::warn!(%error, "old chunks could not be removed");
        }
    }
}

impl Node {
    /// Those of these chunks that are not here.
    ///
    /// # Errors
    /// [`NodeError::CutOff`].
    pub async fn missing_chunks(&self, digests: Vec<String>) -> Result<Vec<String>, NodeError> {
        let dir = self.inner.chunks_dir();
        blocking(move || Ok(digests.into_iter().filter(|digest| !dir.join(digest).is_file()).collect())).await
    }

    /// Keeps a chunk.
    ///
    /// # Errors
    /// [`NodeError::Spec`] when the digest is another; [`NodeError::LittleSpace`].
    pub async fn put_chunk(&self, digest: String, bytes: Vec<u8>) -> Result<(), NodeError> {
        if bytes.is_empty() || bytes.len() > CHUNK_BYTES_MAX {
            let problem = format!("a chunk has 1 to {CHUNK_BYTES_MAX} bytes");
            return Err(SpecError { field: "chunk", problem }.into());
        }
        check_room(&self.inner, bytes.len() as u64)?;
        let (dir, token) = (self.inner.chunks_dir(), self.inner.write_token.fetch_add(1, Ordering::Relaxed));
        blocking(move || {
            let found = hex(&Sha256::digest(&bytes));
            if found != digest {
                return Err(SpecError { field: "chunk", problem: format!("its digest is {found}") }.into());
            }
            fs_err::create_dir_all(&dir).map_err(file_error("make", &dir))?;
            let (partial, path) = (dir.join(format!("{digest}.{token}")), dir.join(&digest));
            fs_err::write(&partial, &bytes).map_err(file_error("write", &partial))?;
            fs_err::rename(&partial, &path).map_err(file_error("name", &path))
        })
        .await
    }
}

/// Removes the chunks of an archive that nobody will send again: its files are unpacked.
pub(super) fn forget(inner: &Inner, archive: &ArchiveRef) {
    for digest in &archive.chunks {
        // The same chunk may stand in an archive twice.
        let _ = std::fs::remove_file(inner.chunks_dir().join(digest));
    }
}

/// Puts an archive together in a new file.
pub(super) fn put_together(inner: &Inner, archive: &ArchiveRef, to: &Path) -> Result<(), NodeError> {
    if archive.size > ARCHIVE_BYTES_MAX {
        return Err(ImagesError::Chunks { problem: format!("it has more than {ARCHIVE_BYTES_MAX} bytes") }.into());
    }
    check_room(inner, archive.size)?;
    let mut file = fs_err::File::create_new(to).map_err(file_error("make", to))?;
    let (mut whole, mut size) = (Sha256::new(), 0u64);
    for digest in &archive.chunks {
        let path = inner.chunks_dir().join(digest);
        let chunk = match fs_err::File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ImagesError::Chunks { problem: format!("chunk {digest} is not there") }.into());
            }
            opened => opened.map_err(file_error("open", &path))?,
        };
        // Used now, so kept for another while.
        let _ = chunk.file().set_modified(SystemTime::now());
        let mut bytes = Vec::new();
        chunk.take(CHUNK_BYTES_MAX as u64).read_to_end(&mut bytes).map_err(file_error("read", &path))?;
        whole.update(&bytes);
        size += bytes.len() as u64;
        if size > archive.size {
            break;
        }
        file.write_all(&bytes).map_err(file_error("write", to))?;
    }
    let found = hex(&whole.finalize());
    if size != archive.size || found != archive.sha256 {
        let problem = format!("it has {size} bytes with the digest {found}");
        return Err(ImagesError::Chunks { problem }.into());
    }
    Ok(())
}
