//! Requests about commands.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use crate::stream;
use branchbox_api::{ExecRequest, InputRequest, PtySize, SignalRequest, StreamEvent};
use branchbox_node::{Node, Process};

/// Bytes of one look at output when the request does not say.
const LOOK_BYTES: u64 = 196_608;
/// Longest wait of one look.
pub(crate) const LOOK_WAIT_MS_MAX: u64 = 8000;

/// Whether a stream is the first of its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Fresh,
    Replayed,
}

fn streamed(node: &Node, sandbox: &str, process: Process, start: Start) -> Answered {
    let id = process.id();
    let first = StreamEvent::Start { process_id: id.clone(), replayed: start == Start::Replayed };
    let body = stream::follow(Some(first), process.follow(0), node.closing());
    Ok(Answer::Stream { sandbox: sandbox.to_owned(), process: id, body })
}

pub(crate) async fn exec(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = ExecRequest::parse_exec(&asked.body)?;
    let is_stream = request.stream;
    let process = node.exec(id, request).await?;
    if is_stream { streamed(node, id, process, Start::Fresh) } else { Answer::ok(&process.wait().await?) }
}

/// Follows a command that an earlier request with the same key started.
pub(crate) async fn attach(node: &Node, sandbox: &str, process: &str) -> Answered {
    let (process, _) = node.process(sandbox, process).await?;
    streamed(node, sandbox, process, Start::Replayed)
}

pub(crate) async fn start(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = ExecRequest::parse_process(&asked.body)?;
    Answer::created(&node.spawn(id, request).await?)
}

pub(crate) async fn output(node: &Node, id: &str, process: &str, asked: Asked) -> Answered {
    let mut query = asked.query;
    let cursor = query.number("cursor", 0..=u64::MAX).unwrap_or(0);
    let is_follow = query.truth("follow");
    let wait_ms = query.number("waitMs", 0..=LOOK_WAIT_MS_MAX).unwrap_or(0);
    let bytes_max = query.number("maxBytes", 1..=u64::MAX).unwrap_or(LOOK_BYTES);
    query.finish()?;
    let (process, _) = node.process(id, process).await?;
    if is_follow {
        let name = process.id();
        let body = stream::follow(None, process.follow(cursor), node.closing());
        return Ok(Answer::Stream { sandbox: id.to_owned(), process: name, body });
    }
    Answer::ok(&process.look(cursor, usize::try_from(bytes_max).unwrap_or(usize::MAX), wait_ms).await?)
}

pub(crate) async fn input(node: &Node, id: &str, process: &str, asked: &Asked) -> Answered {
    let request = InputRequest::parse(&asked.body)?;
    Answer::ok(&node.process(id, process).await?.0.input(request).await?)
}

pub(crate) async fn signal(node: &Node, id: &str, process: &str, asked: &Asked) -> Answered {
    let request = SignalRequest::parse(&asked.body)?;
    Answer::ok(&node.process(id, process).await?.0.signal(request.signal).await?)
}

pub(crate) async fn resize(node: &Node, id: &str, process: &str, asked: &Asked) -> Answered {
    let size = PtySize::parse(&asked.body)?;
    Answer::ok(&node.process(id, process).await?.0.resize(size).await?)
}
