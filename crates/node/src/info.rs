//! From records to what clients see.

use crate::node::Inner;
use branchbox_api::image::HOST;
use branchbox_api::{Durability, NetworkRules, Note, OnTimeout, SandboxInfo, Shape, SnapshotInfo};
use branchbox_catalog::{SandboxRecord, SnapshotRecord};
use branchbox_model::{SandboxState, SnapshotState, Timestamp};
use branchbox_protocol::keeper;
use serde_json::Value;
use std::time::Duration;

/// Idle time when a request does not say.
pub(crate) const IDLE_SECONDS_DEFAULT: u32 = 300;
const IDLE_SECONDS_MIN: u32 = 60;
const DAY_SECONDS: u64 = 86_400;
/// Most notes in one answer; the rest is counted.
const NOTES_MAX: usize = 50;

/// Keys of the settings that are kept as they were asked for.
pub(crate) mod settings {
    pub(crate) const AUTO_WAKE: &str = "autoWake";
    pub(crate) const PERSISTENT: &str = "persistent";
    pub(crate) const CPU_FLOOR: &str = "cpuFloorMillis";
    pub(crate) const TIMEOUT: &str = "timeoutSeconds";
    pub(crate) const ENDS_AT: &str = "endsAtMs";
    pub(crate) const ON_TIMEOUT: &str = "onTimeout";
    pub(crate) const IDLE: &str = "idlePauseSeconds";
    pub(crate) const IMAGE: &str = "image";
    /// Who pays: see [`crate::money`].
    pub(crate) const ACCOUNT: &str = "account";
    pub(crate) const RETENTION: &str = "pausedRetentionDays";
}

impl Inner {
    /// A sandbox as clients see it.
    pub(crate) fn shown(&self, record: &SandboxRecord) -> SandboxInfo {
        SandboxInfo { charged_micros: self.charged.micros(record.id.as_str()), ..sandbox(record) }
    }
}

fn status(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Starting | SandboxState::Resuming => "pending",
        SandboxState::Running => "active",
        SandboxState::Pausing | SandboxState::Paused => "paused",
        SandboxState::Stopping => "stopping",
        SandboxState::Stopped => "stopped",
    }
}

/// When a sandbox's time limit ends, if it has one.
pub(crate) fn ends_at(record: &SandboxRecord) -> Option<Timestamp> {
    record.detail.settings.get(settings::ENDS_AT).and_then(Value::as_i64).map(Timestamp)
}

pub(crate) fn on_timeout(record: &SandboxRecord) -> OnTimeout {
    let word = record.detail.settings.get(settings::ON_TIMEOUT).cloned();
    word.and_then(|word| serde_json::from_value(word).ok()).unwrap_or(OnTimeout::Pause)
}

/// This many of the node's seconds later.
pub(crate) fn after(from: Timestamp, seconds: u64, second: Duration) -> Timestamp {
    let ms = u128::from(seconds).saturating_mul(second.as_micros()) / 1000;
    Timestamp(from.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)))
}

/// Whether a request wakes it.
pub(crate) fn auto_wake(record: &SandboxRecord) -> bool {
    record.detail.settings.get(settings::AUTO_WAKE).and_then(Value::as_bool).unwrap_or(true)
}

/// After how many seconds without use it is paused; `None` is never.
pub(crate) fn idle_seconds(record: &SandboxRecord) -> Option<u64> {
    let kept = &record.detail.settings;
    if kept.get(settings::PERSISTENT).and_then(Value::as_bool).unwrap_or(false) {
        return None;
    }
    let asked = kept.get(settings::IDLE).and_then(Value::as_u64);
    Some(asked.unwrap_or(u64::from(IDLE_SECONDS_DEFAULT))).filter(|seconds| *seconds > 0)
}

/// Shorter idle times than the shortest are raised to it; 0 is never.
pub(crate) fn idle_raised(seconds: u32) -> u32 {
    if seconds == 0 { 0 } else { seconds.max(IDLE_SECONDS_MIN) }
}

/// When a paused sandbox is kept no longer.
pub(crate) fn paused_expires(record: &SandboxRecord, second: Duration) -> Option<Timestamp> {
    let days = record.detail.settings.get(settings::RETENTION).and_then(Value::as_u64)?;
    record.detail.paused.map(|paused| after(paused, days.saturating_mul(DAY_SECONDS), second))
}

