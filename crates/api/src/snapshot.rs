//! Snapshots.

use crate::fields::{Fields, Issues};
use crate::misc::{Note, Timings};
use crate::rules;
use branchbox_model::{SnapshotMode, SnapshotState, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Days a snapshot can be kept.
pub(crate) const RETENTION_DAYS: std::ops::RangeInclusive<u32> = 1..=365;

/// `POST /v1/sandboxes/{id}:snapshot`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct SnapshotRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention_days: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<SnapshotMode>,
    /// Who pays: the asking key's id. Nobody says it in a request.
    #[serde(skip)]
    pub account: Option<String>,
}

impl SnapshotRequest {
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
            name: f.text("name"),
            labels: f.text_map("labels"),
            retention_days: f.small_number("retentionDays", RETENTION_DAYS),
            mode: f.word("mode", &[("memory", SnapshotMode::Memory), ("disk", SnapshotMode::Disk)]),
            account: None,
        };
        rules::check(f, request.name.as_deref(), request.labels.as_ref(), None);
        request
    }
}

/// `POST /v1/snapshots/{id}:update`; what is left out stays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct UpdateSnapshotRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub if_labels: Option<BTreeMap<String, String>>,
}

impl UpdateSnapshotRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let request =
            Self { name: f.nullable_text("name"), labels: f.text_map("labels"), if_labels: f.text_map("ifLabels") };
        rules::check(f, request.name.as_ref().and_then(Option::as_deref), request.labels.as_ref(), None);
        request
    }
}

/// `POST /v1/snapshots/{id}:extend`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtendSnapshotRequest {
    /// Days from its creation.
    pub retention_days: u32,
}

impl ExtendSnapshotRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("retentionDays");
        let days = f.small_number("retentionDays", RETENTION_DAYS).unwrap_or(1);
        Self { retention_days: days }
    }
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct SnapshotInfo {
    pub id: String,
    pub kind: String,
    pub mode: SnapshotMode,
    pub status: String,
    pub state: SnapshotState,
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub source_sandbox_id: String,
    pub shape: Shape,
    pub retention_days: Option<u32>,
    pub stored_bytes: Option<u64>,
    pub metered_bytes: Option<u64>,
    pub backed_up: bool,
    pub compression_pending: bool,
    pub durability: Durability,
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub ready_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The sizes of the sandbox it was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct Shape {
    pub vcpu: u32,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    #[serde(rename = "diskMiB")]
    pub disk_mib: u32,
    pub memory_guarantee: String,
}

/// Whether a snapshot survives the loss of its node: until copies off the node exist, the state is `none`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct Durability {
    pub state: String,
    pub durable_at: Option<Timestamp>,
    pub stored_bytes: Option<u64>,
}
