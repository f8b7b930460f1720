//! Commands: requests, results, streams, processes.

use crate::base64;
use crate::fields::{Fields, Issues};
use crate::rules;
use crate::sandbox::USERS;
use branchbox_model::{Timestamp, User};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A command's time limit when the request does not say.
pub const TIMEOUT_MS_DEFAULT: u64 = 60_000;
/// A command's longest time limit: a day.
pub const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// Longest single argument: the kernel's `MAX_ARG_STRLEN`, less the final NUL.
const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;
/// Most arguments.
const ARGUMENTS_MAX: usize = 1024;
/// Most standard input in one request.
const STDIN_BYTES_MAX: usize = 1024 * 1024;

/// How output travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OutputEncoding {
    /// As text; bytes that are no text become `?`, one for one, so that offsets stay true.
    #[default]
    Utf8,
    /// As base64, lossless.
    Base64,
}

/// Columns and rows of a terminal.
pub const PTY_SIDE: std::ops::RangeInclusive<u32> = 1..=4096;

/// A terminal's size in characters; also the body of `POST …/processes/{pid}:resize`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

impl PtySize {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let mut side = |name: &str| {
            f.required(name);
            f.small_number(name, PTY_SIDE).and_then(|side| u16::try_from(side).ok()).unwrap_or(1)
        };
        Self { cols: side("cols"), rows: side("rows") }
    }
}

/// `POST …:exec` and `POST …/processes`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ExecRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
    /// The decoded input, of `stdin` or `stdinBase64`.
    #[serde(skip)]
    pub stdin: Vec<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stream: bool,
    /// `stdinMode: "pipe"`.
    #[serde(skip)]
    pub stdin_pipe: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_encoding: Option<OutputEncoding>,
    /// Fields of things this node does not have that ask for something.
    #[serde(skip)]
    pub wants_unavailable: Option<&'static str>,
}

impl ExecRequest {
    /// Reads the body of an exec.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse_exec(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read_exec)
    }

    /// Takes its fields.
    pub fn read_exec(f: &mut Fields) -> Self {
        let mut request = Self::read(f);
        request.stream = f.truth("stream").unwrap_or(false);
        request
    }

    /// Reads the body of a process to start.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse_process(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read_process)
    }

    /// Takes its fields.
    pub fn read_process(f: &mut Fields) -> Self {
        f.not_both("stdin", "pty");
        f.not_both("stdinBase64", "pty");
        let mut request = Self::read(f);
        request.stdin_pipe = f.word("stdinMode", &[("pipe", true), ("none", false)]).unwrap_or(false);
        let encodings = [("utf8", OutputEncoding::Utf8), ("base64", OutputEncoding::Base64)];
        request.output_encoding = f.word("outputEncoding", &encodings);
        request.pty = f.object("pty", PtySize::read);
        request
    }

    fn read(f: &mut Fields) -> Self {
        let mut request = Self::default();
        request.read_command(f);
        request.cwd = rules::directory(f, "cwd");
        request.env = f.text_map("env").unwrap_or_default();
        rules::check(f, None, None, Some(&request.env));
        request.read_stdin(f);
        request.timeout_ms = f.number("timeoutMs", 1..=TIMEOUT_MS_MAX);
        request.user = f.word("user", USERS);
        if f.truth("traceFiles") == Some(true) {
            request.wants_unavailable = Some("traceFiles");
        }
        request
    }

    /// `command` may be a list too: tools of models send it so.
    fn read_command(&mut self, f: &mut Fields) {
        f.exactly_one("command", "argv");
        match f.of_kind("command", || json!({ "anyOf": [word_schema(), argv_schema()] })) {
            None => {}
            Some(Value::String(text)) => self.command = Some(text),
            Some(Value::Array(list)) => {
                self.argv = list.into_iter().map(|v| v.as_str().map(str::to_owned)).collect();
                if self.argv.is_none() {
                    f.issue("command", "must be a text or a list of texts");
                }
            }
            Some(_) => f.issue("command", "must be a text or a list of texts"),
        }
        if let Some(argv) = f.texts("argv") {
            self.argv = Some(argv);
        }
        f.refine("argv", argv_schema);
        let words = self.argv.iter().flatten().chain(&self.command);
        if words.clone().any(|word| word.len() > ARGUMENT_BYTES_MAX || word.contains('\0')) {
            f.issue(
                "command",
                format!("no NUL, and at most {ARGUMENT_BYTES_MAX} bytes in one argument; send more as standard input"),
            );
        }
        let empty = self.argv.as_ref().is_some_and(|argv| argv.first().is_none_or(String::is_empty));
        if empty || words.count() > ARGUMENTS_MAX {
            f.issue("argv", format!("1 to {ARGUMENTS_MAX} arguments, the first not empty"));
        }
    }

    fn read_stdin(&mut self, f: &mut Fields) {
        f.not_both("stdinBase64", "stdin");
        let text = f.text("stdin");
        let coded = f.text("stdinBase64");
        f.refine("stdin", || json!({ "maxLength": STDIN_BYTES_MAX }));
        f.refine("stdinBase64", base64_keywords);
        if let Some(coded) = coded {
            match base64::decode(&coded) {
                Some(bytes) => self.stdin = bytes,
                None => f.issue("stdinBase64", "is not base64"),
            }
        } else if let Some(text) = text {
            self.stdin = text.into_bytes();
        }
        if self.stdin.len() > STDIN_BYTES_MAX {
            f.issue("stdin", format!("at most {STDIN_BYTES_MAX} bytes"));
        }
    }
}

