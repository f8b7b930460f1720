//! `snapshot`: saves a sandbox.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::progress::during;
use crate::text::pair;
use branchbox_api::SnapshotRequest;
use branchbox_model::{SnapshotMode, SnapshotState};
use clap::Args;

/// Save a sandbox and print the snapshot's id.
///
/// Files, memory and processes, at one instant; `--disk` saves files only. The sandbox runs on.
///
/// Example: `branchbox snapshot web --name ready --retention 30`
#[derive(Debug, Args)]
pub struct SnapshotArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// A name
    #[arg(long)]
    pub name: Option<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Days it is kept [default: until it is removed]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=365))]
    pub retention: Option<u32>,
    /// Files only
    #[arg(long)]
    pub disk: bool,
}

impl SnapshotArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let request = SnapshotRequest {
            name: self.name,
            labels: (!self.labels.is_empty()).then(|| self.labels.into_iter().collect()),
            retention_days: self.retention,
            mode: self.disk.then_some(SnapshotMode::Disk),
            account: None,
        };
        let what = format!("cannot save sandbox `{}`", self.sandbox);
        let made = during(session.form, "saving", session.client.snapshot(&id, &request))
            .await
            .map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&made),
            Form::Text => output::data(&format!("{}\n", made.id)),
        }
        if made.state == SnapshotState::Failed {
            return Err(Fault::failed(what).cause(made.error.unwrap_or_else(|| "the capture failed".into())));
        }
        Ok(Exit::Done)
    }
}
