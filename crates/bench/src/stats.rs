//! Samples of one thing and what is told of them.

use serde::Serialize;
use std::time::Duration;

/// Below this many samples the 99th percentile is a guess and is left out.
const P99_SAMPLES_MIN: usize = 200;

/// Microseconds, or bytes where the row says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Samples.
    pub n: usize,
    /// Smallest.
    pub min: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile, from enough samples.
    pub p99: Option<u64>,
    /// Largest.
    pub max: u64,
}

impl Summary {
    /// Of at least one sample.
    pub fn of(mut samples: Vec<u64>) -> Option<Self> {
        samples.sort_unstable();
        let (min, max) = (*samples.first()?, *samples.last()?);
        let rank = |percent: usize| samples[(samples.len() * percent).div_ceil(100).max(1) - 1];
        let p99 = (samples.len() >= P99_SAMPLES_MIN).then(|| rank(99));
        Some(Self { n: samples.len(), min, p50: rank(50), p90: rank(90), p99, max })
    }

    /// Of at least one time, in microseconds.
    pub fn of_times(times: &[Duration]) -> Option<Self> {
        Self::of(times.iter().map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn ranks_are_samples() {
        let summary = Summary::of((1..=10).collect()).expect("samples");
        assert_eq!((summary.min, summary.p50, summary.p90, summary.p99, summary.max), (1, 5, 9, None, 10));
        assert_eq!(Summary::of(vec![7]).map(|summary| summary.p90), Some(7));
        assert_eq!(Summary::of(Vec::new()), None);
        assert_eq!(Summary::of((1..=200).collect()).and_then(|summary| summary.p99), Some(198));
    }
}
