//! Previews: the routes that share ports, and the visits to what is shared.
//!
//! A visit is known by its host, `PORT-SANDBOX.localhost`, on the listener of the API: such names lead to loopback by
//! themselves, and give every preview an origin of its own in a browser. A host below `.localhost` never reaches the API,
//! and the API's hosts never reach a sandbox.

mod host;
mod page;
mod proxy;
mod token;

pub(crate) use host::label;
pub(crate) use proxy::visit;

use crate::answer::{Answer, Answered, Failure};
use crate::app::{App, Asked};
use branchbox_api::{EXPIRES_AT_RULE, Empty, Issues, PREVIEW_TTL_SECONDS, PreviewRequest, TokenLife, future};
use branchbox_model::Code;
use std::time::Duration;

/// Visits to one port at once.
pub(crate) const OF_PREVIEW_MAX: usize = 512;
/// Visits of a node at once.
pub(crate) const OF_NODE_MAX: usize = 4096;
/// How long the connections of a port that is shared no more may take to end.
const END_WAIT: Duration = Duration::from_secs(5);

/// Where previews are, as the end of their hosts.
fn host(app: &App) -> Result<String, Failure> {
    let hint = "start the node with --listen 127.0.0.1:PORT";
    let none = || Failure::new(Code::PreviewsUnavailable, "this node listens on no port", hint);
    app.port.get().map(|port| format!("localhost:{port}")).ok_or_else(none)
}

pub(crate) async fn share(app: &App, id: &str, asked: &Asked) -> Answered {
    let request = PreviewRequest::parse(&asked.body)?;
    Answer::created(&app.node.share(id, request, &host(app)?).await?)
}

pub(crate) fn list(app: &App, id: &str) -> Answered {
    Answer::ok(&app.node.previews(id, &host(app)?)?)
}

pub(crate) fn get(app: &App, id: &str, port: &str, asked: Asked) -> Answered {
    let mut query = asked.query;
    let (shortest, longest) = (*PREVIEW_TTL_SECONDS.start(), *PREVIEW_TTL_SECONDS.end());
    let ttl_seconds = query.number("ttlSeconds", u64::from(shortest)..=u64::from(longest));
    let ttl_seconds = ttl_seconds.and_then(|seconds| u32::try_from(seconds).ok());
    let text = query.text("expiresAt");
    query.finish()?;
    let expires_at = match text {
        None => None,
        Some(text) => Some(future(&text).ok_or_else(|| Issues::one("expiresAt", EXPIRES_AT_RULE))?),
    };
    Answer::ok(&app.node.preview(id, number(port)?, TokenLife { ttl_seconds, expires_at }, &host(app)?)?)
}

pub(crate) async fn rotate(app: &App, id: &str, port: &str, asked: &Asked) -> Answered {
    Empty::parse(&asked.body)?;
    Answer::ok(&app.node.rotate_preview(id, number(port)?, &host(app)?).await?)
}

/// Answers when the open connections have ended.
pub(crate) async fn unshare(app: &App, id: &str, port: &str) -> Answered {
    let port = number(port)?;
    let deleted = app.node.unshare(id, port).await?;
    let _ = tokio::time::timeout(END_WAIT, app.visits.empty(&deleted.id)).await;
    Answer::ok(&deleted)
}

fn number(port: &str) -> Result<u16, Failure> {
    let unknown = || Issues::one("port", "must be a whole number from 1 to 65535");
    Ok(port.parse().ok().filter(|port| *port != 0).ok_or_else(unknown)?)
}
