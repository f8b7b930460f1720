//! Stopping, deleting, and what happens when a sandbox or its keeper ends by itself.

use crate::clients::GuestClient;
use crate::create;
use crate::error::NodeError;
use crate::keeper_process;
use crate::live::{Live, Machine};
use crate::meter;
use crate::node::{Inner, Node, blocking, storage};
use crate::pause;
use branchbox_api::{DeletedSandbox, SandboxInfo};
use branchbox_catalog::{Catalog, SandboxRecord};
use branchbox_jail::cgroup::SandboxCgroup;
use branchbox_model::{SandboxId, SandboxState, StopReason, Timestamp};
use std::sync::Arc;
use std::time::Duration;

/// Times a keeper that died is replaced before its sandbox is given up.
const KEEPER_LIVES: u32 = 3;

impl Node {
    /// Ends a sandbox's processes; its disk stays.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn stop(&self, id: &str) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let inner = Arc::clone(&self.inner);
        let record = self.owned(async move { stop(&inner, &live, StopReason::Requested).await }).await?;
        Ok(self.inner.shown(&record))
    }

    /// Removes a sandbox in any state. Asked again, it answers the same.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn delete(&self, id: &str) -> Result<DeletedSandbox, NodeError> {
        let live = match self.live(id) {
            Ok(live) => live,
            Err(missing) => return self.tombstone(id, missing).await,
        };
        let inner = Arc::clone(&self.inner);
        let record = self.owned(async move { delete(&inner, &live).await }).await?;
        Ok(deleted(&record))
    }

    /// The answer to a delete of what is gone already, or ended without ever running.
    async fn tombstone(&self, id: &str, missing: NodeError) -> Result<DeletedSandbox, NodeError> {
        let Ok(id) = id.parse::<SandboxId>() else { return Err(missing) };
        let Some(mut record) = self.inner.catalog.sandbox(&id).await? else { return Err(missing) };
        if record.deleted.is_none() {
            record.deleted = Some(Timestamp::now());
            self.inner.catalog.update_sandbox(&record).await?;
        }
        Ok(deleted(&record))
    }
}

fn deleted(record: &SandboxRecord) -> DeletedSandbox {
    let deleted_at = record.deleted.unwrap_or(record.created);
    DeletedSandbox {
        id: record.id.to_string(),
        kind: "sandbox".into(),
        name: record.name.clone(),
        labels: record.labels.clone(),
        status: "deleted".into(),
        state: record.state,
        deleted_at,
        ended_at: record.ended.unwrap_or(deleted_at),
    }
}

/// Stops a sandbox in any state.
pub(crate) async fn stop(inner: &Arc<Inner>, live: &Arc<Live>, reason: StopReason) -> Result<SandboxRecord, NodeError> {
    // A start or a capture that runs is waited for: neither may lose its ground.
    let _one = live.change.lock().await;
    let _no_capture = live.capture.lock().await;
    if live.state() == SandboxState::Stopped {
        return Ok(live.record());
    }
    live.force(inner.catalog(), |record| record.state = SandboxState::Stopping).await;
    if let Some(machine) = live.machine_now() {
        match machine.keeper.shutdown().await {
            Ok(usage) => meter::record(inner, live, usage).await,
            Err(error) => {
                tracing::warn!(sandbox = %live.id, %error, "its keeper did not end it; both are killed");
                machine.keeper.kill();
            }
        }
    }
    ended(inner, live, reason).await
}

/// Notes that nothing of a sandbox runs any more, having seen to it.
async fn ended(inner: &Arc<Inner>, live: &Arc<Live>, reason: StopReason) -> Result<SandboxRecord, NodeError> {
    live.set_machine(None);
    end_processes(inner, &live.id).await?;
    pause::remove_image(inner, live).await;
    if let Err(error) = inner.catalog.release_slot(&live.id).await {
        tracing::error!(sandbox = %live.id, %error, "its id range stays taken");
    }
    let now = Timestamp::now();
    let stopped = |record: &mut SandboxRecord| {
        record.state = SandboxState::Stopped;
        record.detail.stopped = Some(now);
        record.detail.stop_reason = Some(reason);
        record.detail.paused = None;
        record.detail.session = None;
    };
    Ok(live.force(inner.catalog(), stopped).await)
}

