//! `run`: a command in a fresh sandbox, which goes with it.

use super::create::CreateArgs;
use super::exec::{command_of, piped_input, show_stream};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output;
use crate::progress::during;
use branchbox_api::{ExecRequest, TIMEOUT_MS_MAX};
use branchbox_client::Wait;
use clap::Args;

/// Run a command in a fresh sandbox, and end as it does.
///
/// The sandbox is removed afterwards, unless `--keep` says otherwise. `--timeout` is the sandbox's time limit.
///
/// Example: `branchbox run --memory 1G -- 'pip list | wc -l'`
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Keep the sandbox, and print its id on standard error
    #[arg(long)]
    pub keep: bool,
    /// How the sandbox is made.
    #[command(flatten)]
    pub create: CreateArgs,
    /// The command
    #[arg(last = true, required = true)]
    pub command: Vec<String>,
}

impl RunArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let input = piped_input()?;
        let request = self.create.request(session).await?;
        let made = during(session.form, "starting a sandbox", session.client.create(&request, Wait::UntilReady)).await;
        let made = made.map_err(|error| refused("cannot create a sandbox", error))?;
        let (command, argv) = command_of(self.command);
        let request = ExecRequest {
            command,
            argv,
            stdin_base64: input.map(|bytes| branchbox_api::base64::encode(&bytes)),
            timeout_ms: Some(TIMEOUT_MS_MAX),
            ..ExecRequest::default()
        };
        let what = "cannot run the command";
        let ended = tokio::select! {
            ended = async {
                let mut stream =
                    session.client.exec_stream(&made.id, &request).await.map_err(|error| refused(what, error))?;
                show_stream(&mut stream, what).await
            } => ended,
            _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
        };
        if self.keep {
            output::note(&format!("{}\n", made.id));
        } else {
            let what = format!("cannot remove sandbox `{}`", made.id);
            session.client.delete(&made.id).await.map_err(|error| refused(&what, error))?;
        }
        ended
    }
}
