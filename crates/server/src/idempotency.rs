//! One run per idempotency key.
//!
//! The first request with a key runs; others with it wait and then get its answer. Answers are kept by the node for a
//! day. A failure that passes is not kept: "nothing ran, try again" must not become the answer for good.

use crate::answer::{Answer, Answered, Failure, Origin};
use branchbox_api::{ErrorBody, ErrorInfo, Issues};
use branchbox_catalog::KeptAnswer;
use branchbox_model::{Code, Timestamp};
use branchbox_node::Node;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// Longest key.
pub(crate) const KEY_BYTES_MAX: usize = 128;
/// What a key is made of behind its first character, which is a letter or digit.
pub(crate) const KEY_PATTERN_REST: &str = "[A-Za-z0-9_.:-]";
/// Under this name a kept answer holds the command whose stream it was.
const STREAM: &str = "$stream";
/// Failures that say nothing about the next try.
const PASSING: &[Code] = &[
    Code::NoCapacity,
    Code::QuotaExceeded,
    Code::Busy,
    Code::RateLimited,
    Code::InternalError,
    Code::DiskFull,
    Code::Unauthorized,
];

/// A request that carries a key.
#[derive(Debug, Clone)]
pub(crate) struct Keyed {
    account: String,
    key: String,
    fingerprint: String,
}

impl Keyed {
    /// Checks a key and takes the request's fingerprint.
    pub(crate) fn new(key: &str, account: &str, method: &str, uri: &str, body: &[u8]) -> Result<Self, Issues> {
        let fine = key.len() <= KEY_BYTES_MAX
            && key.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b));
        if !fine {
            let problem =
                format!("1 to {KEY_BYTES_MAX} letters, digits, `_`, `.`, `:` or `-`, the first a letter or digit");
            return Err(Issues::one("Idempotency-Key", problem));
        }
        let mut hasher = blake3::Hasher::new();
        for part in [method.as_bytes(), uri.as_bytes(), body] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Ok(Self {
            account: account.to_owned(),
            key: key.to_owned(),
            fingerprint: hasher.finalize().to_hex().to_string(),
        })
    }
}

/// Keys whose requests run now.
#[derive(Debug, Default)]
pub(crate) struct Running {
    keys: Arc<Mutex<HashMap<String, watch::Receiver<()>>>>,
}

/// The right to run; ends when dropped, which wakes who waits.
struct Turn {
    keys: Arc<Mutex<HashMap<String, watch::Receiver<()>>>>,
    key: String,
    _ended: watch::Sender<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

impl Running {
    /// The turn of a key, or what to wait for.
    fn turn(&self, key: &str) -> Result<Turn, watch::Receiver<()>> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = keys.get(key) {
            return Err(running.clone());
        }
        let (ended, receiver) = watch::channel(());
        keys.insert(key.to_owned(), receiver);
        Ok(Turn { keys: Arc::clone(&self.keys), key: key.to_owned(), _ended: ended })
    }
}

/// Runs a request at most once; `attach` follows the stream of a command that an earlier one started.
pub(crate) async fn once<F, A>(
    node: &Node,
    running: &Running,
    keyed: Keyed,
    run: F,
    attach: impl FnOnce(String, String) -> A,
) -> (Answered, Origin)
where
    F: Future<Output = Answered>,
    A: Future<Output = Answered>,
{
    let turn = loop {
        match running.turn(&format!("{} {}", keyed.account, keyed.key)) {
            Ok(turn) => break turn,
            // An error means that the sender is gone, which is the end we wait for.
            Err(mut ended) => while ended.changed().await.is_ok() {},
        }
    };
    let answered = match node.kept_answer(&keyed.account, &keyed.key).await {
        Err(error) => (Err(error.into()), Origin::Fresh),
        Ok(Some(kept)) if kept.fingerprint != keyed.fingerprint => (Err(reused()), Origin::Fresh),
        Ok(Some(kept)) => (replay(&kept, attach).await, Origin::Replayed),
        Ok(None) => {
            let answered = run.await;
            if let Some((status, body)) = to_keep(&answered) {
                keep(node, &keyed, status, body).await;
            }
            (answered, Origin::Fresh)
        }
    };
    drop(turn);
    answered
}

fn reused() -> Failure {
    Failure::new(
        Code::IdempotencyKeyReused,
        "the idempotency key was used with another request",
        "use a new key for each request, and the same one only for repetitions",
    )
}

