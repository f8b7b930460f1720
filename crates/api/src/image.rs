//! Images: what sandboxes start from.

use crate::fields::{Fields, Issues};
use crate::rules;
use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// Chunks of one archive.
pub const CHUNKS_MAX: usize = 20_000;
/// Bytes of one chunk.
pub const CHUNK_BYTES_MAX: usize = 8 << 20;
/// Bytes of one archive.
pub const ARCHIVE_BYTES_MAX: u64 = 32 << 30;
/// Files of a build that come in the request itself, or are listed for a context.
pub const FILES_MAX: usize = 20_000;
/// Characters of a name, a tag, a reference.
const NAME_CHARS_MAX: usize = 128;
const REFERENCE_CHARS_MAX: usize = 512;
const TAGS_MAX: usize = 64;
const WORDS_MAX: usize = 1024;
/// Characters of a Dockerfile or a command; at most four bytes each.
const TEXT_CHARS_MAX: usize = 1 << 18;
/// Seconds that a build may take, and takes at most when nothing is said.
const BUILD_SECONDS: std::ops::RangeInclusive<u32> = 10..=86_400;
/// The image that is always there, and the tag that a name without one stands for.
pub const HOST: &str = "host";
/// See [`HOST`].
pub const LATEST: &str = "latest";

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
    /// `host`, `archive`, `image`, `dockerfile` or `recipe`.
    pub kind: String,
    /// What exactly its files are; empty until it is ready.
    pub identity: String,
    /// What it was pulled as, or was given a base as.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
}

/// What a sandbox from an image runs at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageStart {
    /// For a shell, or the words of it.
    pub command: StartCommand,
    /// Ready when this port answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_port: Option<u16>,
    /// Ready when this succeeds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_command: Option<StartCommand>,
    /// How long that may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_timeout_seconds: Option<u32>,
}

/// A command in one of its two forms.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the forms say what they are")]
pub enum StartCommand {
    Shell(String),
    Words(Vec<String>),
}

/// How much of a build's log there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageLogs {
    /// Lines kept.
    pub lines: u64,
    /// Whether older ones are gone.
    pub truncated: bool,
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
    pub start: Option<ImageStart>,
    pub source: ImageSource,
    pub logs: ImageLogs,
}

/// An archive that was sent in chunks before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveRef {
    /// Digest of the whole.
    pub sha256: String,
    /// Its bytes.
    pub size: u64,
    /// Digests of its chunks, in order.
    pub chunks: Vec<String>,
}

/// A file of a build that comes in the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildFile {
    /// In the context.
    pub path: String,
    /// Its bytes.
    pub content: Vec<u8>,
    /// Its mode.
    pub mode: u32,
}

/// What an image is made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "each is explained at its type")]
pub enum ImageFrom {
    /// A root file system or an archive of layers, of our own making.
    Archive(ArchiveRef),
    /// An image of a registry.
    Reference(String),
    Dockerfile(DockerfileRequest),
    /// The recipe's own fields, read by the builder.
    Recipe(serde_json::Value),
}

/// A build by a Dockerfile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are the wire contract's")]
pub struct DockerfileRequest {
    pub text: String,
    pub files: Vec<BuildFile>,
    pub context: Option<ArchiveRef>,
    pub build_args: BTreeMap<String, String>,
    pub target: Option<String>,
    pub dockerignore: Option<String>,
}

/// Limits of a build.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the fields are the wire contract's")]
pub struct BuildLimits {
    pub vcpu: Option<u32>,
    pub memory_mib: Option<u32>,
    pub disk_mib: Option<u32>,
    pub timeout_seconds: Option<u32>,
    pub max_image_mib: Option<u32>,
}

/// `POST /v1/images`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageRequest {
    /// One of the sources.
    pub from: ImageFrom,
    /// Versions count for each name.
    pub name: Option<String>,
    /// Moved to it when it is ready.
    pub tags: Vec<String>,
    /// The caller's.
    pub labels: BTreeMap<String, String>,
    /// Over the image's own.
    pub env: BTreeMap<String, String>,
    /// `Some(None)`: nothing is started, whatever the image says.
    pub start: Option<Option<ImageStart>>,
    /// Of a build.
    pub build: BuildLimits,
    /// Whether an equal build that is there may be taken.
    pub cache: bool,
}

