//! `spawn`, `ps`, `logs`, `kill`: processes that outlive the call that started them.

use super::exec::{command_of, show_stream};
use super::{sandbox, word};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::table::Table;
use crate::terminal;
use crate::text::{age, pair};
use branchbox_api::{ExecRequest, ProcessState, PtySize, StreamEvent};
use branchbox_model::{Timestamp, User};
use clap::Args;

/// A terminal's size where nobody looks yet.
const PTY_SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// Start a process that runs until it ends, and print its id.
///
/// Example: `branchbox spawn web -- python3 -m http.server 8000`
#[derive(Debug, Args)]
pub struct SpawnArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// Working directory [default: /workspace]
    #[arg(long)]
    pub cwd: Option<String>,
    /// A variable; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Run as the sandbox's root
    #[arg(long)]
    pub root: bool,
    /// Give it a terminal, to be sat down at with `shell --process`
    #[arg(long)]
    pub pty: bool,
    /// The command
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

/// List a sandbox's processes, and the last that ended.
///
/// Example: `branchbox ps web`
#[derive(Debug, Args)]
pub struct PsArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
}

/// Print what a process has said.
///
/// With `-f` until it ends, and then ends as it did.
///
/// Example: `branchbox logs web p3 -f`
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The process, as `ps` shows it
    pub process: String,
    /// Go on until it ends
    #[arg(long, short)]
    pub follow: bool,
}

/// Send a process a signal.
///
/// Example: `branchbox kill web p3 --signal SIGINT`
#[derive(Debug, Args)]
pub struct KillArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// The process, as `ps` shows it
    pub process: String,
    /// Which
    #[arg(long, default_value = "SIGTERM")]
    pub signal: String,
}

impl SpawnArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot start a process in sandbox `{}`", self.sandbox);
        let (command, argv) = command_of(self.command);
        let request = ExecRequest {
            command,
            argv,
            cwd: self.cwd,
            env: self.env.into_iter().collect(),
            user: self.root.then_some(User::Root),
            pty: self.pty.then(|| terminal::size().unwrap_or(PTY_SIZE)),
            ..ExecRequest::default()
        };
        let info = session.client.spawn(&id, &request).await.map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&info),
            Form::Text => output::data(&format!("{}\n", info.id)),
        }
        Ok(Exit::Done)
    }
}

impl PsArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot list the processes of sandbox `{}`", self.sandbox);
        let list = session.client.processes(&id).await.map_err(|error| refused(&what, error))?;
        if session.form == Form::Json {
            output::json(&list);
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["ID", "STATE", "EXIT", "USER", "AGE", "COMMAND"]);
        for info in &list.data {
            let exit = info.exit_code.map(|code| code.to_string()).unwrap_or_default();
            let age = age(info.started_at, Timestamp::now());
            let command = info.command.lines().next().unwrap_or_default().to_owned();
            table.row(vec![info.id.clone(), word(info.state), exit, word(info.user), age, command]);
        }
        output::data(&table.text());
        if list.data.is_empty() {
            output::note("no processes\n");
        }
        Ok(Exit::Done)
    }
}

impl LogsArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot read process `{}` of sandbox `{}`", self.process, self.sandbox);
        let info = session.client.process(&id, &self.process).await.map_err(|error| refused(&what, error))?;
        let mut stream = session.client.follow(&id, &self.process);
        if self.follow || info.state != ProcessState::Running {
            let exit = show_stream(&mut stream, &what).await?;
            return Ok(if self.follow { exit } else { Exit::Done });
        }
        // Up to what there was when it was asked.
        let mut position = info.first_offset;
        while position < info.output_bytes {
            match stream.next().await.map_err(|error| refused(&what, error))? {
                Some(StreamEvent::Stdout { data, offset, .. }) => {
                    output::raw(false, data.as_bytes());
                    position = offset.saturating_add(data.len() as u64);
                }
                Some(StreamEvent::Stderr { data, offset, .. }) => {
                    output::raw(true, data.as_bytes());
                    position = offset.saturating_add(data.len() as u64);
                }
                Some(StreamEvent::Truncated { resume_at, .. }) => position = resume_at,
                Some(StreamEvent::Exit { .. }) | None => break,
                Some(_) => {}
            }
        }
        Ok(Exit::Done)
    }
}

impl KillArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot signal process `{}` of sandbox `{}`", self.process, self.sandbox);
        let upper = self.signal.to_ascii_uppercase();
        let signal = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
        session.client.signal(&id, &self.process, &signal).await.map_err(|error| refused(&what, error))?;
        Ok(Exit::Done)
    }
}
