//! `get`: one sandbox.

use super::{labels, sandbox, word};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use branchbox_api::SandboxInfo;
use clap::Args;
use std::fmt::Write as _;

/// Show one sandbox.
///
/// Example: `branchbox get web --json`
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
}

impl GetArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot get sandbox `{}`", self.sandbox);
        let info = session.client.get(&id).await.map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&info),
            Form::Text => output::data(&text(&info)),
        }
        Ok(Exit::Done)
    }
}

/// Label and value, one pair a line, nothing that is empty.
fn text(info: &SandboxInfo) -> String {
    let time = |time: Option<branchbox_model::Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
    let rows = [
        ("id", info.id.clone()),
        ("name", info.name.clone().unwrap_or_default()),
        ("state", word(info.state)),
        ("stopped", info.stop_reason.map(word).unwrap_or_default()),
        ("labels", labels(&info.labels)),
        ("size", format!("{} vCPU, {} MiB memory, {} MiB disk", info.vcpu, info.memory_mib, info.disk_mib)),
        ("user", word(info.user)),
        ("image", info.image.clone().unwrap_or_default()),
        ("snapshot", info.snapshot.clone().unwrap_or_default()),
        ("variables", info.env_names.join(", ")),
        ("created", info.created_at.to_string()),
        ("ready", time(info.ready_at)),
        ("ended", time(info.ended_at)),
        ("ends", time(info.ends_at)),
    ];
    let mut text = String::new();
    for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{label:<9}  {}", printable(value));
    }
    text
}
