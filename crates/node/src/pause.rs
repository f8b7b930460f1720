//! Pause, wake and restart.
//!
//! Pause: the keeper captures the machine into `STATE/sandboxes/<id>/paused` and ends it in that very state; the upper
//! stays in place and is exact, as nobody ran on. Wake: a new keeper restores that image on the same upper, on any later
//! boot too. Restart: a stopped sandbox boots anew on its upper.
//!
//! Invariants: a refused or failed pause leaves the sandbox running; a failed wake leaves it paused, image and all; the
//! image goes once the sandbox runs again, since the files have moved on from it. What a crash leaves in between is told
//! apart by `recover`: processes that live make the sandbox running, else an image makes it paused.

use crate::capture;
use crate::create;
use crate::error::NodeError;
use crate::info::{self, settings};
use crate::lifecycle;
use crate::live::Live;
use crate::meter;
use crate::money;
use crate::node::{Inner, Node, blocking};
use branchbox_api::SandboxInfo;
use branchbox_catalog::{Catalog, SandboxRecord};
use branchbox_jail::cgroup::SandboxCgroup;
use branchbox_model::{Code, Coded, IdRange, SandboxState, StopReason, Timestamp};
use branchbox_protocol::keeper::{Running, Start};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// An answer is not given before this, unless it is the last word: what is refused is refused by then.
const WAIT_MIN: Duration = Duration::from_millis(250);

impl Inner {
    /// A paused sandbox's memory and processes.
    pub(crate) fn paused_image(&self, live: &Live) -> PathBuf {
        self.state.sandbox(live.id.as_str()).join("paused")
    }

    /// Whether a pause came to its end: the image is whole, and none of the captured processes lives. The first process
    /// may, when the keeper died in between.
    pub(crate) fn is_over(&self, live: &Live) -> bool {
        let work = SandboxCgroup::open(&self.layout, &live.id).work_path().join("cgroup.events");
        let events = std::fs::read_to_string(work).unwrap_or_default();
        self.paused_image(live).join("machine").exists() && !events.lines().any(|line| line == "populated 1")
    }
}

impl Node {
    /// Pauses a running sandbox; a paused one stays so. Answers after `wait` at the latest, with the state reached.
    ///
    /// # Errors
    /// [`NodeError`]; the sandbox runs on.
    pub async fn pause(&self, id: &str, wait: Duration) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let (inner, pausing) = (Arc::clone(&self.inner), Arc::clone(&live));
        self.within(wait, &live, async move { pause(&inner, &pausing, StopReason::Requested).await }).await
    }

    /// Wakes a paused sandbox. `timeout_seconds` is its new time limit, if it has one at all.
    ///
    /// # Errors
    /// [`NodeError::NotPaused`] for one that is awake; after any other failure it is still paused.
    pub async fn wake(&self, id: &str, timeout_seconds: Option<u32>, wait: Duration) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let (inner, waking) = (Arc::clone(&self.inner), Arc::clone(&live));
        self.within(wait, &live, async move { wake(&inner, &waking, timeout_seconds).await }).await
    }

    /// Boots a stopped sandbox from its disk.
    ///
    /// # Errors
    /// [`NodeError::NotStopped`] for one that is not stopped; after any other failure it is still stopped.
    pub async fn restart(&self, id: &str, wait: Duration) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let (inner, starting) = (Arc::clone(&self.inner), Arc::clone(&live));
        self.within(wait, &live, async move { restart(&inner, &starting).await }).await
    }

    /// The operation's own answer, or the state reached when time is up; the operation goes on then.
    async fn within(
        &self,
        wait: Duration,
        live: &Live,
        work: impl Future<Output = Result<SandboxRecord, NodeError>> + Send + 'static,
    ) -> Result<SandboxInfo, NodeError> {
        let node = self.clone();
        let mut task = tokio::spawn(async move { node.owned(work).await });
        match tokio::time::timeout(wait.max(WAIT_MIN), &mut task).await {
            Ok(done) => done.unwrap_or(Err(NodeError::CutOff)).map(|record| self.inner.shown(&record)),
            Err(_) => Ok(self.inner.shown(&live.record())),
        }
    }

    /// A sandbox that somebody wants to use now: a paused one is woken, if it may be.
    ///
    /// # Errors
    /// [`NodeError`]; [`NodeError::Paused`] for one that requests do not wake.
    pub(crate) async fn awake(&self, id: &str) -> Result<Arc<Live>, NodeError> {
        let live = self.live(id)?;
        live.settle().await;
        if live.state() != SandboxState::Paused {
            return Ok(live);
        }
        if !info::auto_wake(&live.record()) {
            return Err(NodeError::Paused { id: live.id.clone() });
        }
        let (inner, waking) = (Arc::clone(&self.inner), Arc::clone(&live));
        match self.owned(async move { wake(&inner, &waking, None).await }).await {
            // Another request was faster.
            Ok(_) | Err(NodeError::NotPaused { .. }) => Ok(live),
            Err(error) => Err(error),
        }
    }
}

