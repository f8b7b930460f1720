//! The benchmark program: what a user waits for, with the machine's own floors of the same run beside it.
//!
//! It starts the real program with a state directory of its own and talks to it as any client does. Every timed operation
//! is followed by a check of the state it should have produced; a wrong state ends the run, so no number is of a broken
//! operation. One JSON line per row goes to the file that `--out` names, a table for people to standard output.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line program talks to a person")]

mod floors;
mod machine;
mod rows;
mod stats;
mod table;

use anyhow::{Context, Result};
use branchbox_client::Client;
use branchbox_testkit::{NodeOptions, NodeProcess};
use clap::Parser;
use std::io::Write;
use std::path::PathBuf;

/// Measure creates, commands, snapshots, forks and restores
#[derive(Parser)]
struct Arguments {
    /// Rows to measure, all by default
    #[arg(long, value_delimiter = ',', value_enum)]
    rows: Vec<rows::Row>,
    /// Timed operations per row
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// MiB of written memory that the measured sandbox holds
    #[arg(long, default_value_t = 64)]
    memory_mib: u32,
    /// Where the JSON lines go
    #[arg(long, default_value = "target/bench.jsonl")]
    out: PathBuf,
    /// Where the state directory is made; its file system is part of what is measured
    #[arg(long)]
    state_in: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = NodeOptions { parent: arguments.state_in.clone(), ..NodeOptions::default() };
    let mut node = NodeProcess::start_with(options)?;
    let client = Client::tcp(&node.url, Some(node.key.clone()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the runtime")?;
    let plan = rows::Plan {
        rows: arguments.rows,
        rounds: arguments.rounds.max(1),
        memory_mib: arguments.memory_mib,
        state_dir: node.state_dir.clone(),
    };
    let measured = runtime.block_on(rows::measure(&client, &plan))?;
    node.stop()?;
    let lines = measured.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    let mut file = fs_err::OpenOptions::new().create(true).append(true).open(&arguments.out)?;
    writeln!(file, "{}", lines.join("\n"))?;
    print!("{}", table::render(&measured));
    println!("\nJSON lines appended to {}", arguments.out.display());
    Ok(())
}
