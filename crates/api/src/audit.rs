//! The audit log.

use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET /v1/audit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditPage {
    /// The lines, newest first.
    pub events: Vec<AuditLine>,
    /// Pass back as `before` for older ones.
    pub next: Option<String>,
}

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuditLine {
    /// Counts lines.
    pub seq: i64,
    /// Its id.
    pub id: String,
    /// When it was made.
    pub at: Timestamp,
    /// What was done.
    pub action: String,
    /// Who did it.
    pub actor: AuditActor,
    /// To what.
    pub target: AuditTarget,
    /// What else there is to know.
    pub detail: Option<Value>,
    /// Where the request came from, if over a network.
    pub ip: Option<String>,
    /// The request.
    pub request_id: String,
    /// The client it was made with.
    pub via: Option<String>,
    /// The sandbox that the target belongs to, or is.
    pub sandbox: Option<String>,
}

/// Who made a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditActor {
    /// `key`, or `owner` for whoever may open the node's own socket.
    pub kind: String,
    /// The id of the key.
    pub id: Option<String>,
    /// What the key is called.
    pub name: Option<String>,
    /// Persons are not known here.
    pub person: Option<String>,
}

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AuditTarget {
    /// What kind of thing.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its id.
    pub id: String,
}