/// Pauses a sandbox.
pub(crate) async fn pause(
    inner: &Arc<Inner>,
    live: &Arc<Live>,
    reason: StopReason,
) -> Result<SandboxRecord, NodeError> {
    let _one = live.change.lock().await;
    let _no_capture = live.capture.lock().await;
    let machine = match (live.state(), live.machine_now()) {
        (SandboxState::Paused, _) => return Ok(live.record()),
        (SandboxState::Running, Some(machine)) => machine,
        (SandboxState::Stopped, _) => return Err(NodeError::Stopped { id: live.id.clone() }),
        (state, _) => return Err(NodeError::NotReady { id: live.id.clone(), state }),
    };
    capture::check_room(inner, machine.keeper.usage().await?.memory_bytes)?;
    live.update(inner.catalog(), |record| record.state = SandboxState::Pausing).await?;
    match machine.keeper.pause(inner.paused_image(live)).await {
        Ok((report, usage)) => {
            tracing::info!(sandbox = %live.id, pause_us = report.pause_us, bytes = report.memory_bytes, "paused");
            meter::record(inner, live, usage).await;
            paused(inner, live, reason).await
        }
        // The keeper went away; what it left says how far it came.
        Err(NodeError::Peer { .. }) if inner.is_over(live) => paused(inner, live, reason).await,
        Err(error) => {
            // If the keeper is gone, who watches it now finds the sandbox running, and gives it another.
            live.force(inner.catalog(), |record| record.state = SandboxState::Running).await;
            Err(error)
        }
    }
}

/// Notes that a sandbox is paused, having seen to it that nothing of it runs.
pub(crate) async fn paused(inner: &Inner, live: &Live, reason: StopReason) -> Result<SandboxRecord, NodeError> {
    live.set_machine(None);
    lifecycle::end_processes(inner, &live.id).await?;
    inner.catalog.release_slot(&live.id).await?;
    let now = Timestamp::now();
    let paused = |record: &mut SandboxRecord| {
        record.state = SandboxState::Paused;
        record.detail.paused.get_or_insert(now);
        record.detail.session = None;
        record.detail.stop_reason = Some(reason);
    };
    Ok(live.force(inner.catalog(), paused).await)
}

/// Wakes a paused sandbox.
async fn wake(inner: &Arc<Inner>, live: &Arc<Live>, timeout_seconds: Option<u32>) -> Result<SandboxRecord, NodeError> {
    let _one = live.change.lock().await;
    let _no_capture = live.capture.lock().await;
    match live.state() {
        SandboxState::Paused => {}
        SandboxState::Running => return Err(NodeError::NotPaused { id: live.id.clone() }),
        SandboxState::Stopped => return Err(NodeError::Stopped { id: live.id.clone() }),
        state => return Err(NodeError::NotReady { id: live.id.clone(), state }),
    }
    let before = live.record();
    inner.check_spending(money::account(&before.detail.settings)).await?;
    inner.check_base(live.id.as_str(), &before.detail.root.image)?;
    let start = Start::Restore { image: inner.paused_image(live) };
    if let Err(error) = bring_up(inner, live, SandboxState::Resuming, start, timeout_seconds).await {
        tracing::warn!(sandbox = %live.id, %error, "it could not be woken and stays paused");
        give_up(inner, live, &before).await;
        return Err(error);
    }
    remove_image(inner, live).await;
    Ok(live.record())
}

