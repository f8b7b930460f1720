//! Files.

use crate::fields::{Fields, Issues};
use crate::rules::{PATH_BYTES_MAX, path_schema};
use branchbox_model::{Timestamp, User};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Largest upload; a sandbox's disk is smaller.
const UPLOAD_BYTES_MAX: u64 = 1 << 44;

/// What kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the words are the wire contract's, explained there")]
pub enum FileEntryType {
    File,
    Directory,
    Symlink,
    Other,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct FileEntry {
    pub name: String,
    pub path: String,
    #[serde(rename = "type")]
    pub kind: FileEntryType,
    pub size: u64,
    pub mode: String,
    pub modified_at: Timestamp,
    pub mtime_ms: i64,
    pub uid: u32,
    pub gid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// Only in the answer to a stat.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exists: bool,
}

/// Entries of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileList {
    /// The entries.
    pub data: Vec<FileEntry>,
    /// There are more.
    pub truncated: bool,
}

/// The answer to a stat of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileStat {
    /// Always false.
    pub exists: bool,
}

/// The answer to a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileWritten {
    /// Where it is.
    pub path: String,
    /// Its bytes.
    pub size: usize,
    /// Its mode, in octal.
    pub mode: String,
}

/// The answer to a remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Removed {
    /// There was something.
    pub removed: bool,
}

/// The bodies of the file verbs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub enum FileRequest {
    Mkdir { path: String, parents: bool },
    Remove { path: String, recursive: bool },
    Rename { from: String, to: String, overwrite: bool },
    Chmod { path: String, mode: u32 },
}

impl FileRequest {
    /// The verbs.
    pub const VERBS: &[&str] = &["mkdir", "remove", "rename", "chmod"];

    /// Reads the body of `files:<verb>`; `None` for no such verb.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(verb: &str, body: &[u8]) -> Option<Result<Self, Issues>> {
        Self::VERBS.contains(&verb).then(|| Fields::read(body, |f| Self::read(verb, f)))
    }

    /// Takes the fields of a verb, one of [`Self::VERBS`].
    pub fn read(verb: &str, f: &mut Fields) -> Self {
        match verb {
            "mkdir" => Self::Mkdir { path: path(f, "path"), parents: f.truth("parents").unwrap_or(false) },
            "remove" => Self::Remove { path: path(f, "path"), recursive: f.truth("recursive").unwrap_or(false) },
            "rename" => {
                let (from, to) = (path(f, "from"), path(f, "to"));
                Self::Rename { from, to, overwrite: f.truth("overwrite").unwrap_or(false) }
            }
            _ => {
                f.required("mode");
                Self::Chmod { path: path(f, "path"), mode: mode(f).unwrap_or(0) }
            }
        }
    }

    /// Checks a path of a query.
    ///
    /// # Errors
    /// When it cannot be accepted.
    pub fn check_path(path: &str) -> Result<(), Issues> {
        match path_problem(path) {
            None => Ok(()),
            Some(problem) => Err(Issues::one("path", problem)),
        }
    }
}

/// `POST /v1/sandboxes/{id}/uploads`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct UploadRequest {
    pub path: String,
    pub size: u64,
    pub sha256: String,
    pub mode: Option<u32>,
}

impl UploadRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("size");
        let request = Self {
            path: path(f, "path"),
            size: f.number("size", 0..=UPLOAD_BYTES_MAX).unwrap_or(0),
            sha256: f.required_text("sha256").to_ascii_lowercase(),
            mode: mode(f),
        };
        f.refine("sha256", || json!({ "pattern": "^[0-9A-Fa-f]{64}$" }));
        if request.sha256.len() != 64 || !request.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            f.issue("sha256", "must be 64 hexadecimal digits");
        }
        request
    }
}

/// The answer to a begun upload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct UploadBegun {
    pub upload_id: String,
    pub chunk_bytes: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
}

/// `POST /v1/sandboxes/{id}/files/archive/uploads`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ArchiveUploadRequest {
    pub path: String,
    pub gzip: bool,
    pub user: User,
}

impl ArchiveUploadRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        Self {
            path: path(f, "path"),
            gzip: f.truth("gzip").unwrap_or(true),
            user: f.word("user", crate::sandbox::USERS).unwrap_or_default(),
        }
    }
}

/// The answer to a begun archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ArchiveBegun {
    pub upload_id: String,
    pub chunk_bytes: u32,
}

fn path(f: &mut Fields, name: &str) -> String {
    f.required(name);
    let path = f.text(name);
    f.refine(name, path_schema);
    if let Some(problem) = path.as_deref().and_then(path_problem) {
        f.issue(name, problem);
    }
    path.unwrap_or_default()
}

/// `..` is refused instead of resolved: a caller that builds paths from parts never means it.
fn path_problem(path: &str) -> Option<String> {
    if !path.starts_with('/') || path.len() > PATH_BYTES_MAX || path.contains('\0') {
        return Some(format!("must be an absolute path of at most {PATH_BYTES_MAX} bytes"));
    }
    path.split('/').any(|part| part == "..").then(|| "must not contain `..`".to_owned())
}

fn mode(f: &mut Fields) -> Option<u32> {
    let text = f.text("mode");
    f.refine("mode", mode_schema);
    let text = text?;
    let mode = parse_mode(&text);
    if mode.is_none() {
        f.issue("mode", "must be an octal number such as `755`");
    }
    mode
}

/// What [`parse_mode`] accepts.
#[must_use]
pub fn mode_schema() -> Value {
    json!({ "type": "string", "pattern": "^(?:[0-7]{1,4}|0[0-7]{4})$", "description": "Permission bits in octal." })
}

/// Permission bits from octal text; `None` above 7777 or for anything else.
#[must_use]
pub fn parse_mode(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.len() <= 5 && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_dots_or_without_slash_are_refused() {
        for bad in ["a", "/a/../b", "", "/a\0", "/.."] {
            assert!(FileRequest::check_path(bad).is_err(), "{bad:?}");
        }
        assert!(FileRequest::check_path("/a/..b/c...").is_ok());
        let rename = FileRequest::parse("rename", br#"{"from":"/a","to":"/b/../c"}"#).expect("a verb");
        assert_eq!(rename.expect_err("dots").0[0].path, "to");
        assert!(FileRequest::parse("mkdir", br#"{"path":""}"#).expect("a verb").is_err());
        assert!(FileRequest::parse("link", b"{}").is_none());
    }

    #[test]
    fn modes_are_octal() {
        assert_eq!(parse_mode("755"), Some(0o755));
        assert_eq!(parse_mode("0644"), Some(0o644));
        for bad in ["", "8", "-1", "+7", "17777", "rwx"] {
            assert_eq!(parse_mode(bad), None, "{bad}");
        }
    }
}
