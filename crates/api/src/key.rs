//! Keys: who may ask a node.

use crate::fields::{Fields, Issues};
use crate::rules;
use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /v1/keys`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyRequest {
    /// What it is for; unique.
    pub name: String,
    /// Microdollars that it may spend in 24 hours; what the node's settings say without.
    #[serde(rename = "dailyLimitMicros", skip_serializing_if = "Option::is_none")]
    pub daily_limit_micros: Option<u64>,
    /// Sandboxes that it may have at once, stopped ones not counted; what the node's settings say without.
    #[serde(rename = "maxSandboxes", skip_serializing_if = "Option::is_none")]
    pub max_sandboxes: Option<u32>,
}

/// Ten thousand dollars a day.
pub const DAILY_MICROS_MAX: u64 = 10_000_000_000;
/// More than any node has.
const SANDBOXES_MAX: u32 = 1_000_000;

impl KeyRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("name");
        let name = f.text("name");
        rules::check(f, name.as_deref(), None, None);
        Self {
            name: name.unwrap_or_default(),
            daily_limit_micros: f.number("dailyLimitMicros", 0..=DAILY_MICROS_MAX),
            max_sandboxes: f.small_number("maxSandboxes", 1..=SANDBOXES_MAX),
        }
    }
}

/// A key, without itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyInfo {
    /// Its id; no secret.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    pub used_at: Option<Timestamp>,
    /// What it may spend in 24 hours, if that was said when it was made.
    #[serde(default)]
    pub daily_limit_micros: Option<u64>,
    /// How many sandboxes it may have at once, if that was said when it was made.
    #[serde(default)]
    pub max_sandboxes: Option<u32>,
    /// The key itself, in the answer to its making and never again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
