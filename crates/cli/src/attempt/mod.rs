//! `branchbox try`: a step on the user's own directory, in a forked copy of a machine, kept only if it passes.
//!
//! The directory is the lower layer of an overlay ([`machine`]), so nothing on the host is written before the yes. A node
//! runs in this process on a temporary state directory ([`scratch`], [`stage`]) and is talked to like any other. The step
//! and its check run in the same copy ([`steps`]); when nothing runs any more, what changed is read from the copy's upper
//! and written back or not ([`settle`]). Everything a killed run leaves is gone with its keepers, or collected by the
//! next run.

mod directory;
mod environment;
mod gone;
mod home;
mod machine;
mod mask;
mod report;
mod scratch;
mod settle;
mod stage;
mod steps;
mod user;
mod voice;

use crate::args::Global;
use crate::commands::exec::command_of;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::Form;
use crate::signals::Signals;
use clap::Args;
use std::time::Instant;
use steps::Steps;
use voice::Voice;

/// Run a step in a copy of this directory's machine; keep its changes only if they pass.
///
/// The directory (in a git work tree, all of it) is seen at its own path, with your tools, without network, and is not
/// touched: the step's changes are listed and written back after a yes. One word after `--` is a `bash -c` script, several
/// are a program and its arguments. Without --verify the step's own exit decides.
///
/// Exit codes: 0 kept, 1 failed and nothing touched, 2 usage, 3 cannot run here, 4 passed but not written back, 5 the
/// directory changed meanwhile, 130 interrupted, 70 internal.
///
/// Example: `branchbox try --verify 'make test' -- ./upgrade.sh`
#[derive(Debug, Args)]
pub struct TryArgs {
    /// Decides, after a step that exits 0: a `bash -c` script run in the same copy
    #[arg(long, value_name = "CMD")]
    pub verify: Option<String>,
    /// Write back without asking
    #[arg(long, short)]
    pub yes: bool,
    /// Also write back files that your machine runs by itself, such as git hooks
    #[arg(long)]
    pub allow_hooks: bool,
    /// Give the step the whole network
    #[arg(long, conflicts_with = "allow")]
    pub online: bool,
    /// Give the step this host; may be repeated
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// Hide these files from the step; may be repeated
    #[arg(long, value_name = "GLOB")]
    pub mask: Vec<String>,
    /// Try the step in a copy of this sandbox instead of this directory
    #[arg(long, value_name = "ID", conflicts_with = "mask")]
    pub sandbox: Option<String>,
    /// The step
    #[arg(last = true, required = true)]
    pub step: Vec<String>,
}

impl TryArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever kept the attempt from reaching a verdict.
    pub fn run(self, global: &Global) -> Result<Exit, Fault> {
        let started = Instant::now();
        let voice = Voice::new(Form::of(global.json), started);
        let voice = if self.sandbox.is_some() { voice.aside() } else { voice };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Fault::new(Exit::Internal, "cannot start the runtime").because(&error))?;
        // Before the first line: who has seen it may interrupt.
        let signals = runtime.block_on(async { Signals::listen() })?;
        voice.head(&self.step.join(" "));
        if self.online || !self.allow.is_empty() {
            return Err(Fault::cannot_run("cannot give the step a network")
                .coded("network_rules_unavailable")
                .cause("this version has no gateway, and a sandbox without one has no way out")
                .hint("fetch what the step needs before, for example `cargo fetch` or `npm ci`, and try it offline"));
        }
        if self.sandbox.is_none() && !rustix::process::geteuid().is_root() {
            return Err(Fault::cannot_run("making a sandbox needs root").hint(sudo_line()));
        }
        let result = match self.sandbox.clone() {
            None => runtime.block_on(stage::here(self, signals, &voice)),
            Some(sandbox) => runtime.block_on(stage::in_sandbox(self, global, &sandbox, signals, &voice)),
        };
        // A question that nobody answered may still be waiting for a line.
        runtime.shutdown_background();
        result
    }

    fn steps(&self) -> Steps {
        let (command, argv) = command_of(self.step.clone());
        Steps { command, argv, verify: self.verify.clone(), cwd: None, env: std::collections::BTreeMap::new() }
    }
}

/// The line that runs this very command as root.
fn sudo_line() -> String {
    let exe = std::env::current_exe().map_or_else(|_| "branchbox".into(), |path| path.display().to_string());
    let exe = std::env::current_dir()
        .ok()
        .and_then(|cwd| exe.strip_prefix(&format!("{}/", cwd.display())).map(str::to_owned))
        .unwrap_or(exe);
    let words = std::iter::once(exe).chain(std::env::args().skip(1)).map(|word| quoted(&word));
    format!("sudo -E {}", words.collect::<Vec<_>>().join(" "))
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn the_sudo_line_can_be_pasted() {
        assert_eq!(quoted("target/release/branchbox"), "target/release/branchbox");
        assert_eq!(quoted("rm -rf ./*"), "'rm -rf ./*'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
