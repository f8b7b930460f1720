//! Uploads of files in pieces: begun, filled in any order, checked, and moved into place at once.
//!
//! The pieces go straight into a file beside the target inside the sandbox, so nothing of them is held here, and the end is
//! a rename: a reader sees the old content or the whole new one. What has arrived is known here alone: after a restart of the
//! node an upload is unknown and has to be begun again. The file of one that was left half-way goes after an hour without
//! a piece, where that can be seen to: it stays in a sandbox that sleeps then, in a copy of a fork, and after a restart of the node.

use crate::clients::GuestClient;
use crate::error::NodeError;
use crate::files::USER;
use crate::live::Live;
use crate::node::{Inner, Node};
use branchbox_api::{UploadBegun, UploadRequest};
use branchbox_model::{SandboxId, Timestamp};
use branchbox_protocol::guest::{CHUNK_BYTES_MAX, FileOp, FileReply};
use bytes::Bytes;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of one piece that a client sends.
pub const UPLOAD_CHUNK_BYTES: u32 = 1024 * 1024;
/// Uploads of one sandbox at once.
const UPLOADS_MAX: usize = 64;
/// How long an upload without a new piece is kept.
const KEPT_SECONDS: i64 = 3600;
/// Mode of a new file when the request does not say.
const MODE: u32 = 0o644;

/// Every open upload of the node, by id.
pub(crate) type Uploads = Mutex<HashMap<String, Arc<Upload>>>;

/// One upload.
#[derive(Debug)]
pub(crate) struct Upload {
    sandbox: SandboxId,
    request: UploadRequest,
    /// The file that is being filled, and what it will replace.
    staged: String,
    target: String,
    state: Mutex<Arrived>,
    /// Held by pieces for reading and by the end for writing, so that none arrives after the check.
    ending: tokio::sync::RwLock<()>,
}

#[derive(Debug)]
struct Arrived {
    /// Ranges that have arrived, begin to end, merged.
    ranges: BTreeMap<u64, u64>,
    last: Timestamp,
}

impl Arrived {
    fn add(&mut self, begin: u64, end: u64) {
        let (mut begin, mut end) = (begin, end);
        let touching: Vec<u64> =
            self.ranges.range(..=end).filter(|(_, other_end)| **other_end >= begin).map(|(b, _)| *b).collect();
        for other in touching {
            if let Some(other_end) = self.ranges.remove(&other) {
                begin = begin.min(other);
                end = end.max(other_end);
            }
        }
        self.ranges.insert(begin, end);
        self.last = Timestamp::now();
    }

    /// The first byte that has not arrived.
    fn missing(&self, size: u64) -> Option<u64> {
        let have = self.ranges.get(&0).copied().unwrap_or(0);
        (have < size).then_some(have)
    }
}

impl Upload {
    fn state(&self) -> std::sync::MutexGuard<'_, Arrived> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn uploads(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<Upload>>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets what was left half-way, and everything of sandboxes that are gone.
pub(crate) async fn forget_old(inner: &Arc<Inner>) {
    let before = Timestamp::now().plus_seconds(-KEPT_SECONDS);
    let old: Vec<(String, Arc<Upload>)> = inner
        .uploads()
        .iter()
        .filter(|(_, upload)| upload.state().last < before)
        .map(|(id, u)| (id.clone(), Arc::clone(u)))
        .collect();
    for (id, upload) in old {
        inner.uploads().remove(&id);
        // Nobody is woken for it: in a sandbox that sleeps the file stays.
        if let Some(live) = inner.find(&upload.sandbox)
            && let Ok((_, guest)) = live.guest_quietly(inner.state.run_dir()).await
        {
            let _ = remove(&guest, &upload).await;
        }
    }
}

async fn remove(guest: &GuestClient, upload: &Upload) -> Result<(), NodeError> {
    guest.file(USER, FileOp::Remove { path: upload.staged.clone(), recursive: false }).await.map(drop)
}

impl Node {
    /// Begins an upload.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn begin_upload(&self, id: &str, request: UploadRequest) -> Result<UploadBegun, NodeError> {
        let live = self.awake(id).await?;
        self.check_upload(&live, &request)?;
        let guest = self.file_guest(&live).await?;
        let token = self.inner.write_token.fetch_add(1, Ordering::Relaxed);
        let FileReply::Staged { staged, target } =
            guest.file(USER, FileOp::Stage { path: request.path.clone(), token }).await?
        else {
            return Err(guest.wrong_reply());
        };
        let upload_id = format!("up_{}", SandboxId::generate().as_str().replace('-', ""));
        let begun = UploadBegun {
            upload_id: upload_id.clone(),
            chunk_bytes: UPLOAD_CHUNK_BYTES,
            mode: request.mode.map(|mode| format!("{mode:03o}")),
        };
        let arrived = Arrived { ranges: BTreeMap::new(), last: Timestamp::now() };
        let upload = Upload {
            sandbox: live.id.clone(),
            request,
            staged,
            target,
            state: Mutex::new(arrived),
            ending: tokio::sync::RwLock::default(),
        };
        self.inner.uploads().insert(upload_id, Arc::new(upload));
        Ok(begun)
    }