/// What [`check_name`] accepts, but for [`HOST`].
const NAME_PATTERN: &str = "^(?![^-]{8}-[^-]{4}-[^-]{4}-[^-]{4}-[^-]{12}$)(?!host$)[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$";
const TAG_PATTERN: &str = "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$";
const DIGEST_PATTERN: &str = "^[0-9a-f]{64}$";

/// Whether a text can be an image's name.
fn check_name(fields: &mut Fields, field: &str, name: &str) {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let dashes: Vec<usize> = name.match_indices('-').map(|(at, _)| at).collect();
    let is_uuid = name.len() == 36 && dashes == [8, 13, 18, 23];
    if name.is_empty()
        || name.len() > NAME_CHARS_MAX
        || !name.chars().all(is_fine)
        || !name.starts_with(|c: char| c.is_ascii_alphanumeric())
    {
        fields.issue(
            field,
            format!("1 to {NAME_CHARS_MAX} letters, digits, `.`, `_`, `-`, `/`, the first a letter or digit"),
        );
    } else if name == HOST || is_uuid {
        fields.issue(field, "this name is taken for something else");
    }
}

fn check_tag(fields: &mut Fields, field: &str, tag: &str) {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if tag.is_empty() || tag.len() > NAME_CHARS_MAX || !tag.chars().all(is_fine) || tag.starts_with(['.', '-']) {
        fields.issue(field, format!("1 to {NAME_CHARS_MAX} letters, digits, `.`, `_`, `-`, the first no `.` or `-`"));
    }
}

fn archive(fields: &mut Fields) -> ArchiveRef {
    fields.required("size");
    fields.required("chunks");
    let archive = ArchiveRef {
        sha256: fields.required_text("sha256"),
        size: fields.number("size", 0..=ARCHIVE_BYTES_MAX).unwrap_or_default(),
        chunks: fields.many_texts("chunks", CHUNKS_MAX).unwrap_or_default(),
    };
    if !is_digest(&archive.sha256) || !archive.chunks.iter().all(|chunk| is_digest(chunk)) {
        fields.issue("sha256", "digests are 64 lower-case hexadecimal digits");
    }
    fields.refine("sha256", || json!({ "pattern": DIGEST_PATTERN }));
    fields.refine("chunks", || json!({ "items": { "type": "string", "pattern": DIGEST_PATTERN } }));
    archive
}

/// Whether a text is a SHA-256 digest in hexadecimal digits.
#[must_use]
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn build_file(fields: &mut Fields) -> BuildFile {
    let path = fields.required_text("path");
    let text = fields.text("content").unwrap_or_default();
    let is_base64 = fields.word("encoding", &[("utf8", false), ("base64", true)]).unwrap_or(false);
    let content = if is_base64 { crate::base64::decode(&text) } else { Some(text.into_bytes()) };
    if content.is_none() {
        fields.issue("content", "is no base64");
    }
    fields.refine("content", || json!({ "description": "Text, or base64 where `encoding` says so." }));
    let mode = fields.small_number("mode", 0..=0o7777).unwrap_or(0o644);
    BuildFile { path, content: content.unwrap_or_default(), mode }
}

