//! Requests about what has happened on this node.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use branchbox_api::{Issue, Issues, MetricsRange};
use branchbox_catalog::EventFilter;
use branchbox_node::Node;

/// `GET /v1/events`.
pub(crate) async fn events(node: &Node, asked: Asked) -> Answered {
    let mut query = asked.query;
    let cursor = query.text("cursor");
    let before = cursor.as_deref().and_then(Node::event_number);
    if cursor.is_some() && before.is_none() {
        let issue = Issue { path: "cursor".into(), message: "is none that this node gave out".into() };
        return Err(Issues(vec![issue]).into());
    }
    let (resource, kind) = (query.text("resourceId"), query.text("type"));
    let filter = EventFilter { resource, kind, before, limit: query.page() };
    query.finish()?;
    Answer::ok(&node.events(filter).await?)
}

/// `GET …/metrics`.
pub(crate) async fn metrics(node: &Node, id: &str, asked: Asked) -> Answered {
    let mut query = asked.query;
    let range = query.text("range").and_then(|text| query.word("range", &text)).unwrap_or(MetricsRange::Hour);
    query.finish()?;
    Answer::ok(&node.metrics(id, range).await?)
}