/// One argument.
fn word_schema() -> Value {
    json!({ "type": "string", "maxLength": ARGUMENT_BYTES_MAX, "pattern": r"^[^\u0000]*$" })
}

fn argv_schema() -> Value {
    let mut first = word_schema();
    first["minLength"] = json!(1);
    json!({
        "type": "array", "prefixItems": [first], "items": word_schema(), "minItems": 1, "maxItems": ARGUMENTS_MAX,
    })
}

fn base64_keywords() -> Value {
    json!({ "contentEncoding": "base64", "pattern": rules::BASE64_PATTERN })
}

/// The answer to an exec without `stream`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ExecResult {
    pub exit_code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub timed_out: bool,
    pub stdout_truncated: bool,
    pub stderr_truncated: bool,
    pub duration_ms: u64,
    pub process_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

/// The memory limit killed something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct OutOfMemory {
    pub code: String,
    pub processes_killed: u64,
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    pub message: String,
    pub hint: String,
}

/// Where a process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words are the wire contract's, explained there")]
pub enum ProcessState {
    Running,
    Exited,
    Killed,
    TimedOut,
    Unknown,
}

/// One line of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub enum StreamEvent {
    Start {
        process_id: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replayed: bool,
    },
    Stdout {
        data: String,
        offset: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    Stderr {
        data: String,
        offset: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base64: Option<String>,
    },
    Truncated {
        dropped_bytes: u64,
        resume_at: u64,
    },
    Exit {
        exit_code: Option<i32>,
        state: ProcessState,
        timed_out: bool,
        duration_ms: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        out_of_memory: Option<OutOfMemory>,
    },
    Continue {
        process_id: String,
        cursor: u64,
    },
    Error {
        error: crate::ErrorInfo,
    },
}

/// A command's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct ProcessInfo {
    pub id: String,
    pub kind: String,
    pub state: ProcessState,
    pub exit_code: Option<i32>,
    pub command: String,
    pub cwd: String,
    pub user: User,
    pub pty: Option<PtySize>,
    pub stdin_open: bool,
    pub stdin_offset: u64,
    pub output_encoding: OutputEncoding,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub timeout_ms: Option<u64>,
    pub output_bytes: u64,
    pub first_offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub out_of_memory: Option<OutOfMemory>,
}