/// Boots a stopped sandbox.
pub(crate) async fn restart(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<SandboxRecord, NodeError> {
    let _one = live.change.lock().await;
    let _no_capture = live.capture.lock().await;
    let before = live.record();
    match before.state {
        SandboxState::Stopped if before.deleted.is_none() => {}
        state => return Err(NodeError::NotStopped { id: live.id.clone(), state }),
    }
    let account = money::account(&before.detail.settings);
    inner.check_spending(account).await?;
    inner.check_sandboxes(account, 1)?;
    // A boot takes the base as it is now; only memory is bound to the one it was captured on.
    let root = before.detail.root.clone();
    let fresh = inner.root_on(&root.image, root.defaults, root.upper).await?;
    live.update(inner.catalog(), |record| {
        record.detail.root.image.clone_from(&fresh.image);
        for tree in &mut record.detail.root.trees {
            if let Some(now) = fresh.trees.iter().find(|now| now.name == tree.name) {
                tree.lower.clone_from(&now.lower);
            }
        }
    })
    .await?;
    if let Err(error) = bring_up(inner, live, SandboxState::Starting, Start::Boot, None).await {
        tracing::warn!(sandbox = %live.id, %error, "it could not be restarted and stays stopped");
        give_up(inner, live, &before).await;
        return Err(error);
    }
    Ok(live.record())
}

/// From files to a running sandbox, in the state that says so meanwhile.
async fn bring_up(
    inner: &Arc<Inner>,
    live: &Arc<Live>,
    meanwhile: SandboxState,
    start: Start,
    timeout_seconds: Option<u32>,
) -> Result<Running, NodeError> {
    let second = inner.config.second;
    let record = live
        .update(inner.catalog(), |record| {
            record.state = meanwhile;
            record.detail.memory_restored = Some(meanwhile == SandboxState::Resuming);
            begin_time_limit(record, timeout_seconds, second);
        })
        .await?;
    let slot = inner.catalog.take_slot(&live.id, inner.config.sandboxes_max.min(IdRange::SLOTS)).await?;
    let _turn = inner.starts.acquire().await.map_err(|_| NodeError::Closing)?;
    let running = create::start(inner, live, &record, slot, start).await?;
    live.touch();
    Ok(running)
}

/// A time limit counts anew from a wake, a restart and a fork; it is the asked one, or as long as it was.
pub(crate) fn begin_time_limit(record: &mut SandboxRecord, asked: Option<u32>, second: Duration) {
    let kept = &mut record.detail.settings;
    let Some(old) = kept.get(settings::TIMEOUT).and_then(serde_json::Value::as_u64) else { return };
    let seconds = asked.map_or(old, u64::from);
    kept.insert(settings::TIMEOUT.into(), seconds.into());
    kept.insert(settings::ENDS_AT.into(), info::after(Timestamp::now(), seconds, second).0.into());
}

/// What a failed start has made goes; the sandbox is what it was.
async fn give_up(inner: &Arc<Inner>, live: &Live, before: &SandboxRecord) {
    live.set_machine(None);
    if let Err(error) = lifecycle::end_processes(inner, &live.id).await {
        tracing::error!(sandbox = %live.id, %error, "what it left could not be ended");
    }
    if let Err(error) = inner.catalog.release_slot(&live.id).await {
        tracing::error!(sandbox = %live.id, %error, "its id range stays taken");
    }
    live.force(inner.catalog(), |record| {
        record.state = before.state;
        record.detail.session = None;
        record.detail.settings.clone_from(&before.detail.settings);
        record.detail.root.clone_from(&before.detail.root);
        record.detail.memory_restored = before.detail.memory_restored;
    })
    .await;
}

/// Removes the image of a sandbox that runs, or is not to be woken any more.
pub(crate) async fn remove_image(inner: &Inner, live: &Live) {
    let image = inner.paused_image(live);
    let removed = blocking(move || match fs_err::remove_dir_all(&image) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(NodeError::File { action: "remove", path: image, source: error })
        }
        _ => Ok(()),
    });
    if let Err(error) = removed.await {
        tracing::warn!(sandbox = %live.id, %error, "the image of its last pause stays until the next");
    }
}

/// What a start finds of a sandbox that does not run: whether it is paused.
pub(crate) async fn recover(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<bool, NodeError> {
    let state = live.state();
    let paused_state = matches!(state, SandboxState::Paused | SandboxState::Pausing | SandboxState::Resuming);
    if !paused_state || !inner.is_over(live) {
        return Ok(false);
    }
    let reason = live.record().detail.stop_reason.unwrap_or(StopReason::Requested);
    paused(inner, live, reason).await?;
    Ok(true)
}

/// Pauses a sandbox whose time is up; one that cannot be paused is stopped, since its time is up all the same.
pub(crate) async fn pause_or_stop(inner: &Arc<Inner>, live: &Arc<Live>, reason: StopReason) -> Result<(), NodeError> {
    match pause(inner, live, reason).await {
        Ok(_) => Ok(()),
        Err(error) if error.code() == Code::CaptureRefused => {
            tracing::warn!(sandbox = %live.id, %error, "it could not be paused at the end of its time and is stopped");
            lifecycle::stop(inner, live, StopReason::PauseFailed).await.map(drop)
        }
        Err(error) => Err(error),
    }
}
