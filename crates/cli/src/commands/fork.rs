//! `fork`: copies of a running sandbox.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::progress::during;
use crate::text::{count, duration, pair};
use branchbox_api::{ForkAnswer, ForkRequest};
use clap::Args;
use std::time::Duration;

/// Copy a running sandbox and print the copies' ids.
///
/// The source stands still for the capture and runs on. Copies have its files, its memory and its processes, and see
/// nothing of each other.
///
/// Example: `branchbox fork web --count 4`
#[derive(Debug, Args)]
pub struct ForkArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// How many copies
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub count: u32,
    /// Name of the copy; of several, name-1, name-2, …
    #[arg(long)]
    pub name: Option<String>,
    /// A label instead of the source's; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Keep the snapshot the copies were made from
    #[arg(long)]
    pub keep_snapshot: bool,
}

impl ForkArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let request = ForkRequest {
            count: Some(self.count),
            name: self.name,
            labels: (!self.labels.is_empty()).then(|| self.labels.into_iter().collect()),
            keep_snapshot: self.keep_snapshot,
            account: None,
        };
        let what = format!("cannot fork sandbox `{}`", self.sandbox);
        let answer = during(session.form, "copying", session.client.fork(&id, &request))
            .await
            .map_err(|error| refused(&what, error))?;
        match session.form {
            Form::Json => output::json(&answer),
            Form::Text => {
                answer.sandboxes.iter().for_each(|copy| output::data(&format!("{}\n", copy.id)));
                output::note(&remark(&answer));
            }
        }
        Ok(Exit::Done)
    }
}

/// What people like to know and scripts do not.
fn remark(answer: &ForkAnswer) -> String {
    let mut text = count(answer.sandboxes.len(), "copy").replace("copys", "copies");
    text.push_str(&format!(" in {}", duration(Duration::from_micros(answer.timings.server_us))));
    if let Some(pause) = answer.timings.pause_us {
        text.push_str(&format!(", the source paused {}", duration(Duration::from_micros(pause))));
    }
    if let Some(snapshot) = &answer.snapshot {
        text.push_str(&format!(", snapshot {}", snapshot.id));
    }
    text.push('\n');
    for note in &answer.notes {
        text.push_str(&format!("note: {}\n", crate::fault::printable(&note.detail)));
    }
    text
}
