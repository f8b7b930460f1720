//! `completions` and `man`: what a shell and a reader need, from the one definition of the command line.

use crate::args::Cli;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::path::PathBuf;

/// Print a shell's completions.
///
/// Example: `branchbox completions bash > /etc/bash_completion.d/branchbox`
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Print the manual page, or write one for each command.
///
/// Example: `branchbox man | man -l -`
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Write them into this directory instead
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Print the reference of all commands as Markdown
    #[arg(long, hide = true, conflicts_with = "dir")]
    pub markdown: bool,
    /// Print the OpenAPI document
    #[arg(long, hide = true, conflicts_with_all = ["dir", "markdown"])]
    pub openapi: bool,
}

impl CompletionsArgs {
    /// Runs the command.
    pub fn run(self) -> Exit {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "branchbox", &mut text);
        output::raw(false, &text);
        Exit::Done
    }
}

impl ManArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn run(self) -> Result<Exit, Fault> {
        let failed = |error: std::io::Error| Fault::failed("cannot write the manual").because(&error);
        if self.markdown {
            output::data(&crate::reference::markdown());
            return Ok(Exit::Done);
        }
        if self.openapi {
            output::data(&branchbox_server::openapi());
            return Ok(Exit::Done);
        }
        match self.dir {
            Some(dir) => {
                fs_err::create_dir_all(&dir).map_err(failed)?;
                clap_mangen::generate_to(Cli::command(), &dir).map_err(failed)?;
            }
            None => {
                let mut text = Vec::new();
                clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(failed)?;
                output::raw(false, &text);
            }
        }
        Ok(Exit::Done)
    }
}
