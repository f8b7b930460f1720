//! What an image runs when a sandbox is made from it: its own command, or one that was said when it was made.
//!
//! It runs once, at the create: a fork or a restored snapshot has it in its memory, a restarted sandbox does not run it.

use super::Image;
use crate::error::NodeError;
use crate::exec::{Process, exit_of};
use crate::node::Node;
use crate::spawn::{Kind, spawn_spec};
use branchbox_api::image::{ImageStart, StartCommand};

use branchbox_api::{ExecRequest, StartState, Started};
use branchbox_dockerfile::{Config, start_of};
use std::time::{Duration, Instant};

/// How long it may take to be ready when nothing is said.
const READY_SECONDS: u32 = 60;
/// Between two looks whether it is.
const READY_POLL: Duration = Duration::from_millis(100);
/// How long one look may take.
const LOOK_MS: u64 = 10_000;
/// What an image for people begins with: it ends at once where nobody types.
const SHELLS: [&str; 5] = ["sh", "bash", "ash", "dash", "zsh"];
const ROOT: &str = "root";

/// What an image's configuration says that it runs, and as whom.
pub(super) fn of_config(config: &serde_json::Value) -> Option<(ImageStart, String)> {
    let config = Config::from_oci(config.to_string().as_bytes()).ok()?;
    let start = start_of(&config)?;
    let program = start.argv.first()?.rsplit('/').next()?;
    if start.argv.len() == 1 && SHELLS.contains(&program) {
        return None;
    }
    let seconds = start.ready_timeout_ms.map(|ms| u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX).max(1));
    let made = ImageStart {
        command: StartCommand::Words(start.argv),
        ready_port: None,
        ready_command: start.ready.map(StartCommand::Words),
        ready_timeout_seconds: seconds,
    };
    Some((made, config.user.unwrap_or_else(|| ROOT.into())))
}

/// What a new sandbox runs.
#[derive(Debug, Clone)]
pub(crate) struct ToStart {
    start: ImageStart,
    /// Of the image; the sandbox's own where the command is not the image's.
    user: Option<String>,
}

impl Image {
    pub(crate) fn to_start(&self) -> Option<ToStart> {
        Some(ToStart { start: self.start.clone()?, user: self.start_user.clone() })
    }
}

fn request(command: &StartCommand) -> ExecRequest {
    match command {
        StartCommand::Shell(text) => ExecRequest { command: Some(text.clone()), ..ExecRequest::default() },
        StartCommand::Words(words) => ExecRequest { argv: Some(words.clone()), ..ExecRequest::default() },
    }
}

impl Node {
    /// Starts it, and waits until it is ready if it says when that is.
    pub(crate) async fn start_image(&self, sandbox: &str, what: &ToStart) -> Started {
        let begun = Instant::now();
        match self.try_start_image(sandbox, what, begun).await {
            Ok(started) => started,
            Err(error) => {
                tracing::warn!(sandbox, %error, "what the image runs could not be started");
                Started { state: StartState::NotRunning, process_id: None, exit_code: None, ready_ms: None }
            }
        }
    }

    async fn try_start_image(&self, sandbox: &str, what: &ToStart, begun: Instant) -> Result<Started, NodeError> {
        let process = self.start_for_image(sandbox, what, &what.start.command, Kind::Process).await?;
        let started = |state| Started { state, process_id: Some(process.id()), exit_code: None, ready_ms: None };
        if what.start.ready_port.is_none() && what.start.ready_command.is_none() {
            return Ok(started(StartState::Started));
        }
        let seconds = what.start.ready_timeout_seconds.unwrap_or(READY_SECONDS);
        let deadline = begun + Duration::from_secs(seconds.into());
        loop {
            let (state, exit_code) = exit_of(process.info().await?.state);
            if state != branchbox_api::ProcessState::Running {
                return Ok(Started { exit_code, ..started(StartState::Exited) });
            }
            if self.is_image_ready(sandbox, what).await? {
                let ready_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Ok(Started { ready_ms: Some(ready_ms), ..started(StartState::Ready) });
            }
            if Instant::now() >= deadline {
                return Ok(started(StartState::Timeout));
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    async fn start_for_image(
        &self,
        sandbox: &str,
        what: &ToStart,
        command: &StartCommand,
        kind: Kind,
    ) -> Result<Process, NodeError> {
        let record = self.live(sandbox)?.record();
        let mut spec = spawn_spec(&record, request(command), kind);
        if let Some(user) = &what.user {
            // A user that the image does not have is a mistake of its own; its files are root's then.
            spec.user = self.owner_in(sandbox, user).await?.unwrap_or((0, 0));
        }
        self.start_spec(sandbox, spec).await
    }

    async fn is_image_ready(&self, sandbox: &str, what: &ToStart) -> Result<bool, NodeError> {
        if let Some(port) = what.start.ready_port
            && self.reach(sandbox)?.dial(port).await.is_err()
        {
            return Ok(false);
        }
        let Some(command) = &what.start.ready_command else { return Ok(true) };
        let process = self.start_for_image(sandbox, what, command, Kind::Command).await?;
        let answered = tokio::time::timeout(Duration::from_millis(LOOK_MS), process.wait()).await;
        Ok(matches!(answered, Ok(Ok(result)) if result.exit_code == Some(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_images_command_runs_unless_it_is_a_mere_shell() {
        assert_eq!(of_config(&json!({ "Cmd": ["/bin/bash"] })), None);
        assert_eq!(of_config(&json!(null)), None);
        let (start, user) = of_config(&json!({ "Entrypoint": ["/go"], "Cmd": ["-x"], "User": "me" })).expect("a start");
        assert_eq!((start.command, user.as_str()), (StartCommand::Words(vec!["/go".into(), "-x".into()]), "me"));
        let (start, user) = of_config(&json!({ "Cmd": ["sh", "-c", "serve"] })).expect("a start");
        assert_eq!((start.ready_command, user.as_str()), (None, "root"));
    }
}
