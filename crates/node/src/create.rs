//! Making sandboxes: from the host image, from a snapshot, as a copy of a fork.

use crate::clients::GuestClient;
use crate::config::RootExtras;
use crate::error::NodeError;
use crate::images::ToStart;
use crate::info::{self, settings};
use crate::keeper_process;
use crate::lifecycle;
use crate::live::{Live, Machine};
use crate::money;
use crate::node::{Inner, Node, blocking, storage};
use branchbox_api::image::HOST;
use branchbox_api::{CreateRequest, OnTimeout, SandboxInfo, Timings};
use branchbox_catalog::{Catalog, Rules, SandboxDetail, SandboxRecord, Session, SnapshotRecord, Usage};
use branchbox_model::{
    Code, Coded, DiskMib, IdRange, Limits, MemoryMib, RootSpec, SandboxId, SandboxState, SnapshotId, SnapshotMode,
    SnapshotState, SpecError, StopReason, Timestamp, Vcpus,
};
use branchbox_protocol::keeper::{KeeperConfig, Running, Start};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Every sandbox's host name: a copy's programs must find the name they had.
const HOSTNAME: &str = "branchbox";

/// What a sandbox begins with.
#[derive(Debug, Clone)]
pub(crate) enum Origin {
    /// The image alone.
    Image,
    /// A snapshot's files.
    Files(SnapshotId),
    /// A snapshot's files, memory and processes.
    Machine(SnapshotId),
}

/// What a sandbox without a snapshot stands on.
#[derive(Debug)]
pub(crate) struct Base {
    /// As its record shows it.
    pub image: String,
    /// Its files, without an upper.
    pub root: RootSpec,
    /// What it runs.
    pub start: Option<ToStart>,
}

