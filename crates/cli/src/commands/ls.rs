//! `ls`: the sandboxes of a node.

use super::{labels, word};
use crate::connect::Session;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::resolve::{self, Which};
use crate::table::Table;
use crate::text::{age, pair};
use branchbox_model::{SandboxState, Timestamp};
use clap::Args;

/// List sandboxes.
///
/// Those that run or still hold files; `--all` adds the ones that ended.
///
/// Example: `branchbox ls --label task=fix-1`
#[derive(Debug, Args)]
pub struct LsArgs {
    /// Also those that ended
    #[arg(long)]
    pub all: bool,
    /// Only those with this label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Only those in this state
    #[arg(long, value_parser = state)]
    pub state: Option<SandboxState>,
    /// Only ids, one a line
    #[arg(long, short)]
    pub quiet: bool,
}

impl LsArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let which = Which { name: None, labels: self.labels, state: self.state, ended_too: self.all };
        let found = resolve::sandboxes(&session.client, &which).await?;
        if session.form == Form::Json {
            output::json(&serde_json::json!({ "data": found, "nextCursor": null }));
            return Ok(Exit::Done);
        }
        if self.quiet {
            found.iter().for_each(|info| output::data(&format!("{}\n", info.id)));
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["ID", "NAME", "STATE", "VCPU", "MEMORY", "AGE", "LABELS"]);
        let now = Timestamp::now();
        for info in &found {
            let memory = format!("{} MiB", info.memory_mib);
            let name = info.name.clone().unwrap_or_default();
            let age = age(info.created_at, now);
            let labels = labels(&info.labels);
            table.row(vec![info.id.clone(), name, word(info.state), info.vcpu.to_string(), memory, age, labels]);
        }
        output::data(&table.text());
        if found.is_empty() {
            output::note("no sandboxes\n");
        }
        Ok(Exit::Done)
    }
}

/// A state by its word on the wire.
fn state(text: &str) -> Result<SandboxState, String> {
    let known = serde_json::from_value(serde_json::Value::String(text.to_owned()));
    known.map_err(|_| "one of starting, running, pausing, paused, resuming, stopping, stopped".into())
}
