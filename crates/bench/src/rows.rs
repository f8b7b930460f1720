//! The rows: what is timed, what is checked after each, and which floors stand beside it.

use crate::floors::{self, Floors};
use crate::machine::{self, Answer};
use crate::stats::Summary;
use anyhow::{Context, Result, ensure};
use branchbox_api::{CreateRequest, ExecRequest, ForkRequest, SandboxInfo, SnapshotRequest};
use branchbox_client::{Client, Wait};
use clap::ValueEnum;
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Operations before the first timed one.
const WARM_UPS: usize = 3;
/// Copies of the wide fork.
const WIDE: u32 = 16;

/// What can be measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Row {
    /// A new sandbox, until it runs
    Create,
    /// `true` in a running sandbox
    Exec,
    /// A memory snapshot: its pause and its whole call
    Snapshot,
    /// One copy: pause, call, first useful result
    Fork,
    /// Sixteen copies in one call
    Fork16,
    /// A sandbox from a snapshot, until it runs, and its first useful result
    Restore,
    /// Memory of the machine that one idle copy takes
    Memory,
}

/// What to measure, and how often.
pub struct Plan {
    /// All rows when empty.
    pub rows: Vec<Row>,
    /// Timed operations per row.
    pub rounds: usize,
    /// MiB that the measured sandbox holds.
    pub memory_mib: u32,
    /// Where the node keeps its state.
    pub state_dir: PathBuf,
}

/// One line of the result.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// What was measured.
    pub op: &'static str,
    /// `us` or `bytes`.
    pub unit: &'static str,
    /// MiB that the sandbox held.
    pub memory_mib: u32,
    /// The samples.
    pub value: Summary,
    /// Medians of the primitives beneath it, in microseconds, of this run.
    pub floors: Vec<(&'static str, u64)>,
    /// The machine's load when the row ended.
    pub load: String,
    /// Its kernel.
    pub kernel: String,
    /// The source's revision.
    pub revision: String,
}

/// Measures every row of the plan.
pub async fn measure(client: &Client, plan: &Plan) -> Result<Vec<Measured>> {
    let floors = floors::measure(client, &plan.state_dir, plan.memory_mib).await?;
    let mut run = Run { client, plan, floors, measured: Vec::new() };
    for row in Row::value_variants() {
        if plan.rows.is_empty() || plan.rows.contains(row) {
            eprintln!("measuring {row:?}");
            run.row(*row).await.with_context(|| format!("measure {row:?}"))?;
        }
    }
    Ok(run.measured)
}

struct Run<'a> {
    client: &'a Client,
    plan: &'a Plan,
    floors: Floors,
    measured: Vec<Measured>,
}