impl Node {
    /// Makes a sandbox; answers when it runs, or after `wait` with the state reached.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn create(&self, request: CreateRequest, wait: Duration) -> Result<SandboxInfo, NodeError> {
        self.create_with_root(request, RootExtras::default(), wait).await
    }

    /// As [`Node::create`], with mounts of the caller's own.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn create_with_root(
        &self,
        request: CreateRequest,
        extras: RootExtras,
        wait: Duration,
    ) -> Result<SandboxInfo, NodeError> {
        refuse_unavailable(&request)?;
        let Some(name) = request.name.clone().filter(|_| request.get_or_create) else {
            return self.make(request, extras, wait).await;
        };
        if let Some(info) = self.reuse(&name, wait).await? {
            return Ok(info);
        }
        match self.make(request, extras, wait).await {
            // Another request was faster.
            Err(taken) if taken.code() == Code::NameTaken => self.reuse(&name, wait).await?.ok_or(taken),
            made => made,
        }
    }

    async fn make(&self, request: CreateRequest, extras: RootExtras, wait: Duration) -> Result<SandboxInfo, NodeError> {
        self.make_on(None, request, extras, wait).await
    }

    /// Makes a sandbox on files that no image names yet.
    pub(crate) async fn create_on(
        &self,
        base: Base,
        request: CreateRequest,
        wait: Duration,
    ) -> Result<SandboxInfo, NodeError> {
        self.make_on(Some(base), request, RootExtras::default(), wait).await
    }

    async fn make_on(
        &self,
        base: Option<Base>,
        request: CreateRequest,
        extras: RootExtras,
        wait: Duration,
    ) -> Result<SandboxInfo, NodeError> {
        let begun = Instant::now();
        let node = self.clone();
        let (live, mut launched) = self
            .owned(async move {
                let account = request.account.clone().unwrap_or_else(|| money::ADMIN.to_owned());
                node.inner.check_spending(&account).await?;
                node.inner.check_sandboxes(&account, 1)?;
                let snapshot = node.snapshot_to_start_from(&request).await?;
                // Until its record is written, nothing else says that the layers are in use.
                let _user = node.inner.images.users.read().await;
                let base = match base {
                    Some(base) => Some(base),
                    None => node.base_to_start_from(&request, snapshot.is_some()).await?,
                };
                let to_start = base.as_ref().and_then(|base| base.start.clone());
                let (record, origin) = plan(&node.inner, request, extras, snapshot, base)?;
                let (live, slot) = node.inner.add(record).await?;
                let (inner, launching) = (Arc::clone(&node.inner), Arc::clone(&live));
                let starter = node.clone();
                let launched = tokio::spawn(async move {
                    let running = launch(&inner, &launching, slot, &origin).await?;
                    let started = match to_start {
                        Some(what) => Some(starter.start_image(launching.id.as_str(), &what).await),
                        None => None,
                    };
                    Ok::<_, NodeError>((running, started))
                });
                Ok((live, launched))
            })
            .await?;
        let mut info = match tokio::time::timeout(wait, &mut launched).await {
            Ok(Ok(running)) => {
                let (running, started) = running?;
                let mut info = self.inner.shown(&live.record());
                info.notes = info::notes(running.notes);
                info.start = started;
                info
            }
            Ok(Err(_)) => return Err(NodeError::CutOff),
            Err(_) => self.inner.shown(&live.record()),
        };
        info.timings = Some(Timings { server_us: micros(begun), ..Timings::default() });
        Ok(info)
    }

    /// The holder of the name, if there is one.
    async fn reuse(&self, name: &str, wait: Duration) -> Result<Option<SandboxInfo>, NodeError> {
        let Some(record) = self.inner.catalog.sandbox_by_name(name).await? else { return Ok(None) };
        let Some(live) = self.inner.find(&record.id) else { return Ok(None) };
        live.settle().await;
        let id = live.id.to_string();
        let started = match live.state() {
            SandboxState::Stopped => self.restart(&id, wait).await,
            SandboxState::Paused => self.wake(&id, None, wait).await,
            _ => Ok(self.inner.shown(&live.record())),
        };
        let info = match started {
            // Another request was faster.
            Err(NodeError::NotPaused { .. } | NodeError::NotStopped { .. }) => {
                self.inner.shown(&live.wait_for(SandboxState::Running, wait).await)
            }
            started => started?,
        };
        Ok(Some(SandboxInfo { reused: true, ..info }))
    }

    async fn snapshot_to_start_from(&self, request: &CreateRequest) -> Result<Option<SnapshotRecord>, NodeError> {
        let Some(id) = &request.snapshot else { return Ok(None) };
        let record = self.snapshot_record(id).await?;
        if record.state != SnapshotState::Ready {
            return Err(NodeError::SnapshotNotReady { id: id.clone(), state: record.state });
        }
        self.inner.check_base(id, &record.detail.root.image)?;
        Ok(Some(record))
    }

    /// The image to start from, unless a snapshot brings its own, and its root.
    async fn base_to_start_from(&self, request: &CreateRequest, has_snapshot: bool) -> Result<Option<Base>, NodeError> {
        if has_snapshot {
            return Ok(None);
        }
        let image = self.inner.image_record(request.image.as_deref().unwrap_or(HOST))?;
        let root = self.inner.root_on(image.identity()?, image.defaults().clone(), PathBuf::new()).await?;
        Ok(Some(Base { image: image.shown(), root, start: image.to_start() }))
    }
}

pub(crate) fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn refuse_unavailable(request: &CreateRequest) -> Result<(), NodeError> {
    if request.network.as_ref().is_some_and(branchbox_api::NetworkRequest::opens) {
        return Err(NodeError::NoGateway);
    }
    let unavailable = |what: &str, hint| Err(NodeError::Unavailable { what: what.into(), hint });
    match request.wants_unavailable {
        Some("cpu") => return unavailable("reserved processors", "leave `cpu` out, or send `shared`"),
        Some(field) => return unavailable(field, "leave the field out"),
        None => {}
    }
    Ok(())
}

