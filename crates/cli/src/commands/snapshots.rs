//! `snapshots ls | get | update | extend | rm`.

use super::{each, labels, word};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output::{self, Form};
use crate::resolve;
use crate::table::Table;
use crate::text::{age, bytes, pair};
use branchbox_api::{SnapshotInfo, UpdateSnapshotRequest};
use branchbox_model::Timestamp;
use clap::{Args, Subcommand};
use std::fmt::Write as _;

/// List and keep snapshots
#[derive(Debug, Subcommand)]
pub enum SnapshotsVerb {
    /// List snapshots, newest first.
    ///
    /// Example: `branchbox snapshots ls --sandbox web`
    Ls {
        /// Only those of this sandbox
        #[arg(long)]
        sandbox: Option<String>,
    },
    /// Show one snapshot.
    ///
    /// Example: `branchbox snapshots get flask-ready`
    Get {
        /// The snapshot: id, name, or at least 6 characters an id begins with
        snapshot: String,
    },
    /// Change a snapshot's name or labels.
    ///
    /// Example: `branchbox snapshots update flask-ready --label task=done`
    Update(UpdateArgs),
    /// Keep a snapshot for this many days from now on.
    ///
    /// Example: `branchbox snapshots extend flask-ready 30`
    Extend {
        /// The snapshot: id, name, or at least 6 characters an id begins with
        snapshot: String,
        /// Days
        #[arg(value_parser = clap::value_parser!(u32).range(1..=365))]
        days: u32,
    },
    /// Remove snapshots; sandboxes started from them run on.
    ///
    /// Example: `branchbox snapshots rm flask-ready`
    Rm {
        /// Each an id, name, or at least 6 characters an id begins with
        #[arg(required = true)]
        snapshots: Vec<String>,
    },
}

/// What to change.
#[derive(Debug, Args)]
pub struct UpdateArgs {
    /// The snapshot: id, name, or at least 6 characters an id begins with
    pub snapshot: String,
    /// A new name; empty takes the name away
    #[arg(long)]
    pub name: Option<String>,
    /// A label; all labels given replace all there are; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
}

impl SnapshotsVerb {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        match self {
            Self::Ls { sandbox } => list(session, sandbox).await,
            Self::Get { snapshot } => get(session, &snapshot).await,
            Self::Update(args) => args.run(session).await,
            Self::Extend { snapshot, days } => extend(session, &snapshot, days).await,
            Self::Rm { snapshots } => Ok(each(session, &snapshots, |text| remove(session, text)).await),
        }
    }
}

async fn list(session: &Session, sandbox: Option<String>) -> Result<Exit, Fault> {
    let of = match sandbox {
        // A sandbox that is gone still names its snapshots by its whole id.
        Some(text) if text.parse::<branchbox_model::SandboxId>().is_ok() => Some(text),
        Some(text) => Some(resolve::sandbox(&session.client, &text).await?),
        None => None,
    };
    let found = resolve::snapshots(&session.client, of.as_deref()).await?;
    if session.form == Form::Json {
        output::json(&serde_json::json!({ "data": found, "nextCursor": null }));
        return Ok(Exit::Done);
    }
    let mut table = Table::new(&["ID", "NAME", "STATE", "MODE", "SIZE", "AGE", "SANDBOX"]);
    let now = Timestamp::now();
    for info in &found {
        let size = info.stored_bytes.map(bytes).unwrap_or_default();
        let name = info.name.clone().unwrap_or_default();
        let age = age(info.created_at, now);
        let of = info.source_sandbox_id.clone();
        table.row(vec![info.id.clone(), name, word(info.state), word(info.mode), size, age, of]);
    }
    output::data(&table.text());
    if found.is_empty() {
        output::note("no snapshots\n");
    }
    Ok(Exit::Done)
}

async fn get(session: &Session, text: &str) -> Result<Exit, Fault> {
    let id = resolve::snapshot(&session.client, text).await?;
    let what = format!("cannot get snapshot `{text}`");
    show(session, &session.client.get_snapshot(&id).await.map_err(|error| refused(&what, error))?);
    Ok(Exit::Done)
}

async fn extend(session: &Session, text: &str, days: u32) -> Result<Exit, Fault> {
    let id = resolve::snapshot(&session.client, text).await?;
    let what = format!("cannot extend snapshot `{text}`");
    show(session, &session.client.extend_snapshot(&id, days).await.map_err(|error| refused(&what, error))?);
    Ok(Exit::Done)
}

async fn remove(session: &Session, text: String) -> Result<(), Fault> {
    let id = resolve::snapshot(&session.client, &text).await?;
    let what = format!("cannot remove snapshot `{text}`");
    session.client.delete_snapshot(&id).await.map_err(|error| refused(&what, error))?;
    if session.form == Form::Text {
        output::data(&format!("{id} deleted\n"));
    }
    Ok(())
}

impl UpdateArgs {
    async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = resolve::snapshot(&session.client, &self.snapshot).await?;
        let what = format!("cannot update snapshot `{}`", self.snapshot);
        let request = UpdateSnapshotRequest {
            name: self.name.map(|name| (!name.is_empty()).then_some(name)),
            labels: (!self.labels.is_empty()).then(|| self.labels.into_iter().collect()),
            if_labels: None,
        };
        if request.name.is_none() && request.labels.is_none() {
            return Err(Fault::usage("nothing to change was given").hint("give --name, --label, or both"));
        }
        show(session, &session.client.update_snapshot(&id, &request).await.map_err(|error| refused(&what, error))?);
        Ok(Exit::Done)
    }
}

fn show(session: &Session, info: &SnapshotInfo) {
    if session.form == Form::Json {
        return output::json(info);
    }
    let rows = [
        ("id", info.id.clone()),
        ("name", info.name.clone().unwrap_or_default()),
        ("state", word(info.state)),
        ("mode", word(info.mode)),
        ("labels", labels(&info.labels)),
        ("sandbox", info.source_sandbox_id.clone()),
        ("size", info.stored_bytes.map(bytes).unwrap_or_default()),
        ("error", info.error.clone().unwrap_or_default()),
        ("created", info.created_at.to_string()),
        ("expires", info.expires_at.map(|time| time.to_string()).unwrap_or_default()),
    ];
    let mut text = String::new();
    for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(text, "{label:<7}  {}", printable(value));
    }
    output::data(&text);
}
