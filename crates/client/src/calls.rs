//! The calls, one method each.

use crate::error::ClientError;
use crate::exec_stream::ExecStream;
use crate::transport::{Call, Client};
use branchbox_api::{
    CreateRequest, DeletedSandbox, ExecRequest, ExecResult, ExtendSnapshotRequest, ForkAnswer, ForkRequest, Me, Page,
    ProcessList, SandboxInfo, SnapshotInfo, SnapshotRequest, UpdateRequest, UpdateSnapshotRequest,
};
use branchbox_model::{SandboxState, SnapshotState};
use bytes::Bytes;
use hyper::Method;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Longest wait that is asked of the server in one call.
pub(crate) const WAIT_SECONDS: u32 = 60;
/// Between two looks at a snapshot that is not ready.
const POLL: Duration = Duration::from_millis(200);
/// Looks at a snapshot before giving up: ten minutes.
const POLLS_MAX: u32 = 3000;

/// Whether a call waits for what it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Answer at once, with the state reached.
    No,
    /// Answer when it runs.
    UntilReady,
}

/// Which sandboxes to list.
#[derive(Debug, Clone, Default)]
pub struct SandboxQuery {
    /// Any of these states.
    pub states: Vec<SandboxState>,
    /// Ended ones too.
    pub include_stopped: bool,
    /// `key:value`, all of them.
    pub labels: Vec<(String, String)>,
    /// This name.
    pub name: Option<String>,
    /// From a page before.
    pub cursor: Option<String>,
    /// Things in one page.
    pub limit: Option<u32>,
}

/// Which snapshots to list.
#[derive(Debug, Clone, Default)]
pub struct SnapshotQuery {
    /// Taken from this sandbox.
    pub sandbox: Option<String>,
    /// This name.
    pub name: Option<String>,
    /// This state.
    pub state: Option<SnapshotState>,
    /// From a page before.
    pub cursor: Option<String>,
    /// Things in one page.
    pub limit: Option<u32>,
}

/// Percent-encodes one component of a path or query.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A query being built.
#[derive(Default)]
struct Query(String);

impl Query {
    fn add(&mut self, name: &str, value: &str) {
        self.0.push(if self.0.is_empty() { '?' } else { '&' });
        self.0.push_str(name);
        self.0.push('=');
        self.0.push_str(&encoded(value));
    }

    fn add_some(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}

/// A unit enum's word on the wire.
fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(crate) fn get(path: String) -> Call {
    Call {
        method: Method::GET,
        path,
        body: Bytes::new(),
        content_type: "application/json",
        accept: "application/json",
        wait_seconds: None,
        key: None,
    }
}

/// A key of its own for each call, kept over its repetitions. Only uniqueness matters, so a sandbox id serves.
pub(crate) fn fresh_key() -> Option<String> {
    Some(branchbox_model::SandboxId::generate().to_string())
}

pub(crate) fn post<T: Serialize>(path: String, body: &T) -> Result<Call, ClientError> {
    let body = serde_json::to_vec(body).map_err(|error| ClientError::Malformed {
        problem: format!("nothing: the request cannot be written: {error}"),
    })?;
    Ok(Call { method: Method::POST, body: body.into(), key: fresh_key(), ..get(path) })
}

pub(crate) fn sandbox(id: &str) -> String {
    format!("/v1/sandboxes/{}", encoded(id))
}

fn snapshot(id: &str) -> String {
    format!("/v1/snapshots/{}", encoded(id))
}

impl Client {
    /// Who this client is to the node.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn me(&self) -> Result<Me, ClientError> {
        self.json(get("/v1/me".into())).await
    }

