//! What a start finds: sandboxes that have run on, and what a crash has left.
//!
//! First the plan, from what is there; then each step on its own, so that one that fails is logged and the others are
//! done. Afterwards everything below the state directory belongs to a record.

use crate::capture;
use crate::clients::{GuestClient, KeeperClient};
use crate::create;
use crate::error::NodeError;
use crate::lifecycle;
use crate::live::{Live, Machine};
use crate::node::{Inner, Node, blocking, storage};
use crate::pause;
use crate::peer::PeerError;
use branchbox_catalog::{Catalog, SandboxFilter, SandboxRecord, SnapshotFilter, SnapshotRecord};
use branchbox_jail::cgroup;
use branchbox_model::{SandboxId, SandboxState, SnapshotId, SnapshotState, StopReason, Timestamp};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long a keeper may take from its start until it listens.
const STARTING_WAIT: Duration = Duration::from_secs(2);
/// Between two looks for its socket.
const STARTING_POLL: Duration = Duration::from_millis(20);
/// States of a sandbox whose processes may live without a keeper.
const RUNS: [SandboxState; 3] = [SandboxState::Running, SandboxState::Pausing, SandboxState::Resuming];
/// More records than any node has.
pub(crate) const ALL: u32 = 1_000_000;

/// Brings memory, catalog and disk together.
pub(crate) async fn run(node: &Node) -> Result<(), NodeError> {
    let inner = &node.inner;
    let filter = SandboxFilter { limit: ALL, ..SandboxFilter::default() };
    let records = inner.catalog.sandboxes(&filter).await?;
    let known: BTreeSet<SandboxId> = records.iter().map(|record| record.id.clone()).collect();
    let mut tasks = JoinSet::new();
    for record in records {
        let inner = Arc::clone(inner);
        tasks.spawn(async move { sandbox(&inner, record).await });
    }
    while let Some(done) = tasks.join_next().await {
        if let Err(error) = done.unwrap_or(Err(NodeError::CutOff)) {
            tracing::error!(%error, "a sandbox could not be recovered");
        }
    }
    let kept = snapshots(inner).await?;
    collect(inner, known, kept).await?;
    crate::images::forget_incoming(inner).await;
    crate::images::forget_builds(inner).await?;
    crate::images::collect(inner).await
}

async fn sandbox(inner: &Arc<Inner>, record: SandboxRecord) -> Result<(), NodeError> {
    let metered = inner.catalog.usage_of(&record.id).await?;
    let live = Live::new(record, metered);
    inner.hold(&live);
    if live.state() == SandboxState::Stopped {
        inner.catalog.release_slot(&live.id).await?;
        return Ok(());
    }
    let _one = live.change.lock().await;
    if live.state() == SandboxState::Paused && pause::recover(inner, &live).await? {
        return Ok(());
    }
    match find(inner, &live).await {
        Ok(()) => {
            // Its files have moved on from an image of an earlier pause.
            pause::remove_image(inner, &live).await;
            tracing::info!(sandbox = %live.id, "found running");
        }
        Err(_) if pause::recover(inner, &live).await? => {
            tracing::info!(sandbox = %live.id, "found paused");
        }
        Err(error) => {
            tracing::warn!(sandbox = %live.id, %error, "it does not run any more");
            lost(inner, &live).await?;
        }
    }
    Ok(())
}