/// The commands of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessList {
    /// Running ones and the last that ended.
    pub data: Vec<ProcessInfo>,
}

/// Output of a process, once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct OutputAnswer {
    pub chunks: Vec<OutputChunk>,
    pub next_cursor: u64,
    pub truncated: bool,
    pub process: ProcessInfo,
}

/// A run of output of one stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct OutputChunk {
    pub stream: String,
    pub text: String,
    pub offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

/// Input for a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InputRequest {
    /// The bytes.
    #[serde(skip)]
    pub bytes: Vec<u8>,
    /// Position of the first.
    pub offset: Option<u64>,
    /// No more will come.
    pub eof: bool,
}

impl InputRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        let mut request = Self { offset: f.number("offset", 0..=u64::MAX), ..Self::default() };
        let (coded, text) = (f.text("base64"), f.text("data"));
        f.refine("base64", base64_keywords);
        request.eof = f.truth("eof").unwrap_or(false);
        match coded.map(|coded| base64::decode(&coded)) {
            Some(Some(bytes)) => request.bytes = bytes,
            Some(None) => f.issue("base64", "is not base64"),
            None => request.bytes = text.unwrap_or_default().into_bytes(),
        }
        request
    }
}

/// The answer to input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InputAccepted {
    /// Bytes accepted in all.
    pub offset: u64,
}

/// A signal for a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalRequest {
    /// Its number.
    pub signal: i32,
}

/// Signals that may be sent, by their numbers on Linux.
const SIGNALS: &[(&str, i32)] =
    &[("SIGHUP", 1), ("SIGINT", 2), ("SIGQUIT", 3), ("SIGKILL", 9), ("SIGUSR1", 10), ("SIGUSR2", 12), ("SIGTERM", 15)];

impl SignalRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("signal");
        let signal = f.word("signal", SIGNALS).unwrap_or(15);
        Self { signal }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(body: &str) -> Vec<String> {
        ExecRequest::parse_exec(body.as_bytes()).expect_err(body).0.into_iter().map(|issue| issue.path).collect()
    }

    #[test]
    fn exec_takes_exactly_one_command() {
        assert_eq!(paths("{}"), ["command"]);
        assert_eq!(paths(r#"{"command":"a","argv":["b"]}"#), ["command"]);
        assert_eq!(paths(r#"{"argv":[]}"#), ["argv"]);
        assert_eq!(paths(r#"{"command":"a\u0000b"}"#), ["command"]);
        let listed = ExecRequest::parse_exec(br#"{"command":["ls","-l"]}"#).expect("a list");
        assert_eq!(listed.argv, Some(vec!["ls".into(), "-l".into()]));
    }

    #[test]
    fn input_is_decoded_and_bounded() {
        let request = ExecRequest::parse_exec(br#"{"command":"cat","stdinBase64":"AP8="}"#).expect("good");
        assert_eq!(request.stdin, [0, 255]);
        assert_eq!(paths(r#"{"command":"cat","stdinBase64":"!"}"#), ["stdinBase64"]);
        assert_eq!(paths(r#"{"command":"cat","cwd":"relative","timeoutMs":0}"#), ["cwd", "timeoutMs"]);
    }

    #[test]
    fn events_look_as_the_contract_says() {
        let start = StreamEvent::Start { process_id: "p1".into(), replayed: false };
        assert_eq!(serde_json::to_string(&start).expect("json"), r#"{"type":"start","processId":"p1"}"#);
        let exit = StreamEvent::Exit {
            exit_code: Some(-9),
            state: ProcessState::TimedOut,
            timed_out: true,
            duration_ms: 5,
            out_of_memory: None,
        };
        let text = r#"{"type":"exit","exitCode":-9,"state":"timed_out","timedOut":true,"durationMs":5}"#;
        assert_eq!(serde_json::to_string(&exit).expect("json"), text);
        assert_eq!(serde_json::from_str::<StreamEvent>(text).expect("event"), exit);
    }
}
