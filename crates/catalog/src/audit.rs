//! The audit log: who changed what. Lines are added and never changed; only the oldest of very many are forgotten.

use branchbox_model::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A change that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditRecord {
    /// Counts lines, never reused; 0 before it is written.
    pub seq: i64,
    /// When it was made.
    pub at: Timestamp,
    /// Its word, such as `sandbox.deleted`.
    pub action: String,
    /// The rest.
    pub detail: AuditDetail,
}

/// What is not searched of a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditDetail {
    /// `key` or `owner`.
    pub actor_kind: String,
    /// The id of the key; `None` for the owner of the node's own socket.
    pub actor: Option<String>,
    /// What the key is called.
    pub actor_name: Option<String>,
    /// What kind of thing was changed.
    pub target_kind: String,
    /// Its id.
    pub target: String,
    /// The sandbox that it belongs to, or is.
    pub sandbox: Option<String>,
    /// What else there is to know.
    pub more: Option<Value>,
    /// Where the request came from, if over a network.
    pub ip: Option<String>,
    /// The request.
    pub request: String,
    /// The client it was made with.
    pub via: Option<String>,
}

/// Which lines to list.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// This action, or every action of a group that ends in a dot.
    pub action: Option<String>,
    /// Only older than this.
    pub before: Option<i64>,
    /// At most this many.
    pub limit: u32,
}
