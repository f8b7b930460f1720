//! Images: what sandboxes start from.

use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where an image is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the words are the wire contract's, explained there")]
pub enum ImageState {
    Queued,
    Building,
    Ready,
    Failed,
    Deleting,
    Deleted,
}

/// Where an image comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageSource {
    /// `host`: this machine's own files.
    pub kind: String,
    /// What exactly they were.
    pub identity: String,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ImageInfo {
    pub id: String,
    pub kind: String,
    pub state: ImageState,
    pub name: Option<String>,
    pub version: u32,
    pub tags: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub size_bytes: Option<u64>,
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub ready_at: Option<Timestamp>,
    pub env: BTreeMap<String, String>,
    pub workdir: String,
    pub source: ImageSource,
}
