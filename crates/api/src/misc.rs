//! Small shapes: pages, network rules, the account, times of one call.

use crate::fields::{Fields, Issues};
use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One page of a list.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    /// The things.
    pub data: Vec<T>,
    /// Pass back as `cursor` for more.
    pub next_cursor: Option<String>,
}

/// A list that is told whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub struct List<T> {
    /// The things.
    pub data: Vec<T>,
}

/// A body with no fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Empty {}

impl Empty {
    /// Reads a body.
    ///
    /// # Errors
    /// When it has fields or is no object.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(_: &mut Fields) -> Self {
        Self {}
    }
}

/// Where a call's time went, measured on this call, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timings {
    /// The source stood still for this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_us: Option<u64>,
    /// The capture took this long, pause included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capture_us: Option<u64>,
    /// The slowest copy took this long from its keeper's start until it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_us: Option<u64>,
    /// The whole call, inside the server.
    #[serde(default)]
    pub server_us: u64,
    /// Bytes of memory and records that were written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// Something a restore did that a program could notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Note {
    /// What kind of thing.
    pub kind: String,
    /// Pid inside the sandbox.
    pub pid: Option<i32>,
    /// For people.
    pub detail: String,
}

/// Network rules to set; replaces all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetworkRequest {
    /// Anything may leave.
    pub internet: bool,
    /// Only these may be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// These never.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// `host:port` beside the usual.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub connect: Vec<String>,
}

impl NetworkRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(fields: &mut Fields) -> Self {
        fields.required("internet");
        Self {
            internet: fields.truth("internet").unwrap_or(false),
            allow: fields.texts("allow").unwrap_or_default(),
            deny: fields.texts("deny").unwrap_or_default(),
            connect: fields.texts("connect").unwrap_or_default(),
        }
    }

    /// Whether it lets anything out: off with an allow list is that list.
    #[must_use]
    pub fn opens(&self) -> bool {
        self.internet || !self.allow.is_empty() || !self.connect.is_empty()
    }
}

/// Network rules in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRules {
    /// The sandbox.
    pub sandbox_id: String,
    /// Anything may leave.
    pub internet: bool,
    /// Only these may be reached.
    pub allow: Vec<String>,
    /// These never.
    pub deny: Vec<String>,
    /// `host:port` beside the usual.
    pub connect: Vec<String>,
    /// Counts changes.
    pub version: u64,
    /// The rules are in force, found by looking.
    pub enforced: bool,
    /// The version in force.
    pub enforced_version: Option<u64>,
    /// Ports that programs inside may reach.
    pub ports: Vec<u16>,
    /// Whether any port may be reached.
    pub open_ports: bool,
    /// Whether `connect` may be used.
    pub connect_allowed: bool,
    /// Why not.
    pub connect_reason: Option<String>,
    /// Ports never reached.
    pub forbidden_ports: Vec<u16>,
    /// When the rules were last set.
    pub updated_at: Timestamp,
}

/// `GET /v1/me`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    /// This node.
    pub org_id: String,
    /// Who asks.
    pub principal_id: String,
    /// With which key.
    pub credential_id: Option<String>,
    /// The contract's version.
    pub api_version: String,
    /// For people.
    pub org_name: String,
    /// What may be done.
    pub role: String,
}

/// `GET /v1/limits`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Limits {
    /// Always `full` here.
    pub access: String,
    /// Spending.
    pub daily: DailyLimit,
    /// Not here.
    pub trial: Option<String>,
    /// Counted limits.
    pub account: Vec<AccountLimit>,
    /// Not here.
    pub credit: Option<String>,
}

/// What the asking key may spend in 24 hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DailyLimit {
    /// `null`: as much as it likes.
    pub limit_micros: Option<u64>,
    /// What it has spent.
    pub used_micros: u64,
    /// `null`: as much as it likes.
    pub remaining_micros: Option<u64>,
    /// `24h`.
    pub window: String,
}

/// One counted limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AccountLimit {
    /// Its name.
    pub limit: String,
    /// For people.
    pub label: String,
    /// Of what.
    pub unit: String,
    /// How many there may be.
    pub max: u64,
    /// How many there are.
    pub used: u64,
}

/// `GET /v1/usage`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// This node.
    pub org_id: String,
    /// Of the money texts.
    pub unit: String,
    /// `"0"`.
    pub credited: String,
    /// What all has cost since this node was set up.
    pub spent: String,
    /// `"0"`.
    pub held: String,
    /// `"0"`.
    pub expired: String,
    /// `"0"`.
    pub available: String,
    /// `"0"`.
    pub taken_back: String,
    /// Each sandbox and snapshot.
    pub resources: Vec<UsageResource>,
}

/// What one sandbox has used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageResource {
    /// The sandbox.
    pub resource_id: String,
    /// Its name.
    pub name: Option<String>,
    /// `sandbox` or `snapshot`.
    pub kind: String,
    /// Its state.
    pub state: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// Its processors.
    pub vcpu: u32,
    /// Its memory.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    /// Seconds it ran.
    pub running_seconds: f64,
    /// Seconds of CPU time.
    pub active_cpu_seconds: f64,
    /// Memory it had reserved, times seconds it ran.
    #[serde(rename = "memoryGiBSeconds")]
    pub memory_gib_seconds: f64,
    /// Of a snapshot: bytes that it alone keeps, once they are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// Microdollars: `compute.cpu` for an hour of a processor, `compute.memory` and `storage.stored` for a GiB for an hour.
    pub rates: BTreeMap<String, u64>,
    /// What it has cost.
    pub charged_micros: u64,
    /// Zero.
    pub held_micros: u64,
}
