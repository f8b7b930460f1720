//! Requests about snapshots.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use branchbox_api::{ExtendSnapshotRequest, SnapshotRequest, UpdateSnapshotRequest};
use branchbox_catalog::SnapshotFilter;
use branchbox_node::Node;
use std::time::Duration;

/// Wait for a capture when the request does not say.
const WAIT: Duration = Duration::from_secs(10);

pub(crate) async fn take(node: &Node, id: &str, asked: &Asked) -> Answered {
    let account = Some(asked.caller.account().into());
    let request = SnapshotRequest { account, ..SnapshotRequest::parse(&asked.body)? };
    Answer::created(&node.snapshot(id, request, asked.wait.unwrap_or(WAIT)).await?)
}

pub(crate) async fn list(node: &Node, asked: Asked) -> Answered {
    let mut query = asked.query;
    let filter = SnapshotFilter {
        source: query.id("sandboxId"),
        name: query.text("name"),
        state: query.text("state").and_then(|text| query.word("state", &text)),
        include_temporary: false,
        after: query.id("cursor"),
        limit: query.page(),
    };
    query.finish()?;
    Answer::ok(&node.list_snapshots(filter).await?)
}

pub(crate) async fn update(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = UpdateSnapshotRequest::parse(&asked.body)?;
    Answer::ok(&node.update_snapshot(id, request).await?)
}

pub(crate) async fn extend(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = ExtendSnapshotRequest::parse(&asked.body)?;
    Answer::ok(&node.extend_snapshot(id, request.retention_days).await?)
}