fn command(fields: &mut Fields, name: &str) -> Option<StartCommand> {
    let words = json!({ "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": WORDS_MAX });
    let text = json!({ "type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX });
    match fields.of_kind(name, || json!({ "anyOf": [text, words] }))? {
        serde_json::Value::String(text) if !text.is_empty() && text.chars().count() <= TEXT_CHARS_MAX => {
            Some(StartCommand::Shell(text))
        }
        value => match serde_json::from_value::<Vec<String>>(value) {
            Ok(words) if !words.is_empty() && words.len() <= WORDS_MAX => Some(StartCommand::Words(words)),
            _ => {
                fields.issue(name, "must be a text or a list of texts");
                None
            }
        },
    }
}

fn start_of(fields: &mut Fields) -> ImageStart {
    fields.required("command");
    ImageStart {
        command: command(fields, "command").unwrap_or(StartCommand::Shell(String::new())),
        ready_port: fields.small_number("readyPort", 1..=65_535).and_then(|port| u16::try_from(port).ok()),
        ready_command: command(fields, "readyCommand"),
        ready_timeout_seconds: fields.small_number("readyTimeoutSeconds", 1..=3600),
    }
}

fn limits(fields: &mut Fields) -> BuildLimits {
    // The cache is the layers themselves and has no size of its own.
    fields.small_number("cacheMiB", 0..=u32::MAX);
    BuildLimits {
        vcpu: fields.small_number("vcpu", 1..=256),
        memory_mib: fields.small_number("memoryMiB", 128..=1 << 20),
        disk_mib: fields.small_number("diskMiB", 128..=1 << 22),
        timeout_seconds: fields.small_number("timeoutSeconds", BUILD_SECONDS),
        max_image_mib: fields.small_number("maxImageMiB", 1..=1 << 22),
    }
}

impl ImageRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.one_of(&["image", "dockerfile", "recipe", "archive"]);
        f.only_with(&["files", "context", "buildArgs", "target", "dockerignore"], "dockerfile");
        f.only_with(&["tags"], "name");
        let archived = f.object("archive", archive);
        let reference = bounded(f, "image", REFERENCE_CHARS_MAX);
        let recipe = f.of_kind("recipe", || json!({ "type": "object" }));
        let text = f.text("dockerfile");
        if text.as_ref().is_some_and(|text| text.chars().count() > TEXT_CHARS_MAX) {
            f.issue("dockerfile", format!("at most {TEXT_CHARS_MAX} characters"));
        }
        f.refine("dockerfile", || json!({ "maxLength": TEXT_CHARS_MAX }));
        let dockerfile = dockerfile(f, text);
        let from = match (archived, reference, recipe) {
            (Some(archive), ..) => ImageFrom::Archive(archive),
            (_, Some(reference), _) => ImageFrom::Reference(reference),
            (.., Some(recipe)) => ImageFrom::Recipe(recipe),
            _ => ImageFrom::Dockerfile(dockerfile),
        };
        f.text("region");
        let (name, tags) = name_and_tags(f);
        let labels = f.text_map("labels").unwrap_or_default();
        let env = f.text_map("env").unwrap_or_default();
        rules::check(f, None, Some(&labels), Some(&env));
        f.refine("name", || json!({ "pattern": NAME_PATTERN }));
        let nothing = f.is_null("start").then_some(None);
        let start = nothing.or(f.object("start", start_of).map(Some));
        let build = f.object("build", limits).unwrap_or_default();
        let cache = f.truth("cache").unwrap_or(true);
        Self { from, name, tags, labels, env, start, build, cache }
    }
}

/// Takes a text of 1 to so many characters.
fn bounded(f: &mut Fields, name: &str, chars_max: usize) -> Option<String> {
    let text = f.text(name);
    if text.as_ref().is_some_and(|text| text.is_empty() || text.chars().count() > chars_max) {
        f.issue(name, format!("1 to {chars_max} characters"));
    }
    f.refine(name, || json!({ "minLength": 1, "maxLength": chars_max }));
    text
}

fn dockerfile(f: &mut Fields, text: Option<String>) -> DockerfileRequest {
    DockerfileRequest {
        text: text.unwrap_or_default(),
        files: f.objects("files", FILES_MAX, build_file).unwrap_or_default(),
        context: f
            .object("context", |inner| {
                // The list of files serves those who cannot read the archive; it says what the archive holds, again.
                inner.of_kind("files", || json!({ "type": "array" }));
                inner.object("archive", archive).unwrap_or_default()
            })
            .filter(|archive| !archive.chunks.is_empty()),
        build_args: f.text_map("buildArgs").unwrap_or_default(),
        target: f.text("target"),
        dockerignore: f.text("dockerignore"),
    }
}

