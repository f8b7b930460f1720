//! Calls about images, and the sending of archives.

use crate::calls::{encoded, get, post};
use crate::error::ClientError;
use crate::transport::{Call, Client};
use branchbox_api::image::{ArchiveRef, CHUNK_BYTES_MAX, ChunkKept, LogPage, Missing, MissingRequest, TagRequest};
use branchbox_api::{Empty, ImageInfo, Page};
use bytes::Bytes;
use hyper::Method;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes of one chunk.
const CHUNK_BYTES: usize = CHUNK_BYTES_MAX / 2;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn image(id: &str) -> String {
    format!("/v1/images/{}", encoded(id))
}

impl Client {
    /// Images, newest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn images(&self, name: Option<&str>, cursor: Option<&str>) -> Result<Page<ImageInfo>, ClientError> {
        let name = name.map(|name| format!("&name={}", encoded(name))).unwrap_or_default();
        let cursor = cursor.map(|cursor| format!("&cursor={}", encoded(cursor))).unwrap_or_default();
        self.json(get(format!("/v1/images?limit=100{name}{cursor}"))).await
    }

    /// The image that a text names.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn image(&self, text: &str) -> Result<ImageInfo, ClientError> {
        self.json(get(format!("/v1/images/resolve?ref={}", encoded(text)))).await
    }

    /// Begins to make an image; the body is the request's.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create_image(&self, body: &Value) -> Result<ImageInfo, ClientError> {
        self.json(post("/v1/images".into(), body)?).await
    }

    /// A page of what was said while an image was made.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn image_log(&self, id: &str, after: u64) -> Result<LogPage, ClientError> {
        self.json(get(format!("{}/logs?after={after}", image(id)))).await
    }

    /// Points a tag of the image's name at it, or takes it away.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn tag_image(&self, id: &str, tag: &str, on: bool) -> Result<ImageInfo, ClientError> {
        let verb = if on { "tag" } else { "untag" };
        self.json(post(format!("{}:{verb}", image(id)), &TagRequest { tag: tag.to_owned() })?).await
    }

    /// Deletes an image.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_image(&self, id: &str) -> Result<ImageInfo, ClientError> {
        self.json(post(format!("{}:delete", image(id)), &Empty {})?).await
    }

    /// Sends an archive chunk by chunk, as it is read, and says how a request names it.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Input`] when it cannot be read.
    pub async fn send_archive(&self, mut archive: impl AsyncRead + Unpin) -> Result<ArchiveRef, ClientError> {
        let (mut whole, mut sent) = (Sha256::new(), ArchiveRef::default());
        loop {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            let read = (&mut archive).take(CHUNK_BYTES as u64).read_to_end(&mut chunk).await;
            read.map_err(|source| ClientError::Input { source })?;
            if chunk.is_empty() {
                break;
            }
            whole.update(&chunk);
            sent.size += chunk.len() as u64;
            let digest = hex(&Sha256::digest(&chunk));
            self.send_chunk(&digest, chunk.into()).await?;
            sent.chunks.push(digest);
        }
        sent.sha256 = hex(&whole.finalize());
        Ok(sent)
    }

    async fn send_chunk(&self, digest: &str, chunk: Bytes) -> Result<(), ClientError> {
        let asked = MissingRequest { digests: vec![digest.to_owned()] };
        let there: Missing = self.json(post("/v1/images/context/missing".into(), &asked)?).await?;
        if there.missing.is_empty() {
            return Ok(());
        }
        let path = format!("/v1/images/context/{digest}");
        let call = Call { method: Method::PUT, body: chunk, content_type: "application/octet-stream", ..get(path) };
        self.json::<ChunkKept>(call).await.map(drop)
    }
}
