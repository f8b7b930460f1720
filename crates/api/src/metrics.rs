//! What a sandbox uses over time.

use branchbox_model::{SandboxState, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A range of `GET …/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[expect(missing_docs, reason = "the words are the wire contract's")]
pub enum MetricsRange {
    #[serde(rename = "15m")]
    Quarter,
    #[serde(rename = "1h")]
    Hour,
    #[serde(rename = "6h")]
    SixHours,
    #[serde(rename = "24h")]
    Day,
    #[serde(rename = "7d")]
    Week,
    #[serde(rename = "30d")]
    Month,
}

/// `GET …/metrics`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metrics {
    /// The sandbox.
    pub sandbox_id: String,
    /// The range asked for.
    pub range: MetricsRange,
    /// Seconds that one point stands for.
    pub step_seconds: u32,
    /// Where the range begins.
    pub since: Timestamp,
    /// Where it ends: now.
    pub until: Timestamp,
    /// The sandbox's processors.
    pub vcpu: u32,
    /// Most memory it may hold.
    pub memory_limit_bytes: u64,
    /// Most bytes its files may have.
    pub disk_limit_bytes: u64,
    /// Its state.
    pub state: SandboxState,
    /// The newest reading.
    pub latest: Option<MetricsPoint>,
    /// Oldest first; none for steps in which nothing was read.
    pub points: Vec<MetricsPoint>,
}

/// What was read within one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MetricsPoint {
    /// Where the step begins; of the newest reading, when it was made.
    pub at: Timestamp,
    /// Of all its processors, on average.
    pub cpu_percent: f64,
    /// Processors in use, on average.
    pub cpu_cores: f64,
    /// Of all its processors, at most.
    pub cpu_peak_percent: f64,
    /// Memory, on average.
    pub memory_bytes: u64,
    /// Memory, at most.
    pub memory_peak_bytes: u64,
    /// Readings in it.
    pub samples: u32,
}