/// The record of a sandbox to make, and what it begins with.
fn plan(
    inner: &Inner,
    request: CreateRequest,
    extras: RootExtras,
    snapshot: Option<SnapshotRecord>,
    base: Option<Base>,
) -> Result<(SandboxRecord, Origin), NodeError> {
    let id = SandboxId::generate();
    let upper = inner.pool()?.upper_path(&id);
    let (image, mut root) = match (&snapshot, base) {
        (Some(snapshot), _) => (None, snapshot.detail.root.clone()),
        (None, Some(Base { image, root, .. })) => (Some(image), root),
        (None, None) => return Err(NodeError::NoImage { name: HOST.into() }),
    };
    root.upper = upper;
    root.trees.extend(extras.trees);
    root.binds.extend(extras.binds);
    let limits = limits(&request, snapshot.as_ref())?;
    let mut env = extras.env;
    env.extend(request.env.unwrap_or_default());
    let now = Timestamp::now();
    let record = SandboxRecord {
        id,
        name: request.name,
        labels: request.labels.or_else(|| snapshot.as_ref().map(|s| s.labels.clone())).unwrap_or_default(),
        state: SandboxState::Starting,
        created: now,
        ended: None,
        deleted: None,
        detail: SandboxDetail {
            limits,
            env,
            user: request.user.or_else(|| snapshot.as_ref().map(|s| s.detail.user)).unwrap_or_default(),
            root,
            snapshot: snapshot.as_ref().map(|s| s.id.clone()),
            forked_from: None,
            stop_reason: None,
            ready: None,
            stopped: None,
            last_active: now,
            rules: Rules { version: 1, updated: now },
            previews: BTreeMap::new(),
            paused: None,
            session: None,
            memory_restored: None,
            settings: kept_settings(&CreateSettings {
                image,
                account: request.account,
                auto_wake: request.auto_wake,
                persistent: request.persistent,
                cpu_floor_millis: request.cpu_floor_millis,
                timeout_seconds: request.timeout_seconds,
                on_timeout: request.on_lease_end,
                idle_pause_seconds: request.idle_pause_seconds,
                now,
                second: inner.config.second,
            }),
        },
    };
    let origin = match snapshot {
        None => Origin::Image,
        Some(snapshot) if snapshot.detail.mode == SnapshotMode::Disk => Origin::Files(snapshot.id),
        Some(snapshot) => Origin::Machine(snapshot.id),
    };
    Ok((record, origin))
}

struct CreateSettings {
    image: Option<String>,
    account: Option<String>,
    auto_wake: Option<bool>,
    persistent: Option<bool>,
    cpu_floor_millis: Option<u32>,
    timeout_seconds: Option<u32>,
    on_timeout: Option<OnTimeout>,
    idle_pause_seconds: Option<u32>,
    now: Timestamp,
    second: Duration,
}

fn kept_settings(asked: &CreateSettings) -> BTreeMap<String, Value> {
    let mut kept = BTreeMap::new();
    let mut keep = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            kept.insert(key.to_owned(), value);
        }
    };
    keep(settings::IMAGE, asked.image.clone().map(Value::from));
    keep(settings::ACCOUNT, asked.account.clone().map(Value::from));
    keep(settings::AUTO_WAKE, asked.auto_wake.map(Value::from));
    keep(settings::PERSISTENT, asked.persistent.map(Value::from));
    keep(settings::CPU_FLOOR, asked.cpu_floor_millis.map(Value::from));
    keep(settings::TIMEOUT, asked.timeout_seconds.map(Value::from));
    let end = asked.timeout_seconds.map(|seconds| info::after(asked.now, u64::from(seconds), asked.second).0);
    keep(settings::ENDS_AT, end.map(Value::from));
    keep(settings::ON_TIMEOUT, asked.on_timeout.map(|end| json!(end)));
    keep(settings::IDLE, asked.idle_pause_seconds.map(|seconds| info::idle_raised(seconds).into()));
    kept
}

