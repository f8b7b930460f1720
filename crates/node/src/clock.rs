//! What a clock does to sandboxes: time limits, idle pauses, the end of a paused one's retention.
//!
//! One look at all sandboxes every half second, in memory alone; only a sandbox that seems idle is asked what it runs.
//! Nothing here waits for what it starts: a pause that takes long holds up no other sandbox.

use crate::error::NodeError;
use crate::info;
use crate::interpreter::is_context;
use crate::lifecycle;
use crate::live::Live;
use crate::node::Inner;
use crate::pause;
use crate::watches::is_watch;
use branchbox_api::OnTimeout;
use branchbox_model::{SandboxState, StopReason, Timestamp};
use branchbox_protocol::guest::ExecState;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Between two looks; a time limit is kept to this.
const ROUND: Duration = Duration::from_millis(500);
/// How many seconds after a refused idle pause the next is tried; twice as long after each that follows.
const REFUSED_SECONDS: u64 = 300;
/// How often that time is doubled.
const REFUSED_DOUBLINGS_MAX: u32 = 5;

/// Sandboxes that something is being done to already.
type Busy = Arc<Mutex<HashSet<branchbox_model::SandboxId>>>;

/// Runs until the node goes down.
pub(crate) async fn run(node: Weak<Inner>, mut closing: watch::Receiver<bool>) {
    let busy = Busy::default();
    loop {
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return,
            () = tokio::time::sleep(ROUND) => {}
        }
        let Some(inner) = node.upgrade() else { return };
        for live in inner.all_live() {
            if due(&inner, &live).is_some()
                && busy.lock().unwrap_or_else(PoisonError::into_inner).insert(live.id.clone())
            {
                let (inner, busy) = (Arc::clone(&inner), Arc::clone(&busy));
                tokio::spawn(async move {
                    if let Some(due) = due(&inner, &live)
                        && let Err(error) = act(&inner, &live, due).await
                    {
                        tracing::warn!(sandbox = %live.id, ?due, %error, "what its clock asked for could not be done");
                    }
                    busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&live.id);
                });
            }
        }
    }
}

/// What is to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Ends(OnTimeout),
    Idle,
    Expires,
}

fn due(inner: &Inner, live: &Live) -> Option<Due> {
    let (now, record) = (Timestamp::now(), live.record());
    let is_over = |end: Option<Timestamp>| end.is_some_and(|end| end <= now);
    match record.state {
        SandboxState::Running if is_over(info::ends_at(&record)) => Some(Due::Ends(info::on_timeout(&record))),
        SandboxState::Running if live.is_used() || live.not_before.load(Ordering::Relaxed) > now.0 => None,
        SandboxState::Running => {
            let seconds = info::idle_seconds(&record)?;
            let last = record.detail.last_active.max(record.detail.session.map_or(now, |session| session.begun));
            is_over(Some(info::after(last, seconds, inner.config.second))).then_some(Due::Idle)
        }
        SandboxState::Paused if is_over(info::paused_expires(&record, inner.config.second)) => Some(Due::Expires),
        _ => None,
    }
}

async fn act(inner: &Arc<Inner>, live: &Arc<Live>, due: Due) -> Result<(), NodeError> {
    match due {
        Due::Ends(OnTimeout::Pause) => pause::pause_or_stop(inner, live, StopReason::LeaseExpired).await,
        Due::Ends(OnTimeout::Stop) => lifecycle::stop(inner, live, StopReason::LeaseExpired).await.map(drop),
        Due::Ends(OnTimeout::Delete) => lifecycle::delete(inner, live).await.map(drop),
        Due::Expires => lifecycle::stop(inner, live, StopReason::PausedExpired).await.map(drop),
        Due::Idle => idle(inner, live).await,
    }
}

/// Pauses a sandbox that nobody has used, unless something in it runs.
async fn idle(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<(), NodeError> {
    let seen = live.record().detail.last_active;
    let (_, guest) = live.guest_quietly(inner.state.run_dir()).await?;
    if guest.list().await?.iter().any(|info| info.state == ExecState::Running && !is_context(info) && !is_watch(info)) {
        // A command is use; the idle time begins at its end.
        live.touch();
        return Ok(());
    }
    if live.is_used() || live.record().detail.last_active != seen {
        return Ok(());
    }
    let paused = pause::pause(inner, live, StopReason::Idle).await;
    if paused.is_ok() {
        live.refused.store(0, Ordering::Relaxed);
    } else {
        let doublings = live.refused.fetch_add(1, Ordering::Relaxed).min(REFUSED_DOUBLINGS_MAX);
        let later = info::after(Timestamp::now(), REFUSED_SECONDS << doublings, inner.config.second);
        live.not_before.store(later.0, Ordering::Relaxed);
    }
    paused.map(drop)
}
