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
}

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
        Self { name: name.unwrap_or_default() }
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
    /// The key itself, in the answer to its making and never again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}
