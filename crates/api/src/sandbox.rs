//! Sandboxes: create, read, update, fork.

use crate::fields::{Fields, Issues};
use crate::misc::{NetworkRequest, Note, Timings};
use crate::rules;
use crate::snapshot::SnapshotInfo;
use branchbox_model::{SandboxState, StopReason, Timestamp, User};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Smallest and largest time limit in seconds.
const TIMEOUT_SECONDS: std::ops::RangeInclusive<u32> = 60..=86_400;
/// Largest idle time in seconds.
const IDLE_SECONDS_MAX: u32 = 86_400;
/// Most copies one fork may be asked for.
pub(crate) const FORK_COUNT_MAX: u32 = 100;

/// The words for a default user.
pub(crate) const USERS: &[(&str, User)] = &[("sandbox", User::Sandbox), ("root", User::Root)];
const ON_TIMEOUT: &[(&str, OnTimeout)] =
    &[("pause", OnTimeout::Pause), ("stop", OnTimeout::Stop), ("delete", OnTimeout::Delete)];

/// What happens when a time limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// Memory is kept, nothing runs.
    Pause,
    /// Memory is dropped, the disk kept.
    Stop,
    /// All of it goes.
    Delete,
}

/// `POST /v1/sandboxes`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct CreateRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub get_or_create: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vcpu: Option<u32>,
    #[serde(rename = "memoryMiB", skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    #[serde(rename = "diskMiB", skip_serializing_if = "Option::is_none")]
    pub disk_mib: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_floor_millis: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_lease_end: Option<OnTimeout>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_pause_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_wake: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkRequest>,
    /// Fields of things this node does not have, such as volumes, that ask for something.
    #[serde(skip)]
    pub wants_unavailable: Option<&'static str>,
    /// Who pays: the asking key's id. Nobody says it in a request.
    #[serde(skip)]
    pub account: Option<String>,
}

impl CreateRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.not_both("snapshot", "image");
        f.true_needs("getOrCreate", "name");
        let request = Self {
            name: f.text("name"),
            labels: f.text_map("labels"),
            get_or_create: f.truth("getOrCreate").unwrap_or(false),
            snapshot: f.text("snapshot"),
            image: f.text("image"),
            vcpu: f.small_number("vcpu", 1..=16),
            memory_mib: f.small_number("memoryMiB", 128..=65_536),
            disk_mib: f.small_number("diskMiB", 64..=16_777_216),
            cpu_floor_millis: f.small_number("cpuFloorMillis", 0..=16_000),
            timeout_seconds: f.small_number("timeoutSeconds", TIMEOUT_SECONDS),
            on_lease_end: f.word("onLeaseEnd", ON_TIMEOUT),
            idle_pause_seconds: f.small_number("idlePauseSeconds", 0..=IDLE_SECONDS_MAX),
            auto_wake: f.truth("autoWake"),
            persistent: f.truth("persistent"),
            user: f.word("user", USERS),
            env: f.text_map("env"),
            network: f.object("network", NetworkRequest::read),
            wants_unavailable: unavailable(f),
            account: None,
        };
        accepted_and_ignored(f);
        rules::check(f, request.name.as_deref(), request.labels.as_ref(), request.env.as_ref());
        request
    }
}

/// Names the first field that asks for something this node does not have.
fn unavailable(f: &mut Fields) -> Option<&'static str> {
    let mut wanted = None;
    if f.texts("secrets").is_some_and(|names| !names.is_empty()) {
        wanted = Some("secrets");
    }
    if f.value("volumes").is_some_and(|v| v.as_array().is_none_or(|list| !list.is_empty())) {
        wanted = Some("volumes");
    }
    if f.value("tailscale").is_some() {
        wanted = Some("tailscale");
    }
    if f.word("cpu", &[("shared", false), ("reserved", true)]) == Some(true) {
        wanted = Some("cpu");
    }
    wanted
}

