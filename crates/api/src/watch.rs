//! Watches: what changes below a folder of a sandbox.

use crate::fields::{Fields, Issues};
use crate::interpreter::is_id;
use crate::rules;
use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Milliseconds that changes are gathered when nothing is said, and at most.
const BATCH_MS_DEFAULT: u64 = 100;
const BATCH_MS_MAX: u64 = 60_000;
/// How long a watch lasts when nothing is said; 0 is until it is stopped.
const TIMEOUT_MS_DEFAULT: u64 = 3_600_000;
const TIMEOUT_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// Folders of one watch when nothing is said, and at most.
const FOLDERS_DEFAULT: u32 = 8192;
const FOLDERS_MAX: u32 = 65_536;
/// Patterns of one kind, and their length.
const GLOBS_MAX: usize = 64;
const GLOB_CHARS_MAX: usize = 256;
/// Kinds of changes.
const KINDS: [&str; 5] = ["create", "write", "remove", "rename", "chmod"];

/// `POST …/files/watches`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's")]
pub struct WatchRequest {
    pub path: String,
    pub recursive: bool,
    pub events: Vec<String>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    pub batch_ms: u64,
    pub timeout_ms: u64,
    pub max_watches: u32,
    pub id: Option<String>,
    /// Changes were to be sent to webhooks.
    #[serde(skip)]
    pub webhook: bool,
}

impl WatchRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("path");
        let request = Self {
            path: rules::directory(f, "path").unwrap_or_default(),
            recursive: f.truth("recursive").unwrap_or(false),
            events: kinds(f),
            include: globs(f, "include"),
            exclude: globs(f, "exclude"),
            batch_ms: f.number("batchMs", 0..=BATCH_MS_MAX).unwrap_or(BATCH_MS_DEFAULT),
            timeout_ms: f.number("timeoutMs", 0..=TIMEOUT_MS_MAX).unwrap_or(TIMEOUT_MS_DEFAULT),
            max_watches: f.small_number("maxWatches", 1..=FOLDERS_MAX).unwrap_or(FOLDERS_DEFAULT),
            id: f.text("id"),
            webhook: f.truth("webhook").unwrap_or(false),
        };
        f.refine("id", || json!({ "pattern": "^[a-z0-9][a-z0-9-]{0,63}$" }));
        if request.id.as_ref().is_some_and(|id| !is_id(id)) {
            f.issue("id", "must be 1 to 64 of a-z, 0-9 and `-`, the first no `-`");
        }
        request
    }
}

fn kinds(f: &mut Fields) -> Vec<String> {
    let kinds = f.texts("events").unwrap_or_default();
    f.refine("events", || json!({ "items": { "type": "string", "enum": KINDS }, "maxItems": GLOBS_MAX }));
    if kinds.len() > GLOBS_MAX || !kinds.iter().all(|kind| KINDS.contains(&kind.as_str())) {
        f.issue("events", format!("each is one of {}", KINDS.join(", ")));
    }
    kinds
}

fn globs(f: &mut Fields, name: &str) -> Vec<String> {
    let globs = f.texts(name).unwrap_or_default();
    let pattern = "^[^\\u0000]+$";
    f.refine(name, || {
        let glob = json!({ "type": "string", "pattern": pattern, "maxLength": GLOB_CHARS_MAX });
        json!({ "items": glob, "maxItems": GLOBS_MAX })
    });
    let is_glob = |glob: &String| !glob.is_empty() && glob.chars().count() <= GLOB_CHARS_MAX && !glob.contains('\0');
    if globs.len() > GLOBS_MAX || !globs.iter().all(is_glob) {
        f.issue(name, format!("at most {GLOBS_MAX} patterns of 1 to {GLOB_CHARS_MAX} characters"));
    }
    globs
}

/// A watch that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct WatchInfo {
    pub id: String,
    pub path: String,
    pub recursive: bool,
    pub events: Vec<String>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    pub batch_ms: u64,
    pub timeout_ms: u64,
    pub max_watches: u32,
    /// Where a reader who has read nothing begins.
    pub cursor: u64,
    pub created_at: Timestamp,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileEvent {
    /// `create`, `write`, `remove`, `rename` or `chmod`.
    pub r#type: String,
    /// What changed; of a rename, its new path.
    pub path: String,
    /// Whether it is a folder.
    pub is_dir: bool,
    /// Of a rename: the path before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_path: Option<String>,
    /// How many changes are told as one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
}

/// Something of a watch, beside changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "k", rename_all = "lowercase")]
pub enum WatchNotice {
    /// More changed than is told: look for yourself.
    Overflow {
        /// So many changes, if they were counted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dropped: Option<u64>,
    },
    /// So many folders are watched, and no more can be.
    Limit {
        /// How many.
        folders: u64,
    },
    /// It has ended.
    End {
        /// `timeout`, `root-removed`, `stopped` or `exited`.
        reason: String,
    },
}

/// `GET …/files/watches/{watch}/events`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchPage {
    /// In their order.
    pub events: Vec<FileEvent>,
    /// What else there is to say.
    pub notices: Vec<WatchNotice>,
    /// Where to go on.
    pub next_cursor: u64,
    /// Bytes of events that nobody read in time, and that are gone.
    pub lost_bytes: u64,
    /// Whether no more will come.
    pub ended: bool,
    /// The sandbox is paused; reading does not wake it.
    pub paused: bool,
}

/// One line of a watch that is followed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "k", rename_all = "lowercase")]
#[expect(missing_docs, reason = "the lines are the wire contract's, explained there")]
pub enum WatchLine {
    Events {
        events: Vec<FileEvent>,
        cursor: u64,
    },
    Overflow {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dropped: Option<u64>,
    },
    Limit {
        folders: u64,
    },
    Lost {
        bytes: u64,
    },
    Continue {
        cursor: u64,
    },
    Paused {
        cursor: u64,
    },
    End {
        reason: String,
        cursor: u64,
    },
    Failure {
        code: String,
        message: String,
        status: u16,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hint: Option<String>,
    },
}

/// The answer to stopping a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoppedWatch {
    /// Whether it ran until now.
    pub stopped: bool,
}
