//! What is run: from a request, the sandbox's settings and its image to what the guest starts.

use crate::error::NodeError;
use crate::node::Node;
use crate::splitter;
use branchbox_api::{ExecRequest, OutputEncoding, TIMEOUT_MS_DEFAULT};
use branchbox_catalog::SandboxRecord;
use branchbox_model::User;
use branchbox_protocol::guest::{self, SpawnSpec, Stdin};

/// The directory that commands start in.
const CWD_DEFAULT: &str = "/workspace";
/// Longest command text kept for lists.
const DISPLAY_BYTES_MAX: usize = 2048;

/// Uid and gid of a user inside.
pub(crate) fn ids(user: User) -> (u32, u32) {
    match user {
        User::Sandbox => (1000, 1000),
        User::Root => (0, 0),
    }
}

/// Whether a request starts a command or a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Has a time limit unless it says otherwise.
    Command,
    /// Runs until it ends.
    Process,
}

pub(crate) fn encoding_word(encoding: OutputEncoding) -> &'static str {
    match encoding {
        OutputEncoding::Utf8 => "utf8",
        OutputEncoding::Base64 => "base64",
    }
}

/// Runs its argument with bash where an image has it, else with its own shell.
const ANY_SHELL: &str = "if command -v bash >/dev/null; then exec bash -c \"$0\"; else exec sh -c \"$0\"; fi";

/// The same for somebody who sits before a terminal.
const ANY_LOGIN: &str = "if command -v bash >/dev/null; then exec bash -l; else exec sh -l; fi";

impl Node {
    /// What runs in a terminal of a sandbox when nobody says.
    ///
    /// # Errors
    /// [`NodeError::NoSandbox`].
    pub fn login_shell(&self, id: &str) -> Result<Vec<String>, NodeError> {
        let words: &[&str] = if is_host(&self.live(id)?.record()) { &["bash", "-l"] } else { &["sh", "-c", ANY_LOGIN] };
        Ok(words.iter().map(|word| (*word).to_owned()).collect())
    }
}

fn is_host(record: &SandboxRecord) -> bool {
    branchbox_layers::images::chain_name(&record.detail.root.image).is_none()
}

/// Where a sandbox's commands start.
pub(crate) fn workdir(record: &SandboxRecord) -> String {
    record.detail.root.defaults.workdir.clone().unwrap_or_else(|| CWD_DEFAULT.into())
}

pub(crate) fn spawn_spec(record: &SandboxRecord, request: ExecRequest, kind: Kind) -> SpawnSpec {
    let argv = match (request.command, request.argv) {
        (Some(script), _) if is_host(record) => vec!["bash".into(), "-c".into(), script],
        (Some(script), _) => vec!["sh".into(), "-c".into(), ANY_SHELL.into(), script],
        (None, argv) => argv.unwrap_or_default(),
    };
    let mut env = record.detail.root.defaults.env.clone();
    env.extend(record.detail.env.clone());
    env.extend(request.env);
    let display = match argv.as_slice() {
        [shell, flag, script] if shell == "bash" && flag == "-c" => script.clone(),
        [_, _, any, script] if any == ANY_SHELL => script.clone(),
        _ => argv.join(" "),
    };
    let timeout_ms = match kind {
        Kind::Command => Some(request.timeout_ms.unwrap_or(TIMEOUT_MS_DEFAULT)),
        Kind::Process => request.timeout_ms,
    };
    SpawnSpec {
        attached: matches!(kind, Kind::Command),
        argv,
        cwd: request.cwd.unwrap_or_else(|| workdir(record)),
        env: env.into_iter().collect(),
        env_clear: false,
        user: ids(request.user.unwrap_or(record.detail.user)),
        stdin: match (request.stdin_pipe, request.stdin) {
            (true, _) => Stdin::Pipe,
            (false, bytes) if bytes.is_empty() => Stdin::Null,
            (false, bytes) => Stdin::Bytes(bytes),
        },
        pty: request.pty.map(|size| guest::PtySize { cols: size.cols, rows: size.rows }),
        timeout_ms,
        display: shortened(&display),
        tag: encoding_word(request.output_encoding.unwrap_or_default()).into(),
    }
}

fn shortened(text: &str) -> String {
    if text.len() <= DISPLAY_BYTES_MAX {
        return text.to_owned();
    }
    let end = splitter::whole_characters(&text.as_bytes()[..DISPLAY_BYTES_MAX]);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_catalog::contract;

    #[test]
    fn commands_become_spawns() {
        let mut record = contract::sandbox(None, &[]);
        record.detail.env.insert("A".into(), "1".into());
        record.detail.env.insert("B".into(), "1".into());
        let mut request = ExecRequest { command: Some("echo $A".into()), ..ExecRequest::default() };
        request.env.insert("B".into(), "2".into());
        let spec = spawn_spec(&record, request.clone(), Kind::Command);
        assert_eq!(spec.argv, ["bash", "-c", "echo $A"]);
        assert_eq!(spec.env, [("A".into(), "1".into()), ("B".into(), "2".into())]);
        assert_eq!((spec.cwd.as_str(), spec.user, spec.timeout_ms), ("/workspace", (1000, 1000), Some(60_000)));
        assert_eq!((spec.display.as_str(), spec.stdin), ("echo $A", Stdin::Null));
        assert_eq!(spawn_spec(&record, request, Kind::Process).timeout_ms, None);
    }

    #[test]
    fn long_commands_are_shown_short() {
        let long = "€".repeat(DISPLAY_BYTES_MAX);
        let short = shortened(&long);
        assert!(short.ends_with('…') && short.len() <= DISPLAY_BYTES_MAX + 3, "{}", short.len());
        assert_eq!(shortened("ls"), "ls");
    }
}
