//! What each sandbox uses over time: read from its keeper every few seconds into rings of a fixed size, one a range.
//!
//! The rings are memory of the node: its restart begins them anew, and a deleted sandbox has none. What was used in all
//! is metered apart and is never lost (`meter`).

use crate::error::NodeError;
use crate::live::Live;
use crate::node::{Inner, Node};
use branchbox_api::{Metrics, MetricsPoint, MetricsRange};
use branchbox_model::Timestamp;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Seconds between two readings, which is the step of the shortest range.
const SAMPLE_SECONDS: u32 = 5;
/// Rounds are not closer than this, however short the node's seconds are.
const SAMPLE_MIN: Duration = Duration::from_millis(500);
/// Readings are not closer than this, so that none is about nothing.
const APART_MS: i64 = 500;
/// Most points of one range.
const POINTS_MAX: usize = 181;
/// Seconds of each range, and of its step.
const RANGES: [(MetricsRange, i64, i64); 6] = [
    (MetricsRange::Quarter, 900, 5),
    (MetricsRange::Hour, 3600, 20),
    (MetricsRange::SixHours, 21_600, 120),
    (MetricsRange::Day, 86_400, 480),
    (MetricsRange::Week, 604_800, 3600),
    (MetricsRange::Month, 2_592_000, 14_400),
];

/// One reading, as the difference to the one before.
#[derive(Debug, Clone, Copy)]
struct Reading {
    at: Timestamp,
    /// Thousandths of a processor.
    millicores: u64,
    memory: u64,
}

/// Readings of one step, added up.
#[derive(Debug, Clone, Copy)]
struct Step {
    begin: i64,
    millicores: u64,
    millicores_peak: u64,
    memory: u64,
    memory_peak: u64,
    samples: u32,
}

/// What is known of one sandbox.
#[derive(Debug, Default)]
struct Rings {
    /// When its processor time was last read, and how much that was.
    last: Option<(i64, u64)>,
    latest: Option<Reading>,
    rings: [VecDeque<Step>; 6],
}

/// The rings of a sandbox, and the right to read.
#[derive(Debug, Default)]
pub(crate) struct Series {
    rings: Mutex<Rings>,
    reading: tokio::sync::Mutex<()>,
}

impl Rings {
    /// Takes in what a keeper said; a keeper that begins anew counts from nothing.
    fn take(&mut self, now: Timestamp, cpu_us: u64, memory: u64) {
        let last = self.last.replace((now.0, cpu_us));
        let Some((at, before)) = last.filter(|(at, before)| *at < now.0 && *before <= cpu_us) else { return };
        // Microseconds of processor time in a millisecond are thousandths of a processor.
        let millicores = (cpu_us - before) / u64::try_from(now.0 - at).unwrap_or(1).max(1);
        let reading = Reading { at: now, millicores, memory };
        self.latest = Some(reading);
        for (ring, (_, _, step)) in self.rings.iter_mut().zip(RANGES) {
            add(ring, step * 1000, reading);
        }
    }
}

