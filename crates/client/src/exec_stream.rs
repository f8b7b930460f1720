//! The stream of one command: lines as they come, followed over breaks of the connection.

use crate::calls::{get, post};
use crate::error::ClientError;
use crate::transport::{Call, Client};
use branchbox_api::{ExecRequest, StreamEvent};
use bytes::{Buf, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::time::Duration;

/// Longest line: one piece of output, escaped.
const LINE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Breaks in a row with nothing new before giving up.
const BREAKS_MAX: u32 = 5;
/// Wait after a break; grows with their number.
const BREAK_WAIT: Duration = Duration::from_millis(200);

/// Events of one command, ending with `exit`. Dropping it leaves the command running.
#[derive(Debug)]
pub struct ExecStream {
    client: Client,
    sandbox: String,
    body: Option<Incoming>,
    buffer: BytesMut,
    process: Option<String>,
    cursor: u64,
    ended: bool,
}

impl ExecStream {
    pub(crate) async fn start(client: Client, sandbox: String, request: &ExecRequest) -> Result<Self, ClientError> {
        let call = Call { accept: "application/x-ndjson", ..post(format!("{sandbox}:exec"), request)? };
        let body = client.open(&call).await?.into_body();
        let buffer = BytesMut::new();
        Ok(Self { client, sandbox, body: Some(body), buffer, process: None, cursor: 0, ended: false })
    }

    /// Of a process that runs already.
    pub(crate) fn of(client: Client, sandbox: String, process: String) -> Self {
        let process = Some(process);
        Self { client, sandbox, body: None, buffer: BytesMut::new(), process, cursor: 0, ended: false }
    }

    /// The command's id, once its `start` has been read.
    #[must_use]
    pub fn process_id(&self) -> Option<&str> {
        self.process.as_deref()
    }

    /// The next event; `None` after `exit`. `continue` is never returned: it is followed.
    ///
    /// # Errors
    /// [`ClientError`]; an `error` event comes as [`ClientError::Api`].
    pub async fn next(&mut self) -> Result<Option<StreamEvent>, ClientError> {
        let mut breaks = 0;
        while !self.ended {
            match self.line().await {
                Ok(Some(line)) => {
                    let event = serde_json::from_slice(&line).map_err(|error| ClientError::Malformed {
                        problem: format!("a line that is no event: {error}"),
                    })?;
                    if let Some(event) = self.take(event)? {
                        return Ok(Some(event));
                    }
                }
                Err(error) if !error.is_passing() || breaks >= BREAKS_MAX => return Err(error),
                Ok(None) | Err(_) => {
                    breaks += 1;
                    if breaks > BREAKS_MAX {
                        return Err(ClientError::Malformed {
                            problem: "streams that end before the command does".into(),
                        });
                    }
                    tokio::time::sleep(BREAK_WAIT * (breaks - 1)).await;
                    self.follow().await?;
                }
            }
        }
        Ok(None)
    }

    /// Keeps the cursor and decides what the caller sees.
    fn take(&mut self, event: StreamEvent) -> Result<Option<StreamEvent>, ClientError> {
        match &event {
            StreamEvent::Start { process_id, .. } => self.process = Some(process_id.clone()),
            StreamEvent::Stdout { data, offset, .. } | StreamEvent::Stderr { data, offset, .. } => {
                self.cursor = self.cursor.max(offset.saturating_add(data.len() as u64));
            }
            StreamEvent::Truncated { resume_at, .. } => self.cursor = self.cursor.max(*resume_at),
            StreamEvent::Continue { cursor, .. } => {
                self.cursor = *cursor;
                self.body = None;
                return Ok(None);
            }
            StreamEvent::Error { error } => {
                self.ended = true;
                return Err(ClientError::Api(Box::new(error.clone())));
            }
            StreamEvent::Exit { .. } => self.ended = true,
        }
        Ok(Some(event))
    }

    async fn follow(&mut self) -> Result<(), ClientError> {
        let Some(process) = &self.process else {
            self.ended = true;
            return Err(ClientError::Malformed { problem: "a stream without its first line".into() });
        };
        let path = format!("{}/processes/{process}/output?cursor={}&follow=true", self.sandbox, self.cursor);
        let call = Call { accept: "application/x-ndjson", ..get(path) };
        self.buffer.clear();
        self.body = Some(self.client.open(&call).await?.into_body());
        Ok(())
    }

    /// One line without its end; `None` when the stream ended.
    async fn line(&mut self) -> Result<Option<BytesMut>, ClientError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                if !line.iter().all(u8::is_ascii_whitespace) {
                    return Ok(Some(line));
                }
                continue;
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(ClientError::Malformed { problem: format!("a line of more than {LINE_BYTES_MAX} bytes") });
            }
            let Some(body) = &mut self.body else { return Ok(None) };
            match body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => {
                    self.body = None;
                    return Err(ClientError::Transport(error));
                }
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}
