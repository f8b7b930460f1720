//! `shell`: a terminal in a sandbox.

use super::sandbox;
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::output;
use crate::signals::Signals;
use crate::terminal::{self, Raw};
use branchbox_client::{Keyboard, Shown, TerminalRequest};
use bytes::Bytes;
use clap::Args;
use std::io::Read as _;
use tokio::signal::unix::{SignalKind, signal};

/// Bytes of input that are read at once.
const INPUT_BYTES: usize = 16 * 1024;
/// What the end of input is on a terminal: Ctrl-D.
const END_OF_INPUT: &[u8] = b"\x04";

/// Open a terminal in a sandbox.
///
/// Ends with the shell's own exit code. A shell whose connection breaks runs on, and can be gone back to with --process.
///
/// Example: `branchbox shell web`
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// A script to run instead of a login shell
    #[arg(long)]
    pub command: Option<String>,
    /// Working directory [default: /workspace]
    #[arg(long)]
    pub cwd: Option<String>,
    /// Run as the sandbox's root
    #[arg(long)]
    pub root: bool,
    /// Go back to a process on a terminal, as `ps` shows it
    #[arg(long, value_name = "ID", conflicts_with_all = ["command", "cwd", "root"])]
    pub process: Option<String>,
}

impl ShellArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused, and a connection that broke.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot open a terminal in sandbox `{}`", self.sandbox);
        let request = TerminalRequest {
            size: terminal::size(),
            command: self.command,
            cwd: self.cwd,
            user: self.root.then(|| "root".to_owned()),
            process: self.process,
        };
        let mut signals = Signals::listen()?;
        let failed = |error| Fault::new(Exit::Internal, "cannot listen for signals").because(&error);
        let mut resized = signal(SignalKind::window_change()).map_err(failed)?;
        let mut opened = session.client.terminal(&id, &request).await.map_err(|error| refused(&what, error))?;
        let again = |fault: Fault| match &opened.process_id {
            Some(process) => fault.hint(format!(
                "it runs on; go back to it: branchbox shell {} --process {}",
                self.sandbox,
                printable(process)
            )),
            None => fault,
        };
        let _raw = Raw::begin();
        let keyboard = opened.keyboard.clone();
        std::thread::spawn(move || type_all(&keyboard));
        loop {
            tokio::select! {
                shown = opened.screen.next() => match shown.map_err(|error| again(refused("the terminal broke off", error)))? {
                    Some(Shown::Bytes(bytes)) => output::raw(false, &bytes),
                    Some(Shown::Exit(code)) => return Ok(Exit::of_command(code.map(i64::from), false)),
                    None => return Err(again(Fault::failed("the terminal was closed"))),
                },
                _ = resized.recv() => if let Some(size) = terminal::size() {
                    opened.keyboard.resize(size);
                },
                () = signals.next() => return Ok(Exit::Interrupted),
            }
        }
    }
}

/// Sends what is typed or piped in. A thread of its own, that the end of the process ends: a read from a terminal cannot
/// be called off.
fn type_all(keyboard: &Keyboard) {
    let mut buffer = vec![0; INPUT_BYTES];
    let mut stdin = std::io::stdin().lock();
    while let Ok(count) = stdin.read(&mut buffer) {
        let keys = if count == 0 { Bytes::from_static(END_OF_INPUT) } else { Bytes::copy_from_slice(&buffer[..count]) };
        if !keyboard.press_blocking(keys) || count == 0 {
            return;
        }
    }
}