async fn replay<A: Future<Output = Answered>>(kept: &KeptAnswer, attach: impl FnOnce(String, String) -> A) -> Answered {
    let body: Value = serde_json::from_str(&kept.body).unwrap_or_default();
    if kept.status >= 400 {
        let damaged = || ErrorInfo::new(Code::InternalError, "a kept answer is damaged", "use a new key");
        let info = serde_json::from_value::<ErrorBody>(body).map_or_else(|_| damaged(), |body| body.error);
        return Err(Failure(Box::new(info)));
    }
    let field = |name| body.get(STREAM).and_then(|stream| stream.get(name)).and_then(Value::as_str);
    if let (Some(sandbox), Some(process)) = (field("sandbox"), field("process")) {
        return attach(sandbox.to_owned(), process.to_owned()).await;
    }
    Ok(Answer::Json { status: kept.status, body: marked(body) })
}

fn marked(mut body: Value) -> Value {
    if let Some(object) = body.as_object_mut() {
        object.insert("replayed".into(), Value::Bool(true));
    }
    body
}

async fn keep(node: &Node, keyed: &Keyed, status: u16, body: String) {
    let answer = KeptAnswer { fingerprint: keyed.fingerprint.clone(), status, body, created: Timestamp::now() };
    if let Err(error) = node.keep_answer(&keyed.account, &keyed.key, &answer).await {
        tracing::error!(%error, "the answer to an idempotency key was not kept");
    }
}

fn to_keep(answered: &Answered) -> Option<(u16, String)> {
    let (status, body) = match answered {
        Ok(Answer::Json { status, body }) => (*status, body.clone()),
        Ok(Answer::Stream { sandbox, process, .. }) => {
            (200, json!({ STREAM: { "sandbox": sandbox, "process": process } }))
        }
        Ok(Answer::File { .. } | Answer::Bytes { .. } | Answer::Lines { .. } | Answer::Switch(_)) => return None,
        Err(Failure(info)) => {
            let passes = info.retryable == Some(true) || info.known_code().is_none_or(|code| PASSING.contains(&code));
            if passes {
                return None;
            }
            (info.status, json!(ErrorBody { error: (**info).clone() }))
        }
    };
    Some((status, body.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_and_fingerprints_tell_requests_apart() {
        for bad in ["", "-a", "a b", "a\n", &"x".repeat(129)] {
            assert!(Keyed::new(bad, "a", "POST", "/", b"").is_err(), "{bad:?}");
        }
        let print = |uri, body| Keyed::new("k", "a", "POST", uri, body).expect("a key").fingerprint;
        assert_eq!(print("/a", b"b".as_slice()), print("/a", b"b"));
        assert_ne!(print("/a", b"b".as_slice()), print("/ab", b""));
    }

    #[tokio::test]
    async fn a_second_turn_waits_for_the_first() {
        let running = Running::default();
        let first = running.turn("k").unwrap_or_else(|_| panic!("free"));
        let mut wait = running.turn("k").err().expect("taken");
        assert!(running.turn("other").is_ok());
        let waiter = tokio::spawn(async move { while wait.changed().await.is_ok() {} });
        assert!(!waiter.is_finished());
        drop(first);
        waiter.await.expect("woken");
        assert!(running.turn("k").is_ok());
    }

    #[tokio::test]
    async fn kept_answers_are_marked_and_passing_failures_are_not_kept() {
        let answer = Answer::ok(&json!({ "id": "x" }));
        let (status, body) = to_keep(&answer).expect("kept");
        let kept = KeptAnswer { fingerprint: String::new(), status, body, created: Timestamp(0) };
        let no_stream = |_, _| async { panic!("not a stream") };
        match replay(&kept, no_stream).await {
            Ok(Answer::Json { status: 200, body }) => assert_eq!(body, json!({ "id": "x", "replayed": true })),
            other => panic!("{other:?}"),
        }
        assert!(to_keep(&Err(Failure::new(Code::NoCapacity, "m", "h"))).is_none());
        let (status, body) = to_keep(&Err(Failure::new(Code::NameTaken, "m", "h"))).expect("kept");
        let kept = KeptAnswer { fingerprint: String::new(), status, body, created: Timestamp(0) };
        let failure = replay(&kept, no_stream).await.expect_err("an error again");
        assert_eq!((failure.0.code.as_str(), failure.0.status), ("name_taken", 409));
    }

    #[tokio::test]
    async fn a_kept_stream_is_attached_to_again() {
        let stream = Answer::Stream { sandbox: "s".into(), process: "p1".into(), body: axum::body::Body::empty() };
        let (status, body) = to_keep(&Ok(stream)).expect("kept");
        let kept = KeptAnswer { fingerprint: String::new(), status, body, created: Timestamp(0) };
        let attached = replay(&kept, |sandbox, process| async move { Answer::ok(&json!([sandbox, process])) }).await;
        assert!(matches!(attached, Ok(Answer::Json { body, .. }) if body == json!(["s", "p1"])));
    }
}
