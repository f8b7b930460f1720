//! Events: what has become of sandboxes and snapshots.

use branchbox_model::{StopReason, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One of `GET /v1/events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its id; a cursor too.
    pub id: String,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: String,
    /// When.
    pub created_at: Timestamp,
    /// To which sandbox or snapshot.
    pub resource_id: String,
    /// The thing as it was then.
    pub data: EventData,
}

/// The thing that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum EventData {
    /// A sandbox.
    Sandbox(EventSandbox),
    /// A snapshot.
    Snapshot(EventSnapshot),
}

/// A sandbox as it was when something became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSandbox {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The state it reached.
    pub state: String,
    /// The state of the event before.
    pub previous_state: Option<String>,
    /// Why it does not run.
    pub stop_reason: Option<StopReason>,
}

/// A snapshot as it was when something became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSnapshot {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The sandbox it was taken from.
    pub source_sandbox_id: Option<String>,
    /// The state it reached.
    pub state: String,
    /// The state it came from.
    pub previous_state: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
}
