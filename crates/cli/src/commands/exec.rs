//! `exec`: runs a command in a sandbox and ends as it does.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use crate::text::{millis, pair};
use branchbox_api::{ExecRequest, StreamEvent};
use branchbox_client::ExecStream;
use branchbox_model::User;
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use std::io::Read as _;

/// Run a command in a sandbox.
///
/// One word after `--` is a `bash -c` script, several are a program and its arguments. Output streams as it comes; what is
/// piped in is its standard input. Ends with the command's own exit code.
///
/// Example: `branchbox exec web -- 'cd /workspace/repo && make test'`
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// Working directory [default: /workspace]
    #[arg(long)]
    pub cwd: Option<String>,
    /// A variable; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Time limit in seconds, or with a unit: 500ms, 5m [default: 24h, with --json 60s]
    #[arg(long, value_name = "TIME", value_parser = millis)]
    pub timeout: Option<u64>,
    /// Run as the sandbox's root
    #[arg(long)]
    pub root: bool,
    /// The command
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// Longest time limit of a command, and the one when none is given.
const TIMEOUT_MS_MAX: u64 = branchbox_api::TIMEOUT_MS_MAX;
/// Most input that is sent.
const STDIN_BYTES_MAX: u64 = 1024 * 1024;

/// After this long without input a person is told what is waited for.
const STDIN_REMARK: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

impl ExecArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot run a command in sandbox `{}`", self.sandbox);
        let input = piped_input()?;
        let (command, argv) = command_of(self.command);
        let request = ExecRequest {
            command,
            argv,
            cwd: self.cwd,
            env: self.env.into_iter().collect(),
            stdin_base64: input.map(|bytes| branchbox_api::base64::encode(&bytes)),
            timeout_ms: self.timeout.or_else(|| (session.form == Form::Text).then_some(TIMEOUT_MS_MAX)),
            user: self.root.then_some(User::Root),
            ..ExecRequest::default()
        };
        match session.form {
            Form::Json => as_json(session, &id, &request, &what).await,
            Form::Text => streamed(session, &id, &request, &what).await,
        }
    }
}

/// One word is a script, several are a program and its arguments.
#[must_use]
pub fn command_of(mut words: Vec<String>) -> (Option<String>, Option<Vec<String>>) {
    if words.len() == 1 { (words.pop(), None) } else { (None, Some(words)) }
}

async fn as_json(session: &Session, id: &str, request: &ExecRequest, what: &str) -> Result<Exit, Fault> {
    let result = session.client.exec(id, request).await.map_err(|error| refused(what, error))?;
    output::json(&result);
    let lost = result.stdout_truncated || result.stderr_truncated;
    Ok(ended(result.exit_code.map(i64::from), result.timed_out, lost))
}

/// Shows a stream until its end, and says how the command ended.
///
/// # Errors
/// What the node refused.
pub(super) async fn show_stream(stream: &mut ExecStream, what: &str) -> Result<Exit, Fault> {
    let mut lost = false;
    while let Some(event) = stream.next().await.map_err(|error| refused(what, error))? {
        if let Some(exit) = show(event, &mut lost) {
            return Ok(exit);
        }
    }
    Err(Fault::new(Exit::Internal, what).cause("the stream ended before the command did"))
}

/// Shows one event; the last one says how the command ended.
fn show(event: StreamEvent, lost: &mut bool) -> Option<Exit> {
    match event {
        StreamEvent::Stdout { data, .. } => output::raw(false, data.as_bytes()),
        StreamEvent::Stderr { data, .. } => output::raw(true, data.as_bytes()),
        StreamEvent::Truncated { dropped_bytes, .. } => {
            *lost = true;
            output::note(&format!("note: {dropped_bytes} bytes of output were lost\n"));
        }
        StreamEvent::Exit { exit_code, timed_out, out_of_memory, .. } => {
            if let Some(memory) = out_of_memory {
                output::note(&format!("note: {}\nhint: {}\n", printable(&memory.message), printable(&memory.hint)));
            }
            return Some(ended(exit_code.map(i64::from), timed_out, *lost));
        }
        _ => {}
    }
    None
}

/// A command that did well but whose output was lost is no success.
fn ended(exit_code: Option<i64>, timed_out: bool, lost: bool) -> Exit {
    match Exit::of_command(exit_code, timed_out) {
        Exit::Child(0) if lost => Exit::Failed,
        exit => exit,
    }
}

async fn streamed(session: &Session, id: &str, request: &ExecRequest, what: &str) -> Result<Exit, Fault> {
    let mut stream = session.client.exec_stream(id, request).await.map_err(|error| refused(what, error))?;
    let mut lost = false;
    let mut interrupts = 0_u32;
    loop {
        let event = tokio::select! {
            event = stream.next() => event.map_err(|error| refused(what, error))?,
            _ = tokio::signal::ctrl_c() => {
                interrupts += 1;
                let process = stream.process_id().map(str::to_owned);
                let (Some(process), 1) = (process, interrupts) else { return Ok(Exit::Interrupted) };
                session.client.signal(id, &process, "SIGTERM").await.map_err(|error| refused(what, error))?;
                continue;
            }
        };
        match event {
            Some(event) => {
                if let Some(exit) = show(event, &mut lost) {
                    return Ok(exit);
                }
            }
            None => return Err(Fault::new(Exit::Internal, what).cause("the stream ended before the command did")),
        }
    }
}

/// What is piped into this process. A terminal is nobody's input, and neither is what a service manager connects.
pub(super) fn piped_input() -> Result<Option<Vec<u8>>, Fault> {
    let failed = || Fault::failed("cannot read standard input");
    let stdin = std::io::stdin();
    let Ok(facts) = rustix::fs::fstat(&stdin) else { return Ok(None) };
    if !matches!(FileType::from_raw_mode(facts.st_mode), FileType::RegularFile | FileType::Fifo) {
        return Ok(None);
    }
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    if matches!(rustix::event::poll(&mut fds, Some(&STDIN_REMARK)), Ok(0)) {
        output::note("waiting for the end of standard input; for none, add: < /dev/null\n");
    }
    let mut bytes = Vec::new();
    stdin.lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| failed().because(&error))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(failed().cause("it has more than 1 MiB").hint("copy the file into the sandbox and read it there"));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_script_several_are_a_program() {
        assert_eq!(command_of(vec!["a b".into()]), (Some("a b".into()), None));
        assert_eq!(command_of(vec!["a".into(), "b".into()]), (None, Some(vec!["a".into(), "b".into()])));
    }

    #[test]
    fn lost_output_is_no_success() {
        assert_eq!(ended(Some(0), false, true).code(), 1);
        assert_eq!(ended(Some(3), false, true).code(), 3);
        assert_eq!(ended(Some(0), false, false).code(), 0);
    }
}