fn name_and_tags(f: &mut Fields) -> (Option<String>, Vec<String>) {
    let name = f.text("name");
    if let Some(name) = &name {
        check_name(f, "name", name);
    }
    let tags = f.texts("tags");
    let mut tags = tags.unwrap_or_else(|| name.iter().map(|_| LATEST.to_owned()).collect());
    if tags.len() > TAGS_MAX {
        f.issue("tags", format!("at most {TAGS_MAX}"));
    }
    for tag in &tags {
        check_tag(f, "tags", tag);
    }
    f.refine("tags", || json!({ "maxItems": TAGS_MAX, "items": { "type": "string", "pattern": TAG_PATTERN } }));
    tags.sort();
    tags.dedup();
    (name, tags)
}

/// `POST …:tag`, `POST …:untag`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TagRequest {
    /// The tag.
    pub tag: String,
}

impl TagRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let tag = f.required_text("tag");
        check_tag(f, "tag", &tag);
        f.refine("tag", || json!({ "pattern": TAG_PATTERN }));
        Self { tag }
    }
}

/// `POST /v1/images/context/missing`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingRequest {
    /// Digests of chunks.
    pub digests: Vec<String>,
}

impl MissingRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("digests");
        let digests = f.many_texts("digests", CHUNKS_MAX).unwrap_or_default();
        if !digests.iter().all(|digest| is_digest(digest)) {
            f.issue("digests", "each has 64 lower-case hexadecimal digits");
        }
        f.refine("digests", || json!({ "items": { "type": "string", "pattern": DIGEST_PATTERN } }));
        Self { digests }
    }
}

/// One line of a build's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogLine {
    /// Counts from 1.
    pub seq: u64,
    /// When.
    pub at: Timestamp,
    /// `stdout`, `stderr`, or `build` for what the builder says.
    pub stream: String,
    /// Without its end.
    pub text: String,
}

/// What `POST /v1/images/context/missing` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missing {
    /// Digests of chunks that are not here.
    pub missing: Vec<String>,
}

/// What `PUT /v1/images/context/{digest}` answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChunkKept {
    /// The chunk's digest.
    pub sha256: String,
}

/// One line of a log that is followed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum LogEvent {
    /// A line of the log.
    Line(LogLine),
    /// The image is made, or could not be.
    Done {
        /// As it is now.
        image: Box<ImageInfo>,
    },
    /// The node goes down; come back later.
    Continue {
        /// With this.
        after: u64,
    },
    /// The log cannot be followed.
    Error {
        /// Why.
        error: crate::ErrorInfo,
    },
}

/// `GET /v1/images/{id}/logs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's")]
pub struct LogPage {
    pub lines: Vec<LogLine>,
    pub next_after: u64,
    pub state: ImageState,
    pub truncated: bool,
    pub done: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(body: &str) -> Vec<String> {
        let issues = ImageRequest::parse(body.as_bytes()).expect_err("issues");
        issues.0.into_iter().map(|issue| issue.path).collect()
    }

    #[test]
    fn one_source_is_wanted() {
        assert_eq!(paths("{}"), ["image"]);
        assert_eq!(paths(r#"{"image":"a","recipe":{}}"#), ["image"]);
        assert_eq!(paths(r#"{"image":"a","target":"x"}"#), ["target"]);
        assert_eq!(paths(r#"{"image":"a","tags":["x"]}"#), ["tags"]);
        assert_eq!(paths(r#"{"image":"a","name":"host"}"#), ["name"]);
        assert_eq!(paths(r#"{"archive":{"sha256":"x","size":1,"chunks":[]}}"#), ["archive.sha256"]);
        assert_eq!(paths(r#"{"dockerfile":"FROM x","files":[{"path":"a","mode":99999}]}"#), ["files[0].mode"]);
    }

    #[test]
    fn names_bring_the_tag_latest() {
        let request = ImageRequest::parse(br#"{"image":"a","name":"x","start":null}"#).expect("fine");
        assert_eq!((request.tags, request.start), (vec!["latest".to_owned()], Some(None)));
        let request = ImageRequest::parse(br#"{"image":"a","name":"x","tags":["b","a","b"]}"#).expect("fine");
        assert_eq!((request.tags, request.start), (vec!["a".to_owned(), "b".to_owned()], None));
    }
}
