//! What ran, what was skipped and why, and how long each part took.

use std::time::{Duration, Instant};

/// How a part ended.
pub enum Outcome {
    /// It ran and found nothing wrong; the note counts what ran.
    Passed(String),
    /// It ran and found something wrong.
    Failed(String),
}

/// One part's line.
struct Row {
    name: &'static str,
    outcome: Outcome,
    took: Duration,
}

/// The whole run.
pub struct Report {
    rows: Vec<Row>,
    skipped: Vec<String>,
    started: Instant,
}

impl Report {
    pub fn new() -> Self {
        Self { rows: Vec::new(), skipped: Vec::new(), started: Instant::now() }
    }

    /// Runs one part, prints its heading and keeps how it ended.
    pub fn part(&mut self, name: &'static str, run: impl FnOnce(&mut Skips) -> anyhow::Result<String>) -> bool {
        println!("\n── {name} ──");
        let started = Instant::now();
        let mut skips = Skips::default();
        let outcome = match run(&mut skips) {
            Ok(note) => Outcome::Passed(note),
            Err(error) => {
                eprintln!("{name} failed: {error:#}");
                Outcome::Failed(format!("{error:#}"))
            }
        };
        let passed = matches!(outcome, Outcome::Passed(_));
        self.skipped.extend(skips.0.into_iter().map(|skip| format!("{name}: {skip}")));
        self.rows.push(Row { name, outcome, took: started.elapsed() });
        passed
    }

    /// Names a part that was left out, with the reason.
    pub fn left_out(&mut self, name: &'static str, why: &str) {
        self.skipped.push(format!("{name}: {why}"));
    }

    /// Prints the summary and returns the names of the parts that failed.
    pub fn close(self) -> Vec<&'static str> {
        println!("\n── summary ──");
        for row in &self.rows {
            let (mark, note) = match &row.outcome {
                Outcome::Passed(note) => ("ok    ", note),
                Outcome::Failed(note) => ("FAILED", note),
            };
            println!("{mark} {:<10} {:>7.1} s  {}", row.name, row.took.as_secs_f64(), first_line(note));
        }
        for skip in &self.skipped {
            println!("skipped {skip}");
        }
        if self.skipped.is_empty() {
            println!("nothing was skipped");
        }
        println!("total {:.1} s", self.started.elapsed().as_secs_f64());
        let failed = |row: &&Row| matches!(row.outcome, Outcome::Failed(_));
        self.rows.iter().filter(failed).map(|row| row.name).collect()
    }
}

/// What a part skipped for a reason that the machine gives.
#[derive(Default)]
pub struct Skips(Vec<String>);

impl Skips {
    pub fn add(&mut self, what: impl Into<String>) {
        self.0.push(what.into());
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
