//! Running other programs: shown before they run, failing with their name.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The repository's root, where every command runs.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// A command that runs in the repository's root.
pub fn command(program: &str, words: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(words).current_dir(root());
    command
}

/// Runs a command that shows its own output.
pub fn show(command: &mut Command) -> Result<()> {
    println!("$ {}", line_of(command));
    let status = command.status().with_context(|| format!("start {}", name_of(command)))?;
    ensure!(status.success(), "{} ended with {status}", name_of(command));
    Ok(())
}

/// Runs a command, shows its standard error as it comes, and returns that too.
pub fn show_and_keep(command: &mut Command) -> Result<(bool, Vec<String>)> {
    println!("$ {}", line_of(command));
    let mut child = command.stderr(Stdio::piped()).spawn().with_context(|| format!("start {}", name_of(command)))?;
    let mut lines = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n') {
            let line = String::from_utf8_lossy(&line.context("read the output")?).into_owned();
            eprintln!("{line}");
            lines.push(line);
        }
    }
    std::io::stderr().flush().ok();
    let status = child.wait().with_context(|| format!("wait for {}", name_of(command)))?;
    Ok((status.success(), lines))
}

/// Runs a command and returns what it printed.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("start {}", name_of(command)))?;
    ensure!(output.status.success(), "{} ended with {}", name_of(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program of this name is on the path.
pub fn have(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).any(|directory| directory.join(program).is_file())
}

fn name_of(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