/// Fields that mean something only where sandboxes cost money or are placed on many machines.
fn accepted_and_ignored(f: &mut Fields) {
    f.truth("pausable");
    f.texts("spreadFrom");
    f.number("maxCostMicros", 0..=u64::MAX);
    f.number("maxTotalCostMicros", 0..=u64::MAX);
    f.text("funding");
    f.word("region", &[("local", ())]);
}

/// `POST /v1/sandboxes/{id}:update`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct UpdateRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// A null takes the variable away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<BTreeMap<String, Option<String>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_wake: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_pause_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// 0 takes the limit away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

impl UpdateRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let request = Self {
            name: f.nullable_text("name"),
            labels: f.text_map("labels"),
            env: f.nullable_map("env"),
            auto_wake: f.truth("autoWake"),
            user: f.word("user", USERS),
            idle_pause_seconds: f.small_number("idlePauseSeconds", 0..=IDLE_SECONDS_MAX),
            persistent: f.truth("persistent"),
            timeout_seconds: f.small_number("timeoutSeconds", 0..=*TIMEOUT_SECONDS.end()),
            on_timeout: f.word("onTimeout", ON_TIMEOUT),
        };
        f.number("maxTotalCostMicros", 0..=u64::MAX);
        f.refine("timeoutSeconds", || {
            let range = json!({ "minimum": TIMEOUT_SECONDS.start(), "maximum": TIMEOUT_SECONDS.end() });
            json!({ "anyOf": [{ "const": 0 }, range] })
        });
        if request.timeout_seconds.is_some_and(|s| s > 0 && !TIMEOUT_SECONDS.contains(&s)) {
            f.issue("timeoutSeconds", "must be 0 or a whole number from 60 to 86400");
        }
        // A variable that is taken away has a name too.
        let env = request.env.iter().flatten().map(|(name, value)| (name.clone(), value.clone().unwrap_or_default()));
        let name = request.name.as_ref().and_then(Option::as_deref);
        rules::check(f, name, request.labels.as_ref(), Some(&env.collect()));
        f.refine("env", || json!({ "additionalProperties": { "type": ["string", "null"], "pattern": rules::NO_NUL } }));
        request
    }
}

/// `POST /v1/sandboxes/{id}:wake`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WakeRequest {
    /// A new time limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
}

impl WakeRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        Self { timeout_seconds: f.small_number("timeoutSeconds", TIMEOUT_SECONDS) }
    }
}

/// `POST /v1/sandboxes/{id}:extend`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ExtendRequest {
    /// Seconds more, at most a day.
    pub seconds: u32,
}

impl ExtendRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("seconds");
        let seconds = f.small_number("seconds", 1..=*TIMEOUT_SECONDS.end()).unwrap_or(1);
        Self { seconds }
    }
}

/// `POST /v1/sandboxes/{id}:retention`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RetentionRequest {
    /// Days that a paused sandbox is kept; null is for ever.
    pub days: Option<u32>,
}

impl RetentionRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let days = f.small_number("days", crate::snapshot::RETENTION_DAYS);
        Self { days }
    }
}

/// `POST /v1/sandboxes/{id}:fork`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ForkRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_snapshot: bool,
    /// Who pays: the asking key's id. Nobody says it in a request.
    #[serde(skip)]
    pub account: Option<String>,
}

impl ForkRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let request = Self {
            count: f.small_number("count", 1..=FORK_COUNT_MAX),
            name: f.text("name"),
            labels: f.text_map("labels"),
            keep_snapshot: f.truth("keepSnapshot").unwrap_or(false),
            account: None,
        };
        // No sandbox has secrets yet, and any list only narrows.
        f.texts("secrets");
        f.text("funding");
        rules::check(f, request.name.as_deref(), request.labels.as_ref(), None);
        request
    }
}

