//! `rm`: ends sandboxes and removes their files.

use super::{each, sandbox};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::resolve::{self, Which};
use clap::Args;

/// End sandboxes and remove their files; their snapshots stay.
///
/// Example: `branchbox rm web` or `branchbox rm --all --snapshots`
#[derive(Debug, Args)]
pub struct RmArgs {
    /// Each an id, name, or at least 6 characters an id begins with
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub sandboxes: Vec<String>,
    /// Every sandbox of the node
    #[arg(long)]
    pub all: bool,
    /// Their snapshots too; with --all every snapshot
    #[arg(long)]
    pub snapshots: bool,
}

impl RmArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let mut ids = self.sandboxes;
        if self.all {
            let all = Which { ended_too: true, ..Which::default() };
            ids = resolve::sandboxes(&session.client, &all).await?.into_iter().map(|info| info.id).collect();
        }
        let with_snapshots = self.snapshots && !self.all;
        let exit = each(session, &ids, |text| remove(session, text, with_snapshots)).await;
        if self.all && self.snapshots {
            remove_snapshots(session, None).await?;
        }
        Ok(exit)
    }
}

async fn remove(session: &Session, text: String, with_snapshots: bool) -> Result<(), Fault> {
    let id = sandbox(session, &text).await?;
    let what = format!("cannot remove sandbox `{text}`");
    session.client.delete(&id).await.map_err(|error| refused(&what, error))?;
    if session.form == Form::Text {
        output::data(&format!("{id} deleted\n"));
    }
    if with_snapshots {
        remove_snapshots(session, Some(&id)).await?;
    }
    Ok(())
}

async fn remove_snapshots(session: &Session, of: Option<&str>) -> Result<(), Fault> {
    for info in resolve::snapshots(&session.client, of).await? {
        let what = format!("cannot remove snapshot `{}`", info.id);
        session.client.delete_snapshot(&info.id).await.map_err(|error| refused(&what, error))?;
        if session.form == Form::Text {
            output::data(&format!("{} deleted\n", info.id));
        }
    }
    Ok(())
}
