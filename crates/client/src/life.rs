//! Calls about a sandbox's life, its rules, its processes, and the account.

use crate::calls::{WAIT_SECONDS, encoded, fresh_key, get, post, sandbox};
use crate::error::ClientError;
use crate::exec_stream::ExecStream;
use crate::transport::{Call, Client};
use branchbox_api::{
    Empty, ExecRequest, ExtendRequest, FileEntry, FileList, FileStat, KeyInfo, KeyRequest, Limits, NetworkRequest,
    NetworkRules, Page, ProcessInfo, SandboxInfo, Usage, WakeRequest,
};
use bytes::Bytes;
use hyper::Method;
use sha2::{Digest, Sha256};
use std::io::Write;

/// Bytes that are written in one call.
const WHOLE_BYTES_MAX: usize = 1024 * 1024;

impl Client {
    async fn verb<T: serde::Serialize>(&self, id: &str, verb: &str, body: &T) -> Result<SandboxInfo, ClientError> {
        let call = post(format!("{}:{verb}", sandbox(id)), body)?;
        self.json(Call { wait_seconds: Some(WAIT_SECONDS), ..call }).await
    }

    /// Pauses a sandbox.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn pause(&self, id: &str) -> Result<SandboxInfo, ClientError> {
        self.verb(id, "pause", &Empty {}).await
    }

    /// Wakes a paused sandbox.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn wake(&self, id: &str, request: &WakeRequest) -> Result<SandboxInfo, ClientError> {
        self.verb(id, "wake", request).await
    }

    /// Boots a stopped sandbox from its disk.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn restart(&self, id: &str) -> Result<SandboxInfo, ClientError> {
        self.verb(id, "restart", &Empty {}).await
    }

    /// Gives a sandbox more time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn extend(&self, id: &str, seconds: u32) -> Result<SandboxInfo, ClientError> {
        self.verb(id, "extend", &ExtendRequest { seconds }).await
    }

    /// The network rules in force.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn network(&self, id: &str) -> Result<NetworkRules, ClientError> {
        self.json(get(format!("{}/network", sandbox(id)))).await
    }

    /// Replaces the network rules.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn set_network(&self, id: &str, request: &NetworkRequest) -> Result<NetworkRules, ClientError> {
        let call = post(format!("{}/network", sandbox(id)), request)?;
        self.json(Call { method: Method::PUT, ..call }).await
    }

    /// Starts a process that runs until it ends.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn spawn(&self, id: &str, request: &ExecRequest) -> Result<ProcessInfo, ClientError> {
        self.json(post(format!("{}/processes", sandbox(id)), request)?).await
    }

    /// Reads a process.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn process(&self, id: &str, process: &str) -> Result<ProcessInfo, ClientError> {
        self.json(get(format!("{}/processes/{}", sandbox(id), encoded(process)))).await
    }

    /// Follows a process from its first byte that is kept.
    #[must_use]
    pub fn follow(&self, id: &str, process: &str) -> ExecStream {
        ExecStream::of(self.clone(), sandbox(id), encoded(process))
    }

    /// One entry's facts; `None` when there is no such entry.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn stat(&self, id: &str, path: &str) -> Result<Option<FileEntry>, ClientError> {
        let body = self.bytes(get(format!("{}/files/stat?path={}", sandbox(id), encoded(path)))).await?;
        let malformed =
            |error| ClientError::Malformed { problem: format!("facts of a file that cannot be read: {error}") };
        match serde_json::from_slice::<FileStat>(&body) {
            Ok(FileStat { exists: false }) => Ok(None),
            _ => serde_json::from_slice(&body).map(Some).map_err(malformed),
        }
    }

    /// Entries below a folder.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn files(&self, id: &str, path: &str, depth: u32, glob: Option<&str>) -> Result<FileList, ClientError> {
        let glob = glob.map(|glob| format!("&glob={}", encoded(glob))).unwrap_or_default();
        self.json(get(format!("{}/files/list?path={}&depth={depth}{glob}", sandbox(id), encoded(path)))).await
    }

    /// Writes a file of any size; parents are made.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn upload(&self, id: &str, path: &str, mode: u32, content: &Bytes) -> Result<(), ClientError> {
        if content.len() <= WHOLE_BYTES_MAX {
            return self.write_file(id, path, mode, content.clone()).await;
        }
        let digest: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        let body = serde_json::json!({
            "path": path, "size": content.len(), "sha256": digest, "mode": format!("{mode:o}"),
        });
        let begun: branchbox_api::UploadBegun = self.json(post(format!("{}/uploads", sandbox(id)), &body)?).await?;
        let upload = format!("{}/uploads/{}", sandbox(id), encoded(&begun.upload_id));
        let sent = self.pieces(&upload, begun.chunk_bytes, content).await;
        self.end(&upload, sent).await
    }

    async fn pieces(&self, upload: &str, chunk_bytes: u32, content: &Bytes) -> Result<(), ClientError> {
        let step = usize::try_from(chunk_bytes).unwrap_or(WHOLE_BYTES_MAX).clamp(1, WHOLE_BYTES_MAX);
        for offset in (0..content.len()).step_by(step) {
            let piece = content.slice(offset..(offset + step).min(content.len()));
            let call = Call {
                method: Method::PUT,
                body: piece,
                content_type: "application/octet-stream",
                key: fresh_key(),
                ..get(format!("{upload}?offset={offset}"))
            };
            self.bytes(call).await?;
        }
        Ok(())
    }

    /// Commits an upload whose pieces were sent, or aborts it.
    async fn end(&self, upload: &str, sent: Result<(), ClientError>) -> Result<(), ClientError> {
        match sent {
            Ok(()) => self.bytes(post(format!("{upload}:commit"), &Empty {})?).await.map(drop),
            Err(error) => {
                // The first failure is what the caller must hear.
                let _ = self.bytes(post(format!("{upload}:abort"), &Empty {})?).await;
                Err(error)
            }
        }
    }

    /// Writes a folder's uncompressed archive, of any size, as it comes.
    ///
    /// # Errors
    /// [`ClientError`]; what is written then is a part.
    pub async fn pack(&self, id: &str, path: &str, to: &mut (dyn Write + Send)) -> Result<(), ClientError> {
        let call = get(format!("{}/files/archive?path={}", sandbox(id), encoded(path)));
        self.save(Call { accept: "application/octet-stream", ..call }, to).await
    }

    /// Writes a file's content, of any size, as it comes.
    ///
    /// # Errors
    /// [`ClientError`]; what is written then is a part.
    pub async fn download(&self, id: &str, path: &str, to: &mut (dyn Write + Send)) -> Result<(), ClientError> {
        let call = get(format!("{}/files/content?path={}", sandbox(id), encoded(path)));
        self.save(Call { accept: "application/octet-stream", ..call }, to).await
    }

    /// Unpacks an uncompressed archive into a folder.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unpack(&self, id: &str, path: &str, archive: &Bytes) -> Result<(), ClientError> {
        let body = serde_json::json!({ "path": path, "gzip": false });
        let uploads = format!("{}/files/archive/uploads", sandbox(id));
        let begun: branchbox_api::ArchiveBegun = self.json(post(uploads.clone(), &body)?).await?;
        let upload = format!("{uploads}/{}", encoded(&begun.upload_id));
        let sent = self.pieces(&upload, begun.chunk_bytes, archive).await;
        self.end(&upload, sent).await
    }

    /// Makes a key; the answer alone holds it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_key(&self, request: &KeyRequest) -> Result<KeyInfo, ClientError> {
        self.json(post("/v1/keys".into(), request)?).await
    }

    /// Every key but the admin key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn keys(&self) -> Result<Vec<KeyInfo>, ClientError> {
        let page: Page<KeyInfo> = self.json(get("/v1/keys".into())).await?;
        Ok(page.data)
    }

    /// Takes a key away.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_key(&self, text: &str) -> Result<KeyInfo, ClientError> {
        self.json(Call { method: Method::DELETE, key: fresh_key(), ..get(format!("/v1/keys/{}", encoded(text))) }).await
    }

    /// What may be used, and what is.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn limits(&self) -> Result<Limits, ClientError> {
        self.json(get("/v1/limits".into())).await
    }

    /// What was used.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn usage(&self) -> Result<Usage, ClientError> {
        self.json(get("/v1/usage".into())).await
    }
}