    /// Makes a sandbox.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn create(&self, request: &CreateRequest, wait: Wait) -> Result<SandboxInfo, ClientError> {
        let mut call = post("/v1/sandboxes".into(), request)?;
        call.wait_seconds = (wait == Wait::UntilReady).then_some(WAIT_SECONDS);
        self.json(call).await
    }

    /// Reads a sandbox.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get(&self, id: &str) -> Result<SandboxInfo, ClientError> {
        self.json(get(sandbox(id))).await
    }

    /// Reads a sandbox when it has reached a state, or when time is up.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn wait_for(&self, id: &str, state: SandboxState, seconds: u32) -> Result<SandboxInfo, ClientError> {
        self.json(get(format!("{}?waitFor={}&timeoutSeconds={seconds}", sandbox(id), word(&state)))).await
    }

    /// One page of sandboxes, oldest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(&self, query: &SandboxQuery) -> Result<Page<SandboxInfo>, ClientError> {
        let mut q = Query::default();
        query.states.iter().for_each(|state| q.add("state", &word(state)));
        query.labels.iter().for_each(|(key, value)| q.add("label", &format!("{key}:{value}")));
        if query.include_stopped {
            q.add("includeStopped", "true");
        }
        q.add_some("name", query.name.as_deref());
        q.add_some("cursor", query.cursor.as_deref());
        q.add_some("limit", query.limit.map(|limit| limit.to_string()).as_deref());
        self.json(get(format!("/v1/sandboxes{}", q.0))).await
    }

    /// Ends a sandbox and removes it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete(&self, id: &str) -> Result<DeletedSandbox, ClientError> {
        self.json(Call { method: Method::DELETE, key: fresh_key(), ..get(sandbox(id)) }).await
    }

    /// Ends a sandbox's processes and keeps its disk.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn stop(&self, id: &str) -> Result<SandboxInfo, ClientError> {
        let mut call = post(format!("{}:stop", sandbox(id)), &branchbox_api::Empty {})?;
        call.wait_seconds = Some(WAIT_SECONDS);
        self.json(call).await
    }

    /// Changes name, labels, environment and settings.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn update(&self, id: &str, request: &UpdateRequest) -> Result<SandboxInfo, ClientError> {
        self.json(post(format!("{}:update", sandbox(id)), request)?).await
    }

    /// Forks a sandbox.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn fork(&self, id: &str, request: &ForkRequest) -> Result<ForkAnswer, ClientError> {
        let mut call = post(format!("{}:fork", sandbox(id)), request)?;
        call.wait_seconds = Some(WAIT_SECONDS);
        self.json(call).await
    }

    /// Takes a snapshot and waits until it is ready or failed.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn snapshot(&self, id: &str, request: &SnapshotRequest) -> Result<SnapshotInfo, ClientError> {
        let mut call = post(format!("{}:snapshot", sandbox(id)), request)?;
        call.wait_seconds = Some(WAIT_SECONDS);
        let mut info: SnapshotInfo = self.json(call).await?;
        for _ in 0..POLLS_MAX {
            if info.state != SnapshotState::Capturing {
                break;
            }
            tokio::time::sleep(POLL).await;
            info = self.get_snapshot(&info.id).await?;
        }
        Ok(info)
    }

    /// One page of snapshots, newest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn snapshots(&self, query: &SnapshotQuery) -> Result<Page<SnapshotInfo>, ClientError> {
        let mut q = Query::default();
        q.add_some("sandboxId", query.sandbox.as_deref());
        q.add_some("name", query.name.as_deref());
        q.add_some("state", query.state.map(|state| word(&state)).as_deref());
        q.add_some("cursor", query.cursor.as_deref());
        q.add_some("limit", query.limit.map(|limit| limit.to_string()).as_deref());
        self.json(get(format!("/v1/snapshots{}", q.0))).await
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get_snapshot(&self, id: &str) -> Result<SnapshotInfo, ClientError> {
        self.json(get(snapshot(id))).await
    }

    /// Changes name and labels of a snapshot.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn update_snapshot(
        &self,
        id: &str,
        request: &UpdateSnapshotRequest,
    ) -> Result<SnapshotInfo, ClientError> {
        self.json(post(format!("{}:update", snapshot(id)), request)?).await
    }

    /// Keeps a snapshot for this many days from its creation.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn extend_snapshot(&self, id: &str, days: u32) -> Result<SnapshotInfo, ClientError> {
        self.json(post(format!("{}:extend", snapshot(id)), &ExtendSnapshotRequest { retention_days: days })?).await
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn delete_snapshot(&self, id: &str) -> Result<SnapshotInfo, ClientError> {
        self.json(post(format!("{}:delete", snapshot(id)), &branchbox_api::Empty {})?).await
    }

    /// Runs a command and waits for its end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec(&self, id: &str, request: &ExecRequest) -> Result<ExecResult, ClientError> {
        let request = ExecRequest { stream: false, ..request.clone() };
        self.json(post(format!("{}:exec", sandbox(id)), &request)?).await
    }

    /// Runs a command and streams what it says.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec_stream(&self, id: &str, request: &ExecRequest) -> Result<ExecStream, ClientError> {
        let request = ExecRequest { stream: true, ..request.clone() };
        ExecStream::start(self.clone(), sandbox(id), &request).await
    }

    /// The commands of a sandbox.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn processes(&self, id: &str) -> Result<ProcessList, ClientError> {
        self.json(get(format!("{}/processes", sandbox(id)))).await
    }

    /// Sends a signal, by name, to a command.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn signal(&self, id: &str, process: &str, signal: &str) -> Result<(), ClientError> {
        let path = format!("{}/processes/{}:signal", sandbox(id), encoded(process));
        self.bytes(post(path, &serde_json::json!({ "signal": signal }))?).await.map(drop)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn read_file(&self, id: &str, path: &str) -> Result<Bytes, ClientError> {
        let call = get(format!("{}/files/content?path={}", sandbox(id), encoded(path)));
        self.bytes(Call { accept: "application/octet-stream", ..call }).await
    }

    /// Writes a file of at most 1 MiB; parents are made.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn write_file(&self, id: &str, path: &str, mode: u32, content: Bytes) -> Result<(), ClientError> {
        let call = get(format!("{}/files/content?path={}&mode={mode:o}", sandbox(id), encoded(path)));
        let call = Call {
            method: Method::PUT,
            body: content,
            content_type: "application/octet-stream",
            key: fresh_key(),
            ..call
        };
        self.bytes(call).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_encoded() {
        let mut query = Query::default();
        query.add("label", "a b:c/d");
        query.add_some("name", None);
        query.add("x", "1");
        assert_eq!(query.0, "?label=a%20b%3Ac%2Fd&x=1");
        assert_eq!(word(&SandboxState::Running), "running");
    }
}