/// Connects to the keeper that runs, or starts another for a guest that lives.
async fn find(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<(), NodeError> {
    let stopping = live.state() == SandboxState::Stopping;
    let run_dir = inner.state.run_dir();
    match connect(inner, live).await {
        Ok(keeper) if stopping => {
            keeper.shutdown().await?;
            Err(NodeError::Stopped { id: live.id.clone() })
        }
        Ok(keeper) => {
            let running = keeper.hello().await?;
            let guest = GuestClient::connect(&live.id, run_dir).await?;
            create::adopt(inner, live, Machine::new(keeper, guest, running)).await
        }
        Err(_) if live.state() != SandboxState::Running && inner.is_over(live) => {
            Err(NodeError::Paused { id: live.id.clone() })
        }
        Err(_) if RUNS.contains(&live.state()) && lifecycle::guest_lives(inner, &live.id) => {
            lifecycle::revive(inner, live).await
        }
        Err(_) => Err(NodeError::Stopped { id: live.id.clone() }),
    }
}

/// A keeper that was just started may not listen yet.
async fn connect(inner: &Inner, live: &Live) -> Result<KeeperClient, PeerError> {
    let deadline = Instant::now() + STARTING_WAIT;
    loop {
        match KeeperClient::connect(&live.id, inner.state.run_dir()) {
            Err(_)
                if [SandboxState::Starting, SandboxState::Resuming].contains(&live.state())
                    && Instant::now() < deadline =>
            {
                tokio::time::sleep(STARTING_POLL).await;
            }
            other => return other,
        }
    }
}

/// Notes that a sandbox has ended; one that never ran goes altogether.
async fn lost(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<(), NodeError> {
    let state = live.state();
    // One that was being restarted keeps its disk.
    let never_ran = state == SandboxState::Starting && live.record().detail.ready.is_none();
    if never_ran {
        lifecycle::clear_away(inner, &live.id).await;
        inner.let_go(&live.id);
    } else {
        lifecycle::end_processes(inner, &live.id).await?;
        inner.catalog.release_slot(&live.id).await?;
    }
    let now = Timestamp::now();
    live.force(inner.catalog(), |record| {
        record.state = SandboxState::Stopped;
        record.detail.stopped = Some(now);
        record.detail.stop_reason = Some(match state {
            SandboxState::Starting => StopReason::StartupFailed,
            SandboxState::Stopping => StopReason::Requested,
            _ => StopReason::HostLost,
        });
        if never_ran {
            record.ended = Some(now);
        }
        record.detail.paused = None;
        record.detail.session = None;
    })
    .await;
    Ok(())
}

/// Removes half-made and half-removed snapshots; answers with those that are kept.
async fn snapshots(inner: &Arc<Inner>) -> Result<BTreeSet<SnapshotId>, NodeError> {
    let filter = SnapshotFilter { include_temporary: true, limit: ALL, ..SnapshotFilter::default() };
    let mut kept = BTreeSet::new();
    for mut record in inner.catalog.snapshots(&filter).await? {
        match fate(inner, &record) {
            Fate::Keep => drop(kept.insert(record.id)),
            Fate::Remove => {
                capture::remove_files(inner, &record.id).await;
                inner.catalog.remove_snapshot(&record.id).await?;
            }
            Fate::Fail(why) => {
                capture::remove_files(inner, &record.id).await;
                record.state = SnapshotState::Failed;
                record.detail.error = Some(why.into());
                inner.catalog.update_snapshot(&record, None).await?;
            }
        }
    }
    Ok(kept)
}

enum Fate {
    Keep,
    Remove,
    Fail(&'static str),
}

fn fate(inner: &Inner, record: &SnapshotRecord) -> Fate {
    match record.state {
        _ if record.temporary => Fate::Remove,
        SnapshotState::Capturing => Fate::Fail("the node went down during the capture"),
        SnapshotState::Deleting => Fate::Remove,
        SnapshotState::Failed => Fate::Keep,
        SnapshotState::Ready if !record.detail.synced && record.detail.boot_id != inner.boot_id => {
            Fate::Fail("the machine went down before it was written to the disk")
        }
        SnapshotState::Ready => Fate::Keep,
    }
}

/// Removes files and processes that belong to no record.
async fn collect(inner: &Arc<Inner>, known: BTreeSet<SandboxId>, kept: BTreeSet<SnapshotId>) -> Result<(), NodeError> {
    let (pool, layout) = (inner.pool()?, inner.layout.clone());
    let (sandboxes, extents) = (inner.state.path().join("sandboxes"), inner.state.extents());
    let run_dir = inner.state.run_dir().to_path_buf();
    let is_known = move |id: &SandboxId| known.contains(id);
    blocking(move || {
        let own = ids_in(&sandboxes)?;
        // Cgroups of other state directories of this machine are not ours to end.
        let ours = |id: &SandboxId| own.contains(id) && !is_known(id);
        cgroup::collect(&layout, ours).map_err(|error| storage("end leftover processes", &error))?;
        let uppers = pool.uppers().map_err(|error| storage("list the pool", &error))?;
        for id in uppers.iter().filter(|id| !is_known(id)) {
            pool.remove_upper(id).map_err(|error| storage("remove leftover files", &error))?;
        }
        for id in own.iter().filter(|id| !is_known(id)) {
            remove_tree(&sandboxes.join(id.as_str()))?;
            for kind in ["keeper", "guest"] {
                let _ = std::fs::remove_file(run_dir.join(format!("{id}.{kind}")));
            }
        }
        let is_kept = |name: &str| name.parse::<SnapshotId>().is_ok_and(|id| kept.contains(&id));
        let layers = pool.layers().map_err(|error| storage("list the pool", &error))?;
        for name in layers.iter().filter(|name| !is_kept(name)) {
            pool.remove_layer(name).map_err(|error| storage("remove leftover files", &error))?;
        }
        for name in names_in(&extents)?.iter().filter(|name| !is_kept(name)) {
            remove_tree(&extents.join(name))?;
        }
        Ok(())
    })
    .await
}

fn names_in(directory: &Path) -> Result<Vec<String>, NodeError> {
    let list = || {
        fs_err::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name().into_string()))
            .collect::<std::io::Result<Vec<_>>>()
    };
    let names = list().map_err(|source| NodeError::File { action: "list", path: directory.into(), source })?;
    Ok(names.into_iter().filter_map(Result::ok).collect())
}

fn ids_in(directory: &Path) -> Result<BTreeSet<SandboxId>, NodeError> {
    Ok(names_in(directory)?.iter().filter_map(|name| name.parse().ok()).collect())
}

fn remove_tree(path: &Path) -> Result<(), NodeError> {
    match fs_err::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(NodeError::File { action: "remove", path: path.into(), source: error })
        }
        _ => Ok(()),
    }
}
