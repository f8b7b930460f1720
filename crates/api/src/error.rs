//! The error envelope.

use crate::fields::Issues;
use branchbox_model::{Code, Coded, Retry};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What every failed request is answered with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorBody {
    /// The failure.
    pub error: ErrorInfo,
}

/// A failure, as a client sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorInfo {
    /// The stable code; text, so that a client understands newer servers.
    pub code: String,
    /// The HTTP status.
    #[serde(default)]
    pub status: u16,
    /// What failed.
    pub message: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The objects it is about.
    #[serde(default)]
    pub details: Map<String, Value>,
    /// The request, for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// When to try again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Whether the same request may succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryable: Option<bool>,
}

/// When a client should come back after an error that passes by itself.
const RETRY_AFTER_MS: u64 = 1000;

impl ErrorInfo {
    /// An error with this code.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            code: code.as_str().to_owned(),
            status: code.status(),
            message: message.into(),
            hint: Some(hint.into()),
            details: Map::new(),
            request_id: None,
            retry_after_ms: None,
            retryable: Some(false),
        }
    }

    /// The wire form of any error of ours: its message with its causes, its code, hint and details.
    #[must_use]
    pub fn of(error: &dyn Coded) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(source) = cause {
            message.push_str(": ");
            message.push_str(&source.to_string());
            cause = source.source();
        }
        let mut info = Self::new(error.code(), message, "");
        info.hint = error.hint();
        info.details = error.details().into_iter().map(|(k, v)| (k.to_owned(), Value::String(v))).collect();
        if error.retry() == Retry::Retry {
            // Clients wait for room by the code alone, where waiting is right: for a create, and not for a fork.
            info.retryable = (error.code() != Code::NoCapacity).then_some(true);
            info.retry_after_ms = Some(RETRY_AFTER_MS);
        }
        info
    }

    /// A request with fields that cannot be accepted.
    #[must_use]
    pub fn of_issues(issues: &Issues) -> Self {
        let mut info = Self::new(
            Code::InvalidRequest,
            issues.to_string(),
            "correct the fields named in details.issues and send the request again",
        );
        info.details.insert("issues".into(), json!(issues.0));
        info
    }

    /// Its code, if this version knows it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| code.as_str() == self.code)
    }
}
