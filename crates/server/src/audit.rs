//! Who changed what: one line in the audit log for each request that changed something, written before its answer.
//!
//! One table says which requests those are. What happens inside a sandbox (commands, files, terminals) is not in it, and
//! neither is what the node does by itself: events tell that. A request that failed has changed nothing and is not in it,
//! but for a fork of which some copies run; a repeated idempotency key changes nothing and is not in it again.

use crate::answer::{Answer, Answered, Failure};
use crate::app::Asked;
use crate::routes::Route;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use branchbox_api::{Issue, Issues};
use branchbox_catalog::{AuditDetail, AuditFilter, AuditRecord};
use branchbox_model::Timestamp;
use branchbox_node::{Caller, Node};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// The client that a request was made with, in its own words.
const CLIENT_HEADER: &str = "x-runtime-client";
/// Longest name of a client that is kept.
const CLIENT_BYTES_MAX: usize = 64;
/// Longest id of a target that is kept; longer ones are of things that never were.
const TARGET_CHARS_MAX: usize = 128;
/// Lines in one page.
pub(crate) const PAGE_MAX: u64 = 200;
const PAGE_DEFAULT: u32 = 50;

/// How somebody asks.
#[derive(Debug)]
pub(crate) struct Asker {
    ip: Option<String>,
    via: Option<String>,
    request: String,
}

impl Asker {
    /// Reads what a request says of itself.
    pub(crate) fn of(request: &Request<Body>, request_id: &str) -> Self {
        let ip = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_string());
        let via = request.headers().get(CLIENT_HEADER).and_then(|value| value.to_str().ok());
        let via = via.map(|via| via.chars().take(CLIENT_BYTES_MAX).collect());
        Self { ip, via, request: request_id.to_owned() }
    }
}

/// Who asks: the kind, and the key's id and name.
fn actor(caller: &Caller) -> (&'static str, Option<String>, Option<String>) {
    match caller {
        Caller::Owner => ("owner", None, None),
        Caller::Admin => ("key", Some("admin".into()), Some("admin key".into())),
        Caller::Key { id, name } => ("key", Some(id.clone()), Some(name.clone())),
    }
}

/// What a route changes, if it changes something: the action, the kind of its target, and the target as far as the path
/// names it.
fn change(route: &Route) -> Option<(&'static str, &'static str, String)> {
    let (action, kind, target) = match route {
        Route::CreateSandbox => ("sandbox.created", "sandbox", ""),
        Route::DeleteSandbox { id } => ("sandbox.deleted", "sandbox", id.as_str()),
        Route::Stop { id } => ("sandbox.stopped", "sandbox", id.as_str()),
        Route::Fork { id } => ("sandbox.forked", "sandbox", id.as_str()),
        Route::Update { id } => ("sandbox.updated", "sandbox", id.as_str()),
        Route::Pause { id } => ("sandbox.paused", "sandbox", id.as_str()),
        Route::Wake { id } => ("sandbox.woken", "sandbox", id.as_str()),
        Route::Restart { id } => ("sandbox.restarted", "sandbox", id.as_str()),
        Route::Extend { id } => ("sandbox.extended", "sandbox", id.as_str()),
        Route::Retention { id } => ("sandbox.retention_changed", "sandbox", id.as_str()),
        Route::PutNetwork { id } => ("network.changed", "sandbox", id.as_str()),
        Route::SharePort { id } => ("preview.shared", "sandbox", id.as_str()),
        Route::RotatePreview { id, .. } => ("preview.rotated", "sandbox", id.as_str()),
        Route::DeletePreview { id, .. } => ("preview.deleted", "sandbox", id.as_str()),
        Route::Snapshot { .. } => ("snapshot.created", "snapshot", ""),
        Route::UpdateSnapshot { id } => ("snapshot.updated", "snapshot", id.as_str()),
        Route::ExtendSnapshot { id } => ("snapshot.extended", "snapshot", id.as_str()),
        Route::DeleteSnapshot { id } => ("snapshot.deleted", "snapshot", id.as_str()),
        Route::CreateKey => ("key.created", "key", ""),
        Route::DeleteKey { id } => ("key.deleted", "key", id.as_str()),
        Route::CreateImage => ("image.created", "image", ""),
        Route::TagImage { id } => ("image.tagged", "image", id.as_str()),
        Route::UntagImage { id } => ("image.untagged", "image", id.as_str()),
        Route::DeleteImage { id } => ("image.deleted", "image", id.as_str()),
        _ => return None,
    };
    Some((action, kind, target.chars().take(TARGET_CHARS_MAX).collect()))
}