/// Sizes as asked for; a memory snapshot's shape cannot be changed.
fn limits(request: &CreateRequest, snapshot: Option<&SnapshotRecord>) -> Result<Limits, NodeError> {
    let saved = snapshot.map(|snapshot| snapshot.detail.limits);
    let base = saved.unwrap_or_default();
    let asked = Limits {
        vcpus: request.vcpu.map_or(base.vcpus, Vcpus),
        memory: request.memory_mib.map_or(base.memory, MemoryMib),
        disk: request.disk_mib.map_or(base.disk, DiskMib),
        pids: base.pids,
    };
    match snapshot.map(|snapshot| snapshot.detail.mode) {
        Some(SnapshotMode::Memory) if asked != base => {
            let problem =
                "a memory snapshot keeps the size it was taken with; leave vcpu, memoryMiB and diskMiB out".into();
            Err(SpecError { field: "snapshot", problem }.into())
        }
        Some(SnapshotMode::Disk) if asked.disk.0 < base.disk.0 => {
            Err(NodeError::DiskTooSmall { asked: asked.disk.0, saved: base.disk.0 })
        }
        _ => Ok(asked),
    }
}

impl Inner {
    /// Writes a new sandbox into the catalog and takes it in hand.
    pub(crate) async fn add(&self, record: SandboxRecord) -> Result<(Arc<Live>, u32), NodeError> {
        let slots_max = self.config.sandboxes_max.min(IdRange::SLOTS);
        let slot = self.catalog.insert_sandbox(&record, slots_max).await?;
        let live = Live::new(record, Usage::default());
        self.hold(&live);
        Ok((live, slot))
    }
}

/// Brings a new sandbox up; what a failure leaves is removed.
pub(crate) async fn launch(
    inner: &Arc<Inner>,
    live: &Arc<Live>,
    slot: u32,
    origin: &Origin,
) -> Result<Running, NodeError> {
    let _one = live.change.lock().await;
    let brought = async {
        let _turn = inner.starts.acquire().await.map_err(|_| NodeError::Closing)?;
        bring_up(inner, live, slot, origin).await
    };
    match brought.await {
        Ok(running) => Ok(running),
        Err(error) => {
            tracing::warn!(sandbox = %live.id, %error, "a sandbox could not be started");
            fail(inner, live).await;
            Err(error)
        }
    }
}

async fn bring_up(inner: &Arc<Inner>, live: &Arc<Live>, slot: u32, origin: &Origin) -> Result<Running, NodeError> {
    let record = live.record();
    // Held until the restore has copied the memory.
    let lock = match origin {
        Origin::Image => None,
        Origin::Files(id) | Origin::Machine(id) => Some(inner.snapshot_lock(id)),
    };
    let _kept = match &lock {
        None => None,
        Some(lock) => Some(lock.read().await),
    };
    make_upper(inner, &live.id, origin).await?;
    start(inner, live, &record, slot, start_of(inner, origin)).await
}

/// Starts a keeper for a sandbox whose files are there, and takes what runs then in hand.
pub(crate) async fn start(
    inner: &Arc<Inner>,
    live: &Arc<Live>,
    record: &SandboxRecord,
    slot: u32,
    start: Start,
) -> Result<Running, NodeError> {
    let config = keeper_config(inner, record, slot, start)?;
    let written = config.clone();
    blocking(move || keeper_process::write_config(&written)).await?;
    let (keeper, running) = keeper_process::start(&config, &inner.config.exe).await?;
    let guest = GuestClient::connect(&live.id, inner.state.run_dir()).await?;
    adopt(inner, live, Machine::new(keeper, guest, running.clone())).await?;
    Ok(running)
}

/// Takes a running machine in hand and says so.
pub(crate) async fn adopt(inner: &Arc<Inner>, live: &Arc<Live>, machine: Machine) -> Result<(), NodeError> {
    let machine = Arc::new(machine);
    live.set_machine(Some(Arc::clone(&machine)));
    let session = Session { begun: Timestamp::now(), before: *live.metered.lock().await };
    let running = |record: &mut SandboxRecord| {
        record.state = SandboxState::Running;
        record.detail.ready.get_or_insert(session.begun);
        // A found one goes on in its own.
        record.detail.session.get_or_insert(session);
        record.detail.paused = None;
        record.detail.stopped = None;
        record.detail.stop_reason = None;
    };
    if let Err(error) = live.update(inner.catalog(), running).await {
        live.set_machine(None);
        let _ = machine.keeper.shutdown().await;
        return Err(error);
    }
    lifecycle::watch(inner, live, &machine);
    Ok(())
}

