//! The interpreter: contexts, cells, and what comes of them.

use crate::fields::{Fields, Issues};
use crate::rules;
use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Longest cell.
const CODE_BYTES_MAX: usize = 512 * 1024;
/// Time limit of a cell when the request does not say.
const TIMEOUT_MS_DEFAULT: u64 = 60_000;
/// Longest time limit of a cell; 0 is none.
const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// Longest id of a context.
const ID_BYTES_MAX: usize = 64;

/// `POST /v1/sandboxes/{id}/interpreter:run`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct RunRequest {
    pub code: String,
    pub language: Option<String>,
    pub context: Option<String>,
    /// 0 is no limit.
    pub timeout_ms: u64,
    pub interrupt_on_disconnect: bool,
    pub stream: bool,
}

impl RunRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("code");
        let request = Self {
            code: f.text("code").unwrap_or_default(),
            language: f.text("language"),
            context: f.text("context"),
            timeout_ms: f.number("timeoutMs", 0..=TIMEOUT_MS_MAX).unwrap_or(TIMEOUT_MS_DEFAULT),
            interrupt_on_disconnect: f.truth("interruptOnDisconnect").unwrap_or(false),
            stream: f.truth("stream").unwrap_or(false),
        };
        f.refine("code", || json!({ "maxLength": CODE_BYTES_MAX }));
        if request.code.len() > CODE_BYTES_MAX {
            f.issue("code", format!("at most {CODE_BYTES_MAX} bytes"));
        }
        request
    }
}

/// `POST /v1/sandboxes/{id}/interpreter/contexts`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ContextRequest {
    pub id: Option<String>,
    pub language: Option<String>,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
}

impl ContextRequest {
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
            id: f.text("id"),
            language: f.text("language"),
            cwd: rules::directory(f, "cwd"),
            env: f.text_map("env").unwrap_or_default(),
        };
        rules::check(f, None, None, Some(&request.env));
        f.refine("id", || json!({ "pattern": format!("^[a-z0-9][a-z0-9-]{{0,{}}}$", ID_BYTES_MAX - 1) }));
        if request.id.as_ref().is_some_and(|id| !is_id(id)) {
            f.issue("id", format!("must be 1 to {ID_BYTES_MAX} of a-z, 0-9 and `-`, the first no `-`"));
        }
        request
    }
}

/// Whether a text can be the id of a context or a watch.
pub(crate) fn is_id(id: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let first = id.bytes().next().is_some_and(fine);
    first && id.len() <= ID_BYTES_MAX && id.bytes().all(|byte| fine(byte) || byte == b'-')
}

/// A context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ContextInfo {
    pub id: String,
    pub language: String,
    pub cwd: String,
    pub created_at: Timestamp,
}

/// The answer to an interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Interrupted {
    /// A cell was running.
    pub interrupted: bool,
}

/// The answer to the end of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeletedContext {
    /// It was there.
    pub deleted: bool,
}

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CellStatus {
    /// As it should.
    Ok,
    /// With an error of its own.
    Error,
    /// Somebody stopped it.
    Interrupted,
    /// Its time was up.
    Timeout,
    /// Its context ended under it.
    Lost,
}

/// Something that a cell has to show.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellResult {
    /// The value of the cell's last expression.
    pub main: bool,
    /// By media type; bytes as base64.
    pub data: Map<String, Value>,
    /// Files that hold what is too large to travel; there are none.
    pub refs: Vec<Value>,
}

/// Why a cell failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CellError {
    /// The error's type.
    pub name: String,
    /// Its message.
    pub value: String,
    /// Where it came from, a line each.
    pub traceback: Vec<String>,
}

/// What came of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct Execution {
    pub id: String,
    pub context_id: String,
    pub language: String,
    pub execution_count: u64,
    pub status: CellStatus,
    pub stdout: String,
    pub stderr: String,
    pub results: Vec<CellResult>,
    pub error: Option<CellError>,
    /// What was more than is kept: `stdout`, `stderr`, `results`.
    pub overflow: Vec<String>,
    pub duration_ms: u64,
    pub context_started: bool,
    pub lost_bytes: u64,
}

/// A line of a cell's stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "k", rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub enum CellEvent {
    #[serde(rename_all = "camelCase")]
    Start {
        id: String,
        context_id: String,
    },
    Stdout {
        text: String,
    },
    Stderr {
        text: String,
    },
    Result(CellResult),
    Error(CellError),
    Execution {
        execution: Box<Execution>,
    },
    Failure {
        code: String,
        message: String,
        status: u16,
        hint: Option<String>,
    },
}