fn add(ring: &mut VecDeque<Step>, step_ms: i64, reading: Reading) {
    let begin = reading.at.0 - reading.at.0.rem_euclid(step_ms);
    match ring.back_mut() {
        // A clock that went back adds to the newest step.
        Some(step) if step.begin >= begin => {
            step.millicores = step.millicores.saturating_add(reading.millicores);
            step.memory = step.memory.saturating_add(reading.memory);
            step.millicores_peak = step.millicores_peak.max(reading.millicores);
            step.memory_peak = step.memory_peak.max(reading.memory);
            step.samples = step.samples.saturating_add(1);
        }
        _ => {
            let Reading { millicores, memory, .. } = reading;
            ring.push_back(Step {
                begin,
                millicores,
                millicores_peak: millicores,
                memory,
                memory_peak: memory,
                samples: 1,
            });
            if ring.len() > POINTS_MAX {
                ring.pop_front();
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
fn point(step: &Step, vcpu: u32) -> MetricsPoint {
    let samples = u64::from(step.samples.max(1));
    let cores = step.millicores as f64 / samples as f64 / 1000.0;
    let percent = |cores: f64| cores * 100.0 / f64::from(vcpu.max(1));
    MetricsPoint {
        at: Timestamp(step.begin),
        cpu_percent: percent(cores),
        cpu_cores: cores,
        cpu_peak_percent: percent(step.millicores_peak as f64 / 1000.0),
        memory_bytes: step.memory / samples,
        memory_peak_bytes: step.memory_peak,
        samples: step.samples,
    }
}

/// Reads every running sandbox every few seconds, until the node goes down.
pub(crate) async fn run(node: Weak<Inner>, mut closing: watch::Receiver<bool>) {
    let Some(second) = node.upgrade().map(|inner| inner.config.second) else { return };
    let round = (second * SAMPLE_SECONDS).max(SAMPLE_MIN);
    loop {
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return,
            () = tokio::time::sleep(round) => {}
        }
        let Some(inner) = node.upgrade() else { return };
        for live in inner.all_live() {
            // Each by itself: a keeper in the middle of a capture holds up no other's reading.
            tokio::spawn(async move { read(&live).await });
        }
    }
}

/// Reads a sandbox, unless that is being done or was done just now.
async fn read(live: &Arc<Live>) {
    let Ok(_one) = live.series.reading.try_lock() else { return };
    let Some(machine) = live.machine_now() else { return };
    let last = live.series.rings.lock().unwrap_or_else(PoisonError::into_inner).last;
    if last.is_some_and(|(at, _)| (0..APART_MS).contains(&(Timestamp::now().0 - at))) {
        return;
    }
    match machine.keeper.usage().await {
        Ok(usage) => {
            let mut rings = live.series.rings.lock().unwrap_or_else(PoisonError::into_inner);
            rings.take(Timestamp::now(), usage.cpu_us, usage.memory_bytes);
        }
        Err(error) => tracing::debug!(sandbox = %live.id, %error, "its use is not known now"),
    }
}

impl Node {
    /// What a sandbox uses over time. It is read now, too; looking wakes nobody.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn metrics(&self, id: &str, range: MetricsRange) -> Result<Metrics, NodeError> {
        let live = self.live(id)?;
        read(&live).await;
        let (record, until) = (live.record(), Timestamp::now());
        let limits = record.detail.limits;
        let vcpu = limits.vcpus.0;
        let which = RANGES.iter().position(|(known, ..)| *known == range).unwrap_or(0);
        let (_, seconds, step) = RANGES[which];
        let since = until.plus_seconds(-seconds);
        let rings = live.series.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let latest = rings.latest.map(|reading| {
            let mut one = VecDeque::new();
            add(&mut one, 1, reading);
            one.iter().map(|step| point(step, vcpu)).next()
        });
        let within = rings.rings[which].iter().filter(|point| point.begin + step * 1000 > since.0);
        Ok(Metrics {
            sandbox_id: record.id.to_string(),
            range,
            step_seconds: u32::try_from(step).unwrap_or(u32::MAX),
            since,
            until,
            vcpu,
            memory_limit_bytes: u64::from(limits.memory.0) << 20,
            disk_limit_bytes: u64::from(limits.disk.0) << 20,
            state: record.state,
            latest: latest.flatten(),
            points: within.map(|step| point(step, vcpu)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_are_differences_and_rings_are_bounded() {
        let mut rings = Rings::default();
        rings.take(Timestamp(0), 1_000_000, 7);
        assert!(rings.latest.is_none(), "one reading is no difference");
        rings.take(Timestamp(2000), 2_000_000, 10);
        rings.take(Timestamp(4000), 5_000_000, 20);
        let step = rings.rings[0][0];
        assert_eq!((step.millicores, step.millicores_peak, step.memory, step.memory_peak), (2000, 1500, 30, 20));
        let shown = point(&step, 2);
        assert_eq!((shown.samples, shown.memory_bytes), (2, 15));
        assert!((shown.cpu_cores - 1.0).abs() < 1e-9 && (shown.cpu_percent - 50.0).abs() < 1e-9);
        assert!((shown.cpu_peak_percent - 75.0).abs() < 1e-9);
        rings.take(Timestamp(6000), 10, 1);
        assert_eq!(rings.rings[0][0].samples, 2, "a keeper that begins anew is no difference");
        for n in 1..1000 {
            rings.take(Timestamp(6000 + n * 5000), 10, 1);
        }
        assert!(rings.rings.iter().all(|ring| ring.len() <= POINTS_MAX));
        assert_eq!(rings.rings[0].len(), POINTS_MAX);
    }
}
