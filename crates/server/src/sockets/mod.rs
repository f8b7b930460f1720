//! WebSockets: a terminal, and a tunnel to ports. Both begin alike: the key is checked and limits are counted over plain
//! HTTP, then the connection is upgraded, and everything else, failures too, is said in messages, because clients show
//! the text of a message and not the body of a refused handshake.
//!
//! Messages are sent whole, never in fragments: small clients do not put fragments together. A ping goes out in silence;
//! no answer to it is asked for, since a client may read only now and then.

pub(crate) mod terminal;
pub(crate) mod tunnel;

use crate::answer::{Answer, Answered, Failure};
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::http::request::Parts;
use branchbox_api::{ErrorInfo, SocketEvent};
use branchbox_model::Code;
use branchbox_node::Node;
use futures_util::SinkExt;
use futures_util::stream::SplitSink;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;

/// Largest message of a client: one chunk of a tunnel, or a paste into a terminal.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Silence after which a ping goes out.
const PING_EVERY: Duration = Duration::from_secs(30);
/// How long a client may take to take in the last message.
const LAST_WORD_WAIT: Duration = Duration::from_secs(5);
/// Close code: done.
const CLOSE_NORMAL: u16 = 1000;
/// Close code: the server goes down, come back.
const CLOSE_AWAY: u16 = 1001;
/// Close code: a failure, said in the message before.
const CLOSE_FAILED: u16 = 1011;

/// The sending side.
type Sink = SplitSink<WebSocket, Message>;

/// The upgrade that a request asks for, if it does.
pub(crate) async fn upgrade(parts: &mut Parts) -> Option<WebSocketUpgrade> {
    WebSocketUpgrade::from_request_parts(parts, &()).await.ok()
}

/// How many sockets of one kind are open; shared by those who hold a place.
#[derive(Debug)]
pub(crate) struct Places {
    what: &'static str,
    of_one_max: usize,
    of_node_max: usize,
    taken: Arc<Taken>,
}

/// Counts by name, and a word when one is given back.
#[derive(Debug, Default)]
struct Taken {
    counts: Mutex<HashMap<String, usize>>,
    freed: Notify,
}

impl Taken {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One open socket; its place is free when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    name: String,
    taken: Arc<Taken>,
}

impl Places {
    pub(crate) fn new(what: &'static str, of_one_max: usize, of_node_max: usize) -> Self {
        Self { what, of_one_max, of_node_max, taken: Arc::default() }
    }

    /// Takes a place under the name of a sandbox, or of another thing that places are counted for.
    pub(crate) fn take(&self, name: &str) -> Result<Place, Failure> {
        let mut counts = self.taken.counts();
        let all: usize = counts.values().sum();
        let here = counts.get(name).copied().unwrap_or(0);
        if here >= self.of_one_max || all >= self.of_node_max {
            let (count, whose) = if here >= self.of_one_max { (here, "sandbox") } else { (all, "node") };
            let message = format!("this {whose} has {count} {} open, which is the most", self.what);
            let mut failure = Failure::new(Code::RateLimited, message, "close one that is not needed");
            failure.0.retry_after_ms = Some(1000);
            return Err(failure);
        }
        counts.insert(name.to_owned(), here + 1);
        Ok(Place { name: name.to_owned(), taken: Arc::clone(&self.taken) })
    }

    /// Waits until no place is taken under a name.
    pub(crate) async fn empty(&self, name: &str) {
        loop {
            let freed = self.taken.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if !self.taken.counts().contains_key(name) {
                return;
            }
            freed.await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.taken.counts();
        if let Some(count) = counts.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.name);
            }
        }
        drop(counts);
        self.taken.freed.notify_waiters();
    }
}

/// Upgrades a connection and serves it; without an upgrade, says that one is needed.
pub(crate) fn serve<F, S>(upgrade: Option<WebSocketUpgrade>, serve: S) -> Answered
where
    F: Future<Output = ()> + Send + 'static,
    S: FnOnce(WebSocket) -> F + Send + 'static,
{
    let Some(upgrade) = upgrade else {
        let hint = "send Upgrade: websocket, as a WebSocket client does";
        return Err(Failure::new(Code::InvalidRequest, "this route is a WebSocket", hint));
    };
    let upgrade = upgrade.max_message_size(MESSAGE_BYTES_MAX).max_frame_size(MESSAGE_BYTES_MAX);
    Ok(Answer::Switch(upgrade.on_upgrade(serve)))
}

fn said(event: &SocketEvent) -> Message {
    // An event of ours has only text keys, so it can always be written.
    Message::Text(serde_json::to_string(event).unwrap_or_default().into())
}

fn closed(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code, reason: reason.into() }))
}

fn going_down() -> ErrorInfo {
    ErrorInfo::new(Code::Busy, "the node is shutting down", "connect again when it is up")
}

/// Returns when the node goes down.
pub(crate) fn closing(node: &Node) -> impl Future<Output = ()> + Send + use<> {
    let mut closing = node.closing();
    async move {
        let _ = closing.wait_for(|closing| *closing).await;
    }
}

/// Says why a socket ends, and closes it.
async fn fail(sink: &mut Sink, error: ErrorInfo, code: u16) {
    last_words(sink, said(&SocketEvent::Error { error }), closed(code, "see the message before")).await;
}

async fn last_words(sink: &mut Sink, word: Message, close: Message) {
    let say = async {
        sink.send(word).await?;
        sink.send(close).await
    };
    // A client that has gone, or does not read, hears nothing.
    let _ = tokio::time::timeout(LAST_WORD_WAIT, say).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_by_sandbox_and_by_node_and_given_back() {
        let places = Places::new("terminals", 2, 3);
        let first = places.take("a").expect("a place");
        let _second = places.take("a").expect("a place");
        assert_eq!(places.take("a").expect_err("full").0.status, 429);
        let _third = places.take("b").expect("a place");
        assert_eq!(places.take("c").expect_err("full").0.status, 429);
        drop(first);
        assert!(places.take("c").is_ok());
        assert_eq!(places.taken.counts().len(), 2, "nothing is left of c");
    }
}
