//! `events` and `audit`: what has happened on a node.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::table::Table;
use branchbox_api::EventData;
use branchbox_client::EventQuery;
use clap::Args;

/// Show what has become of sandboxes and snapshots, newest first.
///
/// Example: `branchbox events --sandbox web`
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Only those of this sandbox: id, name, or at least 6 characters an id begins with
    #[arg(long)]
    pub sandbox: Option<String>,
    /// Only those of this type, such as sandbox.paused
    #[arg(long = "type", value_name = "TYPE")]
    pub kind: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub limit: u32,
}

/// Show who changed what, newest first.
///
/// Example: `branchbox audit --action sandbox.deleted`
#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only this action
    #[arg(long)]
    pub action: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub limit: u32,
}

impl EventsArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let resource = match &self.sandbox {
            Some(text) => Some(sandbox(session, text).await?),
            None => None,
        };
        let query = EventQuery { resource, kind: self.kind, limit: self.limit };
        let page = session.client.events(&query).await.map_err(|error| refused("cannot read the events", error))?;
        if session.form == Form::Json {
            output::json(&page);
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["TIME", "EVENT", "NAME", "ID"]);
        for event in page.data {
            let name = match event.data {
                EventData::Sandbox(sandbox) => sandbox.name,
                EventData::Snapshot(snapshot) => snapshot.name,
            };
            let time = event.created_at.to_string();
            table.row(vec![time, event.kind, name.unwrap_or_default(), event.resource_id]);
        }
        output::data(&table.text());
        Ok(Exit::Done)
    }
}

impl AuditArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let asked = session.client.audit(self.action.as_deref(), self.limit).await;
        let page = asked.map_err(|error| refused("cannot read the audit log", error))?;
        if session.form == Form::Json {
            output::json(&page);
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["TIME", "ACTION", "WHO", "WHAT"]);
        for line in page.events {
            let who = line.actor.name.or(line.actor.id).unwrap_or(line.actor.kind);
            table.row(vec![line.at.to_string(), line.action, who, line.target.id]);
        }
        output::data(&table.text());
        Ok(Exit::Done)
    }
}
