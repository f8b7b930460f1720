//! A terminal as somebody sits at it: what a process with a terminal says, and what is typed.
//!
//! It outlives who sits there. Whoever comes with its id sees what is kept of its output, then what is new. A pause is a
//! silence; what is typed then wakes the sandbox.

use crate::clients::GuestClient;
use crate::error::NodeError;
use crate::exec::{Process, exit_of, has_ended};
use crate::node::Node;
use branchbox_api::{ExecRequest, PtySize};
use branchbox_protocol::guest::{CHUNK_BYTES_MAX, ExecState, GuestError};
use std::sync::Arc;
use std::time::Duration;

/// How long to wait before more is typed into a terminal whose program does not read.
const FULL_PAUSE: Duration = Duration::from_millis(50);

/// What a terminal says.
#[derive(Debug)]
pub enum Said {
    /// Bytes, maybe none after a silence.
    Bytes(Vec<u8>),
    /// It has ended, with this code.
    Exit(Option<i32>),
}

/// What comes out of a terminal.
#[derive(Debug)]
pub struct Screen {
    process: Process,
    cursor: u64,
    ended: Option<ExecState>,
}

/// What goes into a terminal.
#[derive(Debug, Clone)]
pub struct Keyboard {
    node: Node,
    sandbox: String,
    process: String,
    exec: branchbox_model::ExecId,
}

impl Node {
    /// Starts a process with a terminal, or sits down at one that there is.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn terminal(
        &self,
        id: &str,
        process: Option<&str>,
        request: ExecRequest,
    ) -> Result<(Screen, Keyboard), NodeError> {
        let (size, was_there) = (request.pty, process.is_some());
        let (process, cursor) = match process {
            None => (self.start_process(id, request).await?, 0),
            Some(process) => {
                let (process, info) = self.process(id, process).await?;
                if info.pty.is_none() {
                    return Err(NodeError::Guest(GuestError::BadCall(format!("{} has no terminal", info.id))));
                }
                (process, info.first_offset)
            }
        };
        let keyboard =
            Keyboard { node: self.clone(), sandbox: id.to_owned(), process: process.id(), exec: process.exec() };
        // Who sits down brings a size; a terminal that has ended keeps the one it had.
        if let Some(size) = size.filter(|_| was_there) {
            keyboard.resize(size).await?;
        }
        Ok((Screen { process, cursor, ended: None }, keyboard))
    }
}

impl Screen {
    /// The process's id.
    #[must_use]
    pub fn process_id(&self) -> String {
        self.process.id()
    }

    /// What it says next.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn next(&mut self) -> Result<Said, NodeError> {
        if let Some(state) = self.ended {
            return Ok(Said::Exit(exit_of(state).1));
        }
        let Some(output) = self.process.output_when_awake(self.cursor).await? else {
            return Ok(Said::Bytes(Vec::new()));
        };
        self.cursor = output.next_cursor;
        if has_ended(&output.info) {
            self.ended = Some(output.info.state);
        }
        Ok(Said::Bytes(output.chunks.into_iter().flat_map(|chunk| chunk.bytes).collect()))
    }
}

impl Keyboard {
    /// The guest; a paused sandbox is woken.
    async fn guest(&self) -> Result<Arc<GuestClient>, NodeError> {
        let live = self.node.awake(&self.sandbox).await?;
        Ok(live.guest(self.node.inner.state.run_dir()).await?.1)
    }

    /// Types; waits while the program takes nothing. What is typed into one that has ended is lost, as it is anywhere.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn type_in(&self, mut bytes: &[u8]) -> Result<(), NodeError> {
        while !bytes.is_empty() {
            let guest = self.guest().await?;
            let offset = guest.status(self.exec).await?.stdin_offset;
            let piece = &bytes[..bytes.len().min(CHUNK_BYTES_MAX)];
            let accepted = match guest.input(self.exec, offset, piece.to_vec(), false).await {
                Err(NodeError::Guest(GuestError::BadCall(_))) => return Ok(()),
                accepted => accepted?.saturating_sub(offset),
            };
            let taken = usize::try_from(accepted).unwrap_or(usize::MAX).min(piece.len());
            bytes = &bytes[taken..];
            if taken == 0 {
                tokio::time::sleep(FULL_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Changes its size.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn resize(&self, size: PtySize) -> Result<(), NodeError> {
        self.node.process(&self.sandbox, &self.process).await?.0.resize(size).await.map(drop)
    }
}
