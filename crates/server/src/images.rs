//! Requests about images.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use branchbox_api::Issues;
use branchbox_node::Node;

pub(crate) fn list(node: &Node, asked: Asked) -> Answered {
    let mut query = asked.query;
    let state = query.text("state").and_then(|text| query.word("state", &text));
    let name = query.text("name");
    query.page();
    query.finish()?;
    Answer::ok(&node.images(name.as_deref(), state))
}

pub(crate) fn get(node: &Node, id: &str) -> Answered {
    Answer::ok(&node.image(id)?)
}

pub(crate) fn resolve(node: &Node, asked: &Asked) -> Answered {
    let text = asked.query.text("ref").ok_or_else(|| Issues::one("ref", "is required"))?;
    Answer::ok(&node.image(&text)?)
}
