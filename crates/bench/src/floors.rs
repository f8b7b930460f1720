//! What this machine needs for the primitive beneath an operation, measured in the same run.
//!
//! A row without its floor says more about the machine than about the product.

use crate::stats::Summary;
use anyhow::{Context, Result, ensure};
use branchbox_client::Client;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Samples of each floor.
const SAMPLES: usize = 20;

/// Median floors by name.
pub type Floors = BTreeMap<&'static str, Summary>;

/// Measures all floors; `memory_mib` is what a capture of the measured sandbox has to move.
pub async fn measure(client: &Client, state_dir: &Path, memory_mib: u32) -> Result<Floors> {
    let bytes = memory_mib as usize * 1024 * 1024;
    let mut floors = Floors::new();
    let mut keep = |name, times: Vec<Duration>| Summary::of_times(&times).map(|summary| floors.insert(name, summary));
    keep("round_trip", round_trips(client).await?);
    keep("spawn", repeat(|| run("true", &[]))?);
    keep("namespaces", repeat(|| run("unshare", &["--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "true"]))?);
    keep("copy_memory", repeat(|| copy_memory(bytes))?);
    keep("write_file", repeat(|| write_file(state_dir, bytes))?);
    Ok(floors)
}

async fn round_trips(client: &Client) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        let began = Instant::now();
        client.me().await.context("ask the node who we are")?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn repeat(mut once: impl FnMut() -> Result<Duration>) -> Result<Vec<Duration>> {
    (0..SAMPLES).map(|_| once()).collect()
}

fn run(program: &str, words: &[&str]) -> Result<Duration> {
    let began = Instant::now();
    let status = Command::new(program).args(words).stdin(Stdio::null()).status().context(program.to_owned())?;
    ensure!(status.success(), "{program} ended with {status}");
    Ok(began.elapsed())
}

/// Fills fresh anonymous memory from memory that is there: what a restore by copying cannot go below.
fn copy_memory(bytes: usize) -> Result<Duration> {
    let source = vec![1_u8; bytes];
    let began = Instant::now();
    let copy = source.clone();
    let took = began.elapsed();
    ensure!(std::hint::black_box(&copy).last() == Some(&1), "the copy is wrong");
    Ok(took)
}

/// Writes a fresh file beside the state directory's own: what a capture by copying cannot go below.
fn write_file(state_dir: &Path, bytes: usize) -> Result<Duration> {
    let content = vec![1_u8; bytes];
    let mut file = tempfile::tempfile_in(state_dir).context("make a file in the state directory")?;
    let began = Instant::now();
    file.write_all(&content).context("write the file")?;
    Ok(began.elapsed())
}
