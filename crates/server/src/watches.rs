//! Requests about watches.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use crate::stream;
use branchbox_api::watch::{StoppedWatch, WatchRequest};
use branchbox_node::Node;

/// Longest wait of one answer.
pub(crate) const WAIT_MS_MAX: u64 = 8000;

pub(crate) async fn start(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::created(&node.start_watch(id, WatchRequest::parse(&asked.body)?).await?)
}

pub(crate) async fn stop(node: &Node, id: &str, watch: &str) -> Answered {
    Answer::ok(&StoppedWatch { stopped: node.stop_watch(id, watch).await? })
}

pub(crate) async fn read(node: &Node, id: &str, watch: &str, asked: Asked) -> Answered {
    let mut query = asked.query;
    let is_followed = query.truth("follow");
    let cursor = query.number("cursor", 0..=u64::MAX).unwrap_or(0);
    let wait_ms = query.number("waitMs", 0..=WAIT_MS_MAX).unwrap_or(0);
    query.finish()?;
    // What is wrong is told before the lines begin.
    let first = node.read_watch(id, watch, cursor, if is_followed { 0 } else { wait_ms }).await?;
    if !is_followed {
        return Answer::ok(&first);
    }
    Ok(Answer::Lines { body: stream::watch(node.clone(), id.to_owned(), watch.to_owned(), first) })
}
