//! `metrics`: what a sandbox uses over time.

use super::{sandbox, word};
use crate::connect::{Session, refused};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::table::Table;
use crate::text::bytes;
use branchbox_api::MetricsPoint;
use clap::Args;

/// Show what a sandbox uses: now, and over a range of time.
///
/// Example: `branchbox metrics web --range 15m`
#[derive(Debug, Args)]
pub struct MetricsArgs {
    /// The sandbox: id, name, or at least 6 characters an id begins with
    pub sandbox: String,
    /// How far back
    #[arg(long, default_value = "1h", value_parser = ["15m", "1h", "6h", "24h", "7d", "30d"])]
    pub range: String,
}

impl MetricsArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// What the node refused.
    pub async fn run(self, session: &Session) -> Result<Exit, Fault> {
        let id = sandbox(session, &self.sandbox).await?;
        let what = format!("cannot read what sandbox `{}` uses", self.sandbox);
        let metrics = session.client.metrics(&id, &self.range).await.map_err(|error| refused(&what, error))?;
        if session.form == Form::Json {
            output::json(&metrics);
            return Ok(Exit::Done);
        }
        let mut table = Table::new(&["TIME", "CPU", "CPU PEAK", "MEMORY", "MEMORY PEAK"]);
        metrics.points.iter().for_each(|point| table.row(row(point.at.to_string(), point)));
        if let Some(latest) = &metrics.latest {
            table.row(row("now".into(), latest));
        }
        output::data(&table.text());
        let (cores, memory) = (metrics.vcpu, bytes(metrics.memory_limit_bytes));
        output::note(&format!("{}, of {cores} vCPU and {memory}\n", word(metrics.state)));
        Ok(Exit::Done)
    }
}

fn row(time: String, point: &MetricsPoint) -> Vec<String> {
    let percent = |share: f64| format!("{share:.1} %");
    let (cpu, peak) = (percent(point.cpu_percent), percent(point.cpu_peak_percent));
    vec![time, cpu, peak, bytes(point.memory_bytes), bytes(point.memory_peak_bytes)]
}
