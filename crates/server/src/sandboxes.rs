//! Requests about sandboxes.

use crate::answer::{Answer, Answered};
use crate::app::Asked;
use branchbox_api::{
    CreateRequest, Empty, ExtendRequest, ForkRequest, NetworkRequest, RetentionRequest, UpdateRequest, WakeRequest,
};
use branchbox_catalog::SandboxFilter;
use branchbox_model::SandboxState;
use branchbox_node::Node;
use std::time::Duration;

/// Longest wait for a state.
const WAIT_FOR_SECONDS_MAX: u64 = 110;
/// Wait for a state when the request does not say.
const WAIT_FOR_SECONDS: u64 = 60;

pub(crate) async fn create(node: &Node, asked: &Asked) -> Answered {
    let account = Some(asked.caller.account().into());
    let request = CreateRequest { account, ..CreateRequest::parse(&asked.body)? };
    Answer::created(&node.create(request, asked.wait.unwrap_or_default()).await?)
}

pub(crate) async fn get(node: &Node, id: &str, asked: Asked) -> Answered {
    let mut query = asked.query;
    let state = query.text("waitFor").and_then(|text| query.word::<SandboxState>("waitFor", &text));
    let seconds = query.number("timeoutSeconds", 0..=u64::MAX).unwrap_or(WAIT_FOR_SECONDS).min(WAIT_FOR_SECONDS_MAX);
    query.finish()?;
    match state {
        None => Answer::ok(&node.get(id).await?),
        Some(state) => Answer::ok(&node.wait_for(id, state, Duration::from_secs(seconds)).await?),
    }
}

pub(crate) async fn list(node: &Node, asked: Asked) -> Answered {
    let mut query = asked.query;
    let states = query.all("state").iter().filter_map(|text| query.word("state", text)).collect();
    let labels = query.all("label").iter().map(|pair| label(pair)).collect();
    let filter = SandboxFilter {
        states,
        include_ended: query.truth("includeStopped"),
        labels,
        name: query.text("name"),
        after: query.id("cursor"),
        limit: query.page(),
    };
    query.finish()?;
    Answer::ok(&node.list(filter).await?)
}

/// `key:value`; without a colon the value is empty.
fn label(pair: &str) -> (String, String) {
    let (key, value) = pair.split_once(':').unwrap_or((pair, ""));
    (key.to_owned(), value.to_owned())
}

pub(crate) async fn stop(node: &Node, id: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&node.stop(id).await?)
}

pub(crate) async fn fork(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = ForkRequest { account: Some(asked.caller.account().into()), ..ForkRequest::parse(&asked.body)? };
    Answer::created(&node.fork(id, request).await?)
}

pub(crate) async fn update(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = UpdateRequest::parse(&asked.body)?;
    Answer::ok(&node.update(id, request).await?)
}

pub(crate) async fn pause(node: &Node, id: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&node.pause(id, asked.wait.unwrap_or_default()).await?)
}

pub(crate) async fn wake(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = WakeRequest::parse(&asked.body)?;
    Answer::ok(&node.wake(id, request.timeout_seconds, asked.wait.unwrap_or_default()).await?)
}

pub(crate) async fn restart(node: &Node, id: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&node.restart(id, asked.wait.unwrap_or_default()).await?)
}

pub(crate) async fn extend(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::ok(&node.extend(id, ExtendRequest::parse(&asked.body)?.seconds).await?)
}

pub(crate) async fn retention(node: &Node, id: &str, asked: &Asked) -> Answered {
    Answer::ok(&node.retention(id, RetentionRequest::parse(&asked.body)?.days).await?)
}

pub(crate) async fn set_network(node: &Node, id: &str, asked: &Asked) -> Answered {
    let request = NetworkRequest::parse(&asked.body)?;
    Answer::ok(&node.set_network(id, &request).await?)
}