/// What else there is to know of a change, from its answer.
fn more(action: &str, body: &Value) -> Option<Value> {
    match action {
        "sandbox.forked" => {
            let copies = body.get("sandboxes")?.as_array()?;
            Some(json!({ "sandboxIds": copies.iter().filter_map(|copy| copy.get("id")).collect::<Vec<_>>() }))
        }
        "network.changed" => Some(json!({ "internet": body.get("internet"), "allow": body.get("allow") })),
        "preview.shared" | "preview.rotated" => {
            Some(json!({ "port": body.get("port"), "visibility": body.get("visibility") }))
        }
        _ => None,
    }
}

/// Runs a request, and writes down what it has changed.
pub(crate) async fn watched(
    node: &Node,
    caller: &Caller,
    route: &Route,
    asker: Asker,
    run: impl Future<Output = Answered>,
) -> Answered {
    let Some((action, kind, target)) = change(route) else { return run.await };
    let sandbox_in_path = match route {
        Route::Snapshot { id } => Some(id.chars().take(TARGET_CHARS_MAX).collect()),
        _ => None,
    };
    let preview_port = match route {
        Route::DeletePreview { port, .. } => Some(json!({ "port": port.parse::<u16>().ok() })),
        _ => None,
    };
    let answered = run.await;
    let (target, more) = match &answered {
        Ok(Answer::Json { body, .. }) => {
            let is_it = kind != "sandbox" || action.starts_with("sandbox.") && action != "sandbox.forked";
            let id = body.get("id").and_then(Value::as_str).filter(|_| is_it);
            (id.map_or(target, str::to_owned), more(action, body).or(preview_port))
        }
        Ok(_) => (target, preview_port),
        Err(Failure(info)) => match info.details.get("startedSandboxIds") {
            Some(started) => (target, Some(json!({ "sandboxIds": started }))),
            None => return answered,
        },
    };
    let sandbox = sandbox_in_path.or_else(|| (kind == "sandbox").then(|| target.clone()));
    let (actor_kind, actor, actor_name) = actor(caller);
    let detail = AuditDetail {
        actor_kind: actor_kind.into(),
        actor,
        actor_name,
        target_kind: kind.into(),
        target,
        sandbox,
        more,
        ip: asker.ip,
        request: asker.request,
        via: asker.via,
    };
    let record = AuditRecord { seq: 0, at: Timestamp::now(), action: action.into(), detail };
    if let Err(error) = node.write_audit(&record).await {
        // It has been done: an answer that denies it would be worse than a line that only the log of the node has.
        tracing::error!(?record, %error, "a change is missing in the audit log");
    }
    answered
}

/// `GET /v1/audit`.
pub(crate) async fn list(node: &Node, asked: Asked) -> Answered {
    let mut query = asked.query;
    let before = query.text("before");
    let older = before.as_deref().and_then(|before| before.parse::<i64>().ok()).filter(|before| *before > 0);
    if before.is_some() && older.is_none() {
        let issue = Issue { path: "before".into(), message: "is none that this node gave out".into() };
        return Err(Issues(vec![issue]).into());
    }
    let limit = query.number("limit", 1..=PAGE_MAX).and_then(|limit| u32::try_from(limit).ok());
    let filter = AuditFilter { action: query.text("action"), before: older, limit: limit.unwrap_or(PAGE_DEFAULT) };
    query.finish()?;
    Answer::ok(&node.audit(filter).await?)
}