    fn check_upload(&self, live: &Live, request: &UploadRequest) -> Result<(), NodeError> {
        let disk_bytes = u64::from(live.record().detail.limits.disk.0) << 20;
        if request.size > disk_bytes {
            let problem = format!("the sandbox's disk has {disk_bytes} bytes");
            return Err(branchbox_model::SpecError { field: "size", problem }.into());
        }
        let open = self.inner.uploads().values().filter(|upload| upload.sandbox == live.id).count();
        if open >= UPLOADS_MAX { Err(NodeError::TooManyUploads { max: UPLOADS_MAX }) } else { Ok(()) }
    }

    fn upload(&self, id: &str, upload: &str) -> Result<Arc<Upload>, NodeError> {
        let found = self.inner.uploads().get(upload).cloned();
        let unknown = || NodeError::NoSandbox { id: format!("upload {}", upload.chars().take(64).collect::<String>()) };
        found.filter(|found| found.sandbox.as_str() == id).ok_or_else(unknown)
    }

    async fn file_guest(&self, live: &Live) -> Result<Arc<GuestClient>, NodeError> {
        Ok(live.guest(self.inner.state.run_dir()).await?.1)
    }

    /// Writes a piece; one that arrives twice is written twice, to the same end.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn upload_piece(&self, id: &str, upload: &str, offset: u64, bytes: &Bytes) -> Result<(), NodeError> {
        let live = self.awake(id).await?;
        let upload = self.upload(id, upload)?;
        let end = offset.saturating_add(bytes.len() as u64);
        if end > upload.request.size {
            let problem = format!("the piece ends at {end}, behind the size of {}", upload.request.size);
            return Err(branchbox_model::SpecError { field: "offset", problem }.into());
        }
        let _not_ended = upload.ending.read().await;
        let guest = self.file_guest(&live).await?;
        for (number, piece) in bytes.chunks(CHUNK_BYTES_MAX).enumerate() {
            let offset = offset + (number * CHUNK_BYTES_MAX) as u64;
            let op = FileOp::Part { path: upload.staged.clone(), offset, bytes: piece.to_vec() };
            guest.file(USER, op).await?;
        }
        upload.state().add(offset, end);
        Ok(())
    }

    /// Checks an upload and moves it into place.
    ///
    /// # Errors
    /// [`NodeError::UploadIncomplete`] when pieces are missing or the digest is another; the upload goes on then.
    pub async fn commit_upload(&self, id: &str, upload_id: &str) -> Result<(), NodeError> {
        let live = self.awake(id).await?;
        let upload = self.upload(id, upload_id)?;
        let _alone = upload.ending.write().await;
        // One that another request has ended meanwhile is not there any more.
        self.upload(id, upload_id)?;
        if let Some(missing) = upload.state().missing(upload.request.size) {
            return Err(NodeError::UploadIncomplete { problem: format!("nothing has arrived from byte {missing} on") });
        }
        let guest = self.file_guest(&live).await?;
        let digest = digest(&guest, &upload).await?;
        if digest != upload.request.sha256 {
            let problem = format!("its SHA-256 is {digest}, not {}", upload.request.sha256);
            return Err(NodeError::UploadIncomplete { problem });
        }
        let mode = upload.request.mode.unwrap_or(MODE);
        guest.file(USER, FileOp::Chmod { path: upload.staged.clone(), mode }).await?;
        let (from, to) = (upload.staged.clone(), upload.target.clone());
        guest.file(USER, FileOp::Rename { from, to, overwrite: true }).await?;
        self.inner.uploads().remove(upload_id);
        Ok(())
    }

    /// Gives an upload up.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn abort_upload(&self, id: &str, upload_id: &str) -> Result<(), NodeError> {
        let live = self.awake(id).await?;
        let upload = self.upload(id, upload_id)?;
        let _alone = upload.ending.write().await;
        remove(&*self.file_guest(&live).await?, &upload).await?;
        self.inner.uploads().remove(upload_id);
        Ok(())
    }
}

/// The digest of what lies in the sandbox, read back from there.
async fn digest(guest: &GuestClient, upload: &Upload) -> Result<String, NodeError> {
    let mut hasher = Sha256::new();
    let mut offset = 0;
    while offset < upload.request.size {
        let (bytes, _) = crate::files::read(guest, &upload.staged, offset).await?;
        if bytes.is_empty() {
            break;
        }
        offset += bytes.len() as u64;
        hasher.update(&bytes);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_in_any_order_make_a_whole() {
        let mut arrived = Arrived { ranges: BTreeMap::new(), last: Timestamp(0) };
        assert_eq!((arrived.missing(0), arrived.missing(1)), (None, Some(0)));
        for (begin, end) in [(20, 30), (0, 10), (20, 30)] {
            arrived.add(begin, end);
        }
        assert_eq!(arrived.missing(30), Some(10));
        arrived.add(5, 25);
        assert_eq!((arrived.missing(30), arrived.missing(31)), (None, Some(30)));
        assert_eq!(arrived.ranges.len(), 1);
    }
}
