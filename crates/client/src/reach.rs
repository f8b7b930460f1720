//! Calls about what a sandbox shows of itself: shared ports, and cells of code.

use crate::calls::{encoded, fresh_key, get, post, sandbox};
use crate::error::ClientError;
use crate::transport::{Call, Client};
use branchbox_api::{DeletedPreview, Execution, Preview, PreviewList, PreviewRequest};
use hyper::Method;
use serde::Serialize;

/// A cell to run.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// What to run.
    pub code: String,
    /// In which language; the context's own when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    /// In which context; the language's default one when it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// For how long at most; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl Client {
    /// Shares a port over HTTP; sharing it again changes what is said.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn share(&self, id: &str, request: &PreviewRequest) -> Result<Preview, ClientError> {
        self.json(post(format!("{}/previews", sandbox(id)), request)?).await
    }

    /// The ports that are shared.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn previews(&self, id: &str) -> Result<PreviewList, ClientError> {
        self.json(get(format!("{}/previews", sandbox(id)))).await
    }

    /// Shares a port no more.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn unshare(&self, id: &str, port: u16) -> Result<DeletedPreview, ClientError> {
        let path = format!("{}/previews/{}", sandbox(id), encoded(&port.to_string()));
        self.json(Call { method: Method::DELETE, key: fresh_key(), ..get(path) }).await
    }

    /// Runs a cell to its end.
    ///
    /// # Errors
    /// [`ClientError`]; a cell that fails is an answer, not an error.
    pub async fn run_cell(&self, id: &str, cell: &Cell) -> Result<Execution, ClientError> {
        self.json(post(format!("{}/interpreter:run", sandbox(id)), cell)?).await
    }
}