impl Run<'_> {
    async fn row(&mut self, row: Row) -> Result<()> {
        match row {
            Row::Create => self.create().await,
            Row::Exec => self.exec().await,
            Row::Snapshot => self.snapshot().await,
            Row::Fork => self.fork(1, ["fork pause", "fork return", "fork first result"]).await,
            Row::Fork16 => self.fork(WIDE, ["fork x16 pause", "fork x16 return", "fork x16 all results"]).await,
            Row::Restore => self.restore().await,
            Row::Memory => self.memory().await,
        }
    }

    async fn create(&mut self) -> Result<()> {
        let mut times = Vec::new();
        for round in 0..self.plan.rounds + WARM_UPS {
            let began = Instant::now();
            let made = self.client.create(&CreateRequest::default(), Wait::UntilReady).await?;
            keep(&mut times, round, began.elapsed());
            ensure!(self.run(&made.id, "id -un; pwd").await? == "runtime\n/workspace\n", "a new sandbox is wrong");
            self.client.delete(&made.id).await?;
        }
        self.times("create", &times, &["namespaces", "round_trip"])
    }

    async fn exec(&mut self) -> Result<()> {
        let made = self.client.create(&CreateRequest::default(), Wait::UntilReady).await?;
        let mut times = Vec::new();
        for round in 0..self.plan.rounds * 5 + WARM_UPS {
            let began = Instant::now();
            let said = self.run(&made.id, "echo 1").await?;
            keep(&mut times, round, began.elapsed());
            ensure!(said == "1\n", "the command said {said:?}");
        }
        self.client.delete(&made.id).await?;
        self.times("exec", &times, &["spawn", "round_trip"])
    }

    async fn snapshot(&mut self) -> Result<()> {
        let (source, mut last) = machine::start(self.client, self.plan.memory_mib).await?;
        let (mut pauses, mut returns) = (Vec::new(), Vec::new());
        for round in 0..self.plan.rounds + WARM_UPS {
            let began = Instant::now();
            let made = self.client.snapshot(&source.id, &SnapshotRequest::default()).await?;
            keep(&mut returns, round, began.elapsed());
            let pause = made.timings.as_ref().and_then(|timings| timings.pause_us).context("no pause was measured")?;
            keep(&mut pauses, round, Duration::from_micros(pause));
            last = self.source_is_unharmed(&source, &last).await?;
            self.client.delete_snapshot(&made.id).await?;
        }
        self.client.delete(&source.id).await?;
        self.times("snapshot pause", &pauses, &["write_file"])?;
        self.times("snapshot return", &returns, &["write_file", "round_trip"])
    }

    async fn fork(&mut self, count: u32, names: [&'static str; 3]) -> Result<()> {
        let (source, mut last) = machine::start(self.client, self.plan.memory_mib).await?;
        let (mut pauses, mut returns, mut firsts) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.rounds_of(count) + WARM_UPS {
            let request = ForkRequest { count: Some(count), ..ForkRequest::default() };
            let began = Instant::now();
            let answer = self.client.fork(&source.id, &request).await?;
            keep(&mut returns, round, began.elapsed());
            for copy in &answer.sandboxes {
                machine::check(self.client, &copy.id, &last).await?;
            }
            keep(&mut firsts, round, began.elapsed());
            let pause = answer.timings.pause_us.context("no pause was measured")?;
            keep(&mut pauses, round, Duration::from_micros(pause));
            ensure!(answer.sandboxes.len() == count as usize, "{} copies instead of {count}", answer.sandboxes.len());
            last = self.source_is_unharmed(&source, &last).await?;
            self.delete_all(&answer.sandboxes).await?;
        }
        self.client.delete(&source.id).await?;
        self.times(names[0], &pauses, &["write_file"])?;
        self.times(names[1], &returns, &["write_file", "copy_memory", "namespaces"])?;
        self.times(names[2], &firsts, &["write_file", "copy_memory", "namespaces", "spawn"])
    }

    async fn restore(&mut self) -> Result<()> {
        let (source, last) = machine::start(self.client, self.plan.memory_mib).await?;
        let snapshot = self.client.snapshot(&source.id, &SnapshotRequest::default()).await?;
        self.client.delete(&source.id).await?;
        let (mut returns, mut firsts) = (Vec::new(), Vec::new());
        for round in 0..self.plan.rounds + WARM_UPS {
            let request = CreateRequest { snapshot: Some(snapshot.id.clone()), ..CreateRequest::default() };
            let began = Instant::now();
            let made = self.client.create(&request, Wait::UntilReady).await?;
            keep(&mut returns, round, began.elapsed());
            machine::check(self.client, &made.id, &last).await?;
            keep(&mut firsts, round, began.elapsed());
            self.client.delete(&made.id).await?;
        }
        self.client.delete_snapshot(&snapshot.id).await?;
        self.times("restore return", &returns, &["copy_memory", "namespaces"])?;
        self.times("restore first result", &firsts, &["copy_memory", "namespaces", "spawn"])
    }

    async fn memory(&mut self) -> Result<()> {
        let (source, last) = machine::start(self.client, self.plan.memory_mib).await?;
        let before = available_bytes()?;
        let request = ForkRequest { count: Some(WIDE), ..ForkRequest::default() };
        let answer = self.client.fork(&source.id, &request).await?;
        let each = before.saturating_sub(available_bytes()?) / u64::from(WIDE);
        for copy in &answer.sandboxes {
            machine::check(self.client, &copy.id, &last).await?;
        }
        self.delete_all(&answer.sandboxes).await?;
        self.client.delete(&source.id).await?;
        self.push("memory per fork", "bytes", Summary::of(vec![each]), &[])
    }

    /// The source answers with the next number and the same memory.
    async fn source_is_unharmed(&self, source: &SandboxInfo, last: &Answer) -> Result<Answer> {
        machine::check(self.client, &source.id, last).await?;
        Ok(Answer { counter: last.counter + 1, digest: last.digest.clone() })
    }

    async fn run(&self, id: &str, command: &str) -> Result<String> {
        let request = ExecRequest { command: Some(command.into()), ..ExecRequest::default() };
        Ok(self.client.exec(id, &request).await?.stdout)
    }

    async fn delete_all(&self, sandboxes: &[SandboxInfo]) -> Result<()> {
        for sandbox in sandboxes {
            self.client.delete(&sandbox.id).await?;
        }
        Ok(())
    }

    /// A wide fork is as much work as many narrow ones.
    fn rounds_of(&self, count: u32) -> usize {
        if count == 1 { self.plan.rounds } else { self.plan.rounds.div_ceil(4) }
    }

    fn times(&mut self, op: &'static str, times: &[Duration], beneath: &[&'static str]) -> Result<()> {
        self.push(op, "us", Summary::of_times(times), beneath)
    }

    fn push(
        &mut self,
        op: &'static str,
        unit: &'static str,
        value: Option<Summary>,
        beneath: &[&'static str],
    ) -> Result<()> {
        let floor = |name: &&'static str| Some((*name, self.floors.get(name)?.p50));
        self.measured.push(Measured {
            op,
            unit,
            memory_mib: self.plan.memory_mib,
            value: value.with_context(|| format!("no sample of {op}"))?,
            floors: beneath.iter().filter_map(floor).collect(),
            load: first_words("/proc/loadavg", 3)?,
            kernel: first_words("/proc/sys/kernel/osrelease", 1)?,
            revision: revision(),
        });
        Ok(())
    }
}

fn keep(times: &mut Vec<Duration>, round: usize, time: Duration) {
    if round >= WARM_UPS {
        times.push(time);
    }
}

fn first_words(path: &str, count: usize) -> Result<String> {
    let text = fs_err::read_to_string(path)?;
    Ok(text.split_whitespace().take(count).collect::<Vec<_>>().join(" "))
}

fn available_bytes() -> Result<u64> {
    let text = fs_err::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("no MemAvailable")?;
    let kib: u64 = line.split_whitespace().next().unwrap_or_default().parse().context("read MemAvailable")?;
    Ok(kib * 1024)
}

fn revision() -> String {
    let output = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok().filter(|text| !text.is_empty()).unwrap_or_else(|| "unknown".into())
}