/// The answer to a fork.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ForkAnswer {
    /// The copies, running.
    pub sandboxes: Vec<SandboxInfo>,
    /// The kept snapshot, if it was asked for.
    pub snapshot: Option<SnapshotInfo>,
    /// Where the time went.
    #[serde(default)]
    pub timings: Timings,
    /// What programs in the copies could notice.
    #[serde(default)]
    pub notes: Vec<Note>,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct SandboxInfo {
    pub id: String,
    pub kind: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub state: SandboxState,
    pub status: String,
    pub region: String,
    pub funding: String,
    pub vcpu: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    #[serde(rename = "diskMiB")]
    pub disk_mib: u32,
    pub cpu: String,
    pub cpu_floor_millis: u32,
    pub pausable: bool,
    pub timeout_seconds: Option<u32>,
    pub ends_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub on_timeout: OnTimeout,
    pub on_lease_end: OnTimeout,
    pub idle_pause_seconds: u32,
    pub auto_wake: bool,
    pub persistent: bool,
    pub user: User,
    pub last_active_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub ready_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub paused_at: Option<Timestamp>,
    pub paused_expires_at: Option<Timestamp>,
    pub stop_reason: Option<StopReason>,
    pub image: Option<String>,
    pub snapshot: Option<String>,
    pub secrets: Option<Vec<String>>,
    pub env_names: Vec<String>,
    pub charged_micros: u64,
    pub held_micros: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_restored: Option<bool>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reused: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// On a create from an image that runs something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Started>,
}

/// Where what an image runs has got to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartState {
    /// It runs, and does not say when it is ready.
    Started,
    /// It runs and is ready.
    Ready,
    /// It runs and was not ready in time.
    Timeout,
    /// It ended before it was ready.
    Exited,
    /// It could not be started.
    NotRunning,
}

/// What became of what an image runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct Started {
    pub state: StartState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_ms: Option<u64>,
}

/// The answer to a delete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct DeletedSandbox {
    pub id: String,
    pub kind: String,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub status: String,
    pub state: SandboxState,
    pub deleted_at: Timestamp,
    pub ended_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(body: &str) -> Vec<String> {
        CreateRequest::parse(body.as_bytes()).expect_err(body).0.into_iter().map(|issue| issue.path).collect()
    }

    #[test]
    fn bad_creates_name_their_fields() {
        assert_eq!(paths(r#"{"snapshot":"a","image":"b"}"#), ["snapshot"]);
        assert_eq!(paths(r#"{"name":"a\nb","vcpu":0,"nope":1}"#), ["vcpu", "name", "nope"]);
        assert_eq!(paths(r#"{"memoryMiB":1.5,"diskMiB":"big","env":{"1A":"x"}}"#), ["memoryMiB", "diskMiB", "env"]);
        assert_eq!(paths(r#"{"network":{"allow":["x"],"who":1}}"#), ["network.internet", "network.who"]);
        assert_eq!(paths(r#"{"getOrCreate":true}"#), ["getOrCreate"]);
        assert_eq!(paths(r#"{"region":"mars"}"#), ["region"]);
    }

    #[test]
    fn good_creates_are_read() {
        let request =
            CreateRequest::parse(br#"{"labels":{"a":"b"},"secrets":[],"volumes":[],"cpu":"shared"}"#).expect("good");
        assert_eq!(request.labels.map(|labels| labels.len()), Some(1));
        assert_eq!(request.wants_unavailable, None);
        let request = CreateRequest::parse(br#"{"volumes":[{"volumeId":"x"}]}"#).expect("form is good");
        assert_eq!(request.wants_unavailable, Some("volumes"));
    }

    #[test]
    fn written_requests_are_read_back() {
        let request = ForkRequest { count: Some(3), name: Some("a".into()), ..ForkRequest::default() };
        let text = serde_json::to_vec(&request).expect("json");
        assert_eq!(ForkRequest::parse(&text), Ok(request));
    }
}