/// Stops and removes a sandbox.
pub(crate) async fn delete(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<SandboxRecord, NodeError> {
    stop(inner, live, StopReason::Requested).await?;
    let _one = live.change.lock().await;
    if live.record().deleted.is_some() {
        return Ok(live.record());
    }
    let now = Timestamp::now();
    // The tombstone first: a crash behind it leaves files that recovery removes.
    let record = live
        .update(inner.catalog(), |record| {
            record.deleted = Some(now);
            record.ended = Some(now);
        })
        .await?;
    inner.let_go(&live.id);
    remove_files(inner, &live.id).await?;
    crate::images::collect_after(inner, &record.detail.root.image);
    Ok(record)
}

/// Kills what is left of a sandbox and removes its cgroups and sockets.
pub(crate) async fn end_processes(inner: &Inner, id: &SandboxId) -> Result<(), NodeError> {
    for kind in ["keeper", "guest"] {
        let _ = std::fs::remove_file(inner.state.run_dir().join(format!("{id}.{kind}")));
    }
    let (layout, id) = (inner.layout.clone(), id.clone());
    blocking(move || {
        let removed = SandboxCgroup::open(&layout, &id).remove();
        removed.map_err(|error| storage("end the sandbox's processes", &error))
    })
    .await
}

/// Removes a sandbox's files; leftovers of a failure are collected by the next start.
async fn remove_files(inner: &Inner, id: &SandboxId) -> Result<(), NodeError> {
    let (pool, directory, id) = (inner.pool()?, inner.state.sandbox(id.as_str()), id.clone());
    blocking(move || {
        pool.remove_upper(&id).map_err(|error| storage("remove the sandbox's files", &error))?;
        match fs_err::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(NodeError::File { action: "remove", path: directory, source: error })
            }
            _ => Ok(()),
        }
    })
    .await
}

/// Ends and removes all that a sandbox has; of starts that failed.
pub(crate) async fn clear_away(inner: &Inner, id: &SandboxId) {
    let steps = [
        end_processes(inner, id).await,
        remove_files(inner, id).await,
        inner.catalog.release_slot(id).await.map_err(NodeError::from),
    ];
    for error in steps.into_iter().filter_map(Result::err) {
        tracing::error!(sandbox = %id, %error, "something is left of it until the next start");
    }
}

/// Looks after a running machine: when its keeper's connection ends, the keeper is replaced or the sandbox has ended.
pub(crate) fn watch(inner: &Arc<Inner>, live: &Arc<Live>, machine: &Arc<Machine>) {
    let closed = machine.keeper.closed();
    let (inner, live) = (Arc::downgrade(inner), Arc::downgrade(live));
    let watched = Arc::downgrade(machine);
    tokio::spawn(async move {
        closed.await;
        let (Some(inner), Some(live), Some(machine)) = (inner.upgrade(), live.upgrade(), watched.upgrade()) else {
            return;
        };
        lost(&inner, &live, &machine).await;
    });
}

async fn lost(inner: &Arc<Inner>, live: &Arc<Live>, machine: &Arc<Machine>) {
    let _one = live.change.lock().await;
    let current = live.machine_now().is_some_and(|now| Arc::ptr_eq(&now, machine));
    if !current || live.state() != SandboxState::Running || inner.is_closing() {
        return;
    }
    live.set_machine(None);
    for _ in 0..KEEPER_LIVES {
        if !guest_lives(inner, &live.id) {
            break;
        }
        tracing::warn!(sandbox = %live.id, "its keeper died; another takes over");
        match revive(inner, live).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(sandbox = %live.id, %error, "no keeper took over"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    tracing::warn!(sandbox = %live.id, "it has ended");
    if let Err(error) = ended(inner, live, StopReason::HostLost).await {
        tracing::error!(sandbox = %live.id, %error, "what it left could not be ended");
    }
}

/// Starts another keeper for a guest that lives; it finds the guest by the keeper's own record.
pub(crate) async fn revive(inner: &Arc<Inner>, live: &Arc<Live>) -> Result<(), NodeError> {
    let directory = inner.state.sandbox(live.id.as_str());
    let config = blocking(move || keeper_process::read_config(&directory)).await?;
    let (keeper, running) = keeper_process::start(&config, &inner.config.exe).await?;
    let guest = GuestClient::connect(&live.id, inner.state.run_dir()).await?;
    create::adopt(inner, live, Machine::new(keeper, guest, running)).await
}

/// Whether a process is left in the sandbox's cgroup.
pub(crate) fn guest_lives(inner: &Inner, id: &SandboxId) -> bool {
    let group = SandboxCgroup::open(&inner.layout, id);
    let events = std::fs::read_to_string(group.dir().join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}