pub(crate) fn sandbox(record: &SandboxRecord) -> SandboxInfo {
    let detail = &record.detail;
    let truth = |key: &str, default| detail.settings.get(key).and_then(Value::as_bool).unwrap_or(default);
    let number = |key: &str| detail.settings.get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let text = |key: &str| detail.settings.get(key).and_then(Value::as_str).map(str::to_owned);
    let from_image = detail.snapshot.is_none() && detail.forked_from.is_none();
    SandboxInfo {
        id: record.id.to_string(),
        kind: "sandbox".into(),
        name: record.name.clone(),
        labels: record.labels.clone(),
        state: record.state,
        status: status(record.state).into(),
        region: "local".into(),
        funding: "paid".into(),
        vcpu: detail.limits.vcpus.0,
        memory_mib: detail.limits.memory.0,
        disk_mib: detail.limits.disk.0,
        cpu: "shared".into(),
        cpu_floor_millis: number(settings::CPU_FLOOR).unwrap_or(50),
        pausable: true,
        timeout_seconds: number(settings::TIMEOUT),
        ends_at: ends_at(record),
        expires_at: ends_at(record),
        on_timeout: on_timeout(record),
        on_lease_end: on_timeout(record),
        idle_pause_seconds: number(settings::IDLE).unwrap_or(IDLE_SECONDS_DEFAULT),
        auto_wake: auto_wake(record),
        persistent: truth(settings::PERSISTENT, false),
        user: detail.user,
        last_active_at: Some(detail.last_active),
        created_at: record.created,
        ready_at: detail.ready,
        ended_at: record.ended.or(detail.stopped),
        paused_at: detail.paused,
        paused_expires_at: paused_expires(record, Duration::from_secs(1)),
        stop_reason: detail.stop_reason,
        image: from_image.then(|| text(settings::IMAGE).unwrap_or_else(|| HOST.to_owned())),
        snapshot: detail.snapshot.as_ref().map(ToString::to_string),
        secrets: None,
        env_names: detail.env.keys().cloned().collect(),
        charged_micros: 0,
        held_micros: 0,
        memory_restored: detail.memory_restored,
        replayed: false,
        reused: false,
        timings: None,
        notes: Vec::new(),
        start: None,
    }
}

pub(crate) fn snapshot(record: &SnapshotRecord) -> SnapshotInfo {
    let detail = &record.detail;
    let ready = record.state == SnapshotState::Ready;
    SnapshotInfo {
        id: record.id.to_string(),
        kind: "snapshot".into(),
        mode: detail.mode,
        status: if ready { "active" } else { "pending" }.into(),
        state: record.state,
        name: record.name.clone(),
        labels: record.labels.clone(),
        source_sandbox_id: record.source.to_string(),
        shape: Shape {
            vcpu: detail.limits.vcpus.0,
            memory_mib: detail.limits.memory.0,
            disk_mib: detail.limits.disk.0,
            memory_guarantee: "shared".into(),
        },
        retention_days: detail.retention_days,
        stored_bytes: detail.stored_bytes,
        metered_bytes: detail.stored_bytes,
        backed_up: false,
        compression_pending: false,
        durability: Durability { state: "none".into(), durable_at: None, stored_bytes: None },
        error: detail.error.clone(),
        created_at: record.created,
        ready_at: detail.ready,
        expires_at: expires(record, Duration::from_secs(1)),
        timings: None,
        notes: Vec::new(),
    }
}

/// When a snapshot's retention ends.
pub(crate) fn expires(record: &SnapshotRecord, second: Duration) -> Option<Timestamp> {
    let days = record.detail.retention_days?;
    Some(after(record.created, u64::from(days).saturating_mul(DAY_SECONDS), second))
}

/// Rules of a node without a gateway: nothing leaves. `enforced` is what the keeper found by looking.
pub(crate) fn network(record: &SandboxRecord, enforced: bool) -> NetworkRules {
    let rules = &record.detail.rules;
    NetworkRules {
        sandbox_id: record.id.to_string(),
        internet: false,
        allow: Vec::new(),
        deny: Vec::new(),
        connect: Vec::new(),
        version: rules.version,
        enforced,
        enforced_version: enforced.then_some(rules.version),
        ports: Vec::new(),
        open_ports: false,
        connect_allowed: false,
        connect_reason: Some("this node has no gateway".into()),
        forbidden_ports: Vec::new(),
        updated_at: rules.updated,
    }
}

/// Notes of keepers, bounded with a truthful count.
pub(crate) fn notes(all: impl IntoIterator<Item = keeper::Note>) -> Vec<Note> {
    let mut notes: Vec<Note> =
        all.into_iter().map(|note| Note { kind: note.kind, pid: note.pid, detail: note.detail }).collect();
    if notes.len() > NOTES_MAX {
        let more = notes.len() - NOTES_MAX;
        notes.truncate(NOTES_MAX);
        notes.push(Note { kind: "more".into(), pid: None, detail: format!("and {more} more") });
    }
    notes
}
