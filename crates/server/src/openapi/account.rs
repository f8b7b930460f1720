//! The node itself, described: who asks, limits, keys, what has happened.

use super::operation::{Content, Kind, Operation, delete, get, like, number, post, text};
use super::page;
use crate::audit;
use branchbox_api::{AuditPage, Event, KeyInfo, KeyRequest, Limits, List, Me, Page, Usage};
use serde_json::json;

pub(super) fn operations() -> Vec<Operation> {
    let document = vec![Content::Json(Kind::Json(json!({ "type": "object" })))];
    let event = like("cursor", json!({ "type": "string", "pattern": "^evt_[1-9][0-9]{0,17}$" }), "Where to go on.");
    vec![
        get("/v1/openapi.json", "getOpenapi", "This document.")
            .answers_with(200, "An OpenAPI document.", document)
            .public(),
        get("/v1/me", "getMe", "Who asks, and where.").answers::<Me>(200),
        get("/v1/limits", "getLimits", "What there may be at most, and is.").answers::<Limits>(200),
        get("/v1/usage", "getUsage", "What each sandbox has used.").answers::<Usage>(200),
        get("/v1/events", "listEvents", "What has become of sandboxes and snapshots, newest first.")
            .with([
                text("resourceId", "Only of this sandbox or snapshot."),
                text("type", "Only of this kind."),
                event,
                page(),
            ])
            .answers::<Page<Event>>(200),
        get("/v1/audit", "listAudit", "What was changed by whom, newest first.")
            .with([
                text("action", "Only this action."),
                number("before", 1..=i64::MAX.unsigned_abs(), "Only older ones than this line."),
                number("limit", 1..=audit::PAGE_MAX, "Lines in one page."),
            ])
            .answers::<AuditPage>(200),
        get("/v1/keys", "listKeys", "List keys; with the admin key alone.").answers::<List<KeyInfo>>(200).fails(&[403]),
        post("/v1/keys", "createKey", "Make a key; with the admin key alone. Takes no idempotency key.")
            .takes("KeyRequest", KeyRequest::read)
            .answers::<KeyInfo>(201)
            .fails(&[403]),
        delete("/v1/keys/{key}", "deleteKey", "Remove a key; with the admin key alone.")
            .answers::<KeyInfo>(200)
            .fails(&[403]),
    ]
}
