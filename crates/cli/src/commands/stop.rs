//! `stop`: ends a sandbox's processes.

use super::{sandbox, show_state};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use clap::Args;

/// End a sandbox's processes; its files stay until `rm`.
///
/// Example: `branchbox stop web`
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
}

impl StopArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot stop sandbox `{}`", self.sandbox);
        let info = session.client.stop(&id).await.map_err(|error| refused(&what, error))?;
        show_state(session.form, &info);
        Ok(Exit::Done)
    }
}