async fn make_upper(inner: &Inner, id: &SandboxId, origin: &Origin) -> Result<(), NodeError> {
    let (pool, id, origin) = (inner.pool()?, id.clone(), origin.clone());
    blocking(move || {
        let made = match &origin {
            Origin::Image => pool.new_upper(&id),
            Origin::Files(snapshot) | Origin::Machine(snapshot) => pool.upper_from_layer(snapshot.as_str(), &id),
        };
        made.map(drop).map_err(|error| storage("make the sandbox's files", &error))
    })
    .await
}

fn start_of(inner: &Inner, origin: &Origin) -> Start {
    match origin {
        Origin::Image | Origin::Files(_) => Start::Boot,
        Origin::Machine(snapshot) => Start::Restore { image: inner.state.extents().join(snapshot.as_str()) },
    }
}

/// What the keeper of a sandbox in this slot is told.
fn keeper_config(inner: &Inner, record: &SandboxRecord, slot: u32, start: Start) -> Result<KeeperConfig, NodeError> {
    let ids = IdRange::of_slot(slot).ok_or(branchbox_catalog::CatalogError::NoSlot { slots: IdRange::SLOTS })?;
    Ok(KeeperConfig {
        id: record.id.clone(),
        run_dir: inner.state.run_dir().to_path_buf(),
        sandbox_dir: inner.state.sandbox(record.id.as_str()),
        hostname: HOSTNAME.into(),
        ids,
        limits: record.detail.limits,
        root: record.detail.root.clone(),
        // Variables are given with each command, so that an update of them counts at once.
        env: Vec::new(),
        start,
        boot_id: inner.boot_id.clone(),
        ephemeral: inner.config.ephemeral.then(|| inner.state.path().to_path_buf()),
    })
}

/// Removes what a failed start left; the record stays and says so.
async fn fail(inner: &Arc<Inner>, live: &Arc<Live>) {
    live.set_machine(None);
    lifecycle::clear_away(inner, &live.id).await;
    let now = Timestamp::now();
    live.force(inner.catalog(), |record| {
        record.state = SandboxState::Stopped;
        record.ended = Some(now);
        record.detail.stopped = Some(now);
        record.detail.stop_reason = Some(StopReason::StartupFailed);
    })
    .await;
    inner.let_go(&live.id);
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_catalog::contract;

    #[test]
    fn sizes_of_snapshots_are_respected() {
        let mut snapshot = contract::snapshot(&SandboxId::generate(), false);
        let bigger = CreateRequest { memory_mib: Some(8192), ..CreateRequest::default() };
        assert!(matches!(limits(&bigger, Some(&snapshot)), Err(NodeError::Spec(_))));
        let same = CreateRequest { memory_mib: Some(4096), ..CreateRequest::default() };
        assert_eq!(limits(&same, Some(&snapshot)).expect("same"), Limits::default());
        snapshot.detail.mode = SnapshotMode::Disk;
        assert_eq!(limits(&bigger, Some(&snapshot)).expect("bigger").memory, MemoryMib(8192));
        let smaller = CreateRequest { disk_mib: Some(1024), ..CreateRequest::default() };
        assert!(matches!(limits(&smaller, Some(&snapshot)), Err(NodeError::DiskTooSmall { asked: 1024, saved: 4096 })));
        assert_eq!(limits(&smaller, None).expect("fresh").disk, DiskMib(1024));
    }

    #[test]
    fn what_this_node_cannot_do_is_refused_with_a_hint() {
        let request = |change: fn(&mut CreateRequest)| {
            let mut request = CreateRequest::default();
            change(&mut request);
            refuse_unavailable(&request)
        };
        assert!(request(|_| {}).is_ok());
        let open =
            request(|r| r.network = Some(branchbox_api::NetworkRequest { internet: true, ..Default::default() }));
        assert!(matches!(open, Err(NodeError::NoGateway)));
    }
}
