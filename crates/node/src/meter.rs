//! What runs by the clock: metering, retention of snapshots, forgetting of old answers.
//!
//! Use is recorded as the difference between what a sandbox's cgroup says in all and what the catalog holds already,
//! so a node that was down in between loses nothing and counts nothing twice.

use crate::audit;
use crate::error::NodeError;
use crate::events;
use crate::info;
use crate::live::Live;
use crate::node::Inner;
use crate::snapshots;
use crate::uploads;
use branchbox_catalog::{Catalog, Session, SnapshotFilter, Usage};
use branchbox_model::{SnapshotState, Timestamp};
use branchbox_protocol::keeper;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Seconds between two rounds.
const ROUND_SECONDS: u32 = 10;
/// Rounds are not closer than this, however short the node's seconds are.
const ROUND_MIN: Duration = Duration::from_millis(200);
/// Of a processor's time in a round, this part (one in ...) is use: less is what timers of waiting programs take.
const BUSY_PART: u64 = 50;
/// How long an idempotency key's answer is kept.
const ANSWERS_KEPT_SECONDS: i64 = 24 * 3600;
/// Snapshots looked at in one round.
const SNAPSHOTS_MAX: u32 = 10_000;

/// Runs until the node goes down.
pub(crate) async fn run(node: Weak<Inner>, mut closing: watch::Receiver<bool>) {
    let Some(second) = node.upgrade().map(|inner| inner.config.second) else { return };
    let round = (second * ROUND_SECONDS).max(ROUND_MIN);
    loop {
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return,
            () = tokio::time::sleep(round) => {}
        }
        let Some(inner) = node.upgrade() else { return };
        all(&inner).await;
        if let Err(error) = inner.charge_snapshots().await {
            tracing::warn!(%error, "snapshots are charged in the next round");
        }
        inner.end_spending().await;
        uploads::forget_old(&inner).await;
        if let Err(error) = forget_old(&inner).await {
            tracing::warn!(%error, "old things could not be forgotten");
        }
    }
}

/// Records the use of every running sandbox.
pub(crate) async fn all(inner: &Arc<Inner>) {
    for live in inner.all_live() {
        let Some(machine) = live.machine_now() else { continue };
        match machine.keeper.usage().await {
            Ok(usage) => {
                machine.oom_kills.store(usage.oom_kills, Ordering::Relaxed);
                record(inner, &live, usage).await;
            }
            Err(error) => tracing::warn!(sandbox = %live.id, %error, "its use is not known now"),
        }
    }
}

/// Records what a sandbox has used since the last record.
pub(crate) async fn record(inner: &Inner, live: &Live, usage: keeper::Usage) {
    let mut metered = live.metered.lock().await;
    let Some(session) = live.record().detail.session else { return };
    let more = difference(*metered, session, Timestamp::now(), usage);
    if is_busy(more) {
        live.touch();
    }
    match inner.catalog.add_usage(&live.id, more).await {
        Ok(()) => {
            metered.running_ms += more.running_ms;
            metered.cpu_us += more.cpu_us;
            metered.memory_mib_ms += more.memory_mib_ms;
            inner.charge_use(&live.record(), more).await;
        }
        Err(error) => tracing::error!(sandbox = %live.id, %error, "its use could not be recorded yet"),
    }
}

/// Whether something in it computed, although nobody asked for anything.
fn is_busy(more: Usage) -> bool {
    more.cpu_us > 0 && more.cpu_us >= more.running_ms.saturating_mul(1000) / BUSY_PART
}

fn difference(metered: Usage, session: Session, now: Timestamp, usage: keeper::Usage) -> Usage {
    let ran = u64::try_from(now.0.saturating_sub(session.begun.0)).unwrap_or(0);
    let running_ms = session.before.running_ms.saturating_add(ran).saturating_sub(metered.running_ms);
    Usage {
        running_ms,
        cpu_us: session.before.cpu_us.saturating_add(usage.cpu_us).saturating_sub(metered.cpu_us),
        memory_mib_ms: (usage.memory_bytes >> 20).saturating_mul(running_ms),
    }
}

/// Removes snapshots whose retention is over, and old answers.
async fn forget_old(inner: &Inner) -> Result<(), NodeError> {
    let (now, second) = (Timestamp::now(), inner.config.second);
    inner.catalog.forget_answers(now.plus_seconds(-ANSWERS_KEPT_SECONDS)).await?;
    events::forget_old(inner, now).await?;
    audit::forget_old(inner).await?;
    let filter = SnapshotFilter { limit: SNAPSHOTS_MAX, ..SnapshotFilter::default() };
    for record in inner.catalog.snapshots(&filter).await? {
        let over = info::expires(&record, second).is_some_and(|end| end <= now);
        if over && record.state != SnapshotState::Capturing {
            snapshots::remove(inner, &record.id).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_what_was_not_recorded_yet() {
        let usage = keeper::Usage { cpu_us: 500, memory_bytes: 3 << 20, ..keeper::Usage::default() };
        let first = Session { begun: Timestamp(10_000), before: Usage::default() };
        let metered = Usage { running_ms: 1000, cpu_us: 200, memory_mib_ms: 7 };
        let more = difference(metered, first, Timestamp(13_000), usage);
        assert_eq!(more, Usage { running_ms: 2000, cpu_us: 300, memory_mib_ms: 6000 });
        // After a pause the keeper counts from nothing.
        let second =
            Session { begun: Timestamp(90_000), before: Usage { running_ms: 3000, cpu_us: 500, memory_mib_ms: 0 } };
        let metered = Usage { running_ms: 3000, cpu_us: 500, memory_mib_ms: 6007 };
        let more = difference(metered, second, Timestamp(91_000), keeper::Usage { cpu_us: 20, ..usage });
        assert_eq!(more, Usage { running_ms: 1000, cpu_us: 20, memory_mib_ms: 3000 });
        let computed = |cpu_us| is_busy(Usage { running_ms: 10_000, cpu_us, memory_mib_ms: 0 });
        assert!(computed(300_000) && !computed(5_000) && !is_busy(Usage::default()));
        let ahead = Usage { running_ms: 9000, cpu_us: 900, memory_mib_ms: 0 };
        assert_eq!(
            difference(ahead, first, Timestamp(9_000), usage),
            Usage::default(),
            "a clock that went back counts nothing"
        );
    }
}
