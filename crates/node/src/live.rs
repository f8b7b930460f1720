//! A sandbox that is not deleted, as the node holds it: its record, and its keeper and guest while it runs.
//!
//! Locks, always taken in this order: `change` (one transition of state at a time), `capture` (one capture of a source
//! at a time), `write` (one write of the record at a time). Readers take none: the record is watched.

use crate::clients::{GuestClient, KeeperClient};
use crate::error::NodeError;
use crate::metrics::Series;
use branchbox_catalog::{Catalog, SandboxRecord, Usage};
use branchbox_model::{SandboxId, SandboxState, SnapshotMode, Timestamp};
use branchbox_protocol::keeper::Running;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// How long a call that needs a running sandbox waits for one that is starting.
const READY_WAIT: Duration = Duration::from_secs(30);

/// States that go over into another by themselves.
const PASSING: [SandboxState; 3] = [SandboxState::Starting, SandboxState::Resuming, SandboxState::Pausing];

/// Somebody uses a sandbox for as long as this lives.
#[derive(Debug)]
pub(crate) struct Use(Arc<Live>);

impl Use {
    /// What is used.
    pub(crate) fn live(&self) -> &Arc<Live> {
        &self.0
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.0.touch();
        self.0.uses.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What talks to a running sandbox.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) keeper: KeeperClient,
    pub(crate) running: Running,
    guest: Mutex<Arc<GuestClient>>,
    /// Processes that the memory limit has killed, as last seen.
    pub(crate) oom_kills: AtomicU64,
}

impl Machine {
    pub(crate) fn new(keeper: KeeperClient, guest: GuestClient, running: Running) -> Self {
        Self { keeper, running, guest: Mutex::new(Arc::new(guest)), oom_kills: AtomicU64::new(0) }
    }

    /// The guest; connected again if the connection broke.
    async fn guest(&self, id: &SandboxId, run_dir: &Path) -> Result<Arc<GuestClient>, NodeError> {
        let current = Arc::clone(&self.guest.lock().unwrap_or_else(PoisonError::into_inner));
        if !current.is_closed() {
            return Ok(current);
        }
        let fresh = Arc::new(GuestClient::connect(id, run_dir).await?);
        *self.guest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        Ok(fresh)
    }
}

/// A sandbox in the node's hands.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) id: SandboxId,
    record: watch::Sender<SandboxRecord>,
    machine: Mutex<Option<Arc<Machine>>>,
    pub(crate) change: tokio::sync::Mutex<()>,
    pub(crate) capture: tokio::sync::Mutex<()>,
    write: tokio::sync::Mutex<()>,
    last_active: AtomicI64,
    uses: AtomicU64,
    /// Until when an idle sandbox is left alone, because it could not be paused.
    pub(crate) not_before: AtomicI64,
    /// Idle pauses in a row that failed.
    pub(crate) refused: AtomicU32,
    /// What is in the catalog of its use already.
    pub(crate) metered: tokio::sync::Mutex<Usage>,
    /// What it used over time.
    pub(crate) series: Series,
}

impl Live {
    pub(crate) fn new(record: SandboxRecord, metered: Usage) -> Arc<Self> {
        Arc::new(Self {
            id: record.id.clone(),
            last_active: AtomicI64::new(record.detail.last_active.0),
            record: watch::Sender::new(record),
            uses: AtomicU64::new(0),
            not_before: AtomicI64::new(0),
            refused: AtomicU32::new(0),
            machine: Mutex::new(None),
            change: tokio::sync::Mutex::new(()),
            capture: tokio::sync::Mutex::new(()),
            write: tokio::sync::Mutex::new(()),
            metered: tokio::sync::Mutex::new(metered),
            series: Series::default(),
        })
    }

    pub(crate) fn record(&self) -> SandboxRecord {
        let mut record = self.record.borrow().clone();
        record.detail.last_active = Timestamp(self.last_active.load(Ordering::Relaxed));
        record
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.record.borrow().state
    }

    /// Notes that somebody uses it.
    pub(crate) fn touch(&self) {
        self.last_active.store(Timestamp::now().0, Ordering::Relaxed);
    }

    /// Says that somebody uses it until the answer is dropped.
    pub(crate) fn using(self: &Arc<Self>) -> Use {
        self.uses.fetch_add(1, Ordering::Relaxed);
        self.touch();
        Use(Arc::clone(self))
    }

    /// Whether somebody uses it now.
    pub(crate) fn is_used(&self) -> bool {
        self.uses.load(Ordering::Relaxed) > 0
    }

    /// Waits for a state that goes over into another by itself, at most as long as a request may.
    pub(crate) async fn settle(&self) {
        // A running one without a machine is being given another keeper.
        let is_passing = |state: SandboxState| {
            PASSING.contains(&state) || (state == SandboxState::Running && self.machine_now().is_none())
        };
        if is_passing(self.state()) {
            self.wait_until(READY_WAIT, |state| !is_passing(state)).await;
        }
    }

    /// Waits for a paused sandbox to run again, at most this long; whether it is on its way no longer.
    pub(crate) async fn wait_awake(&self, wait: Duration) -> bool {
        let asleep = [SandboxState::Paused, SandboxState::Pausing, SandboxState::Resuming];
        !asleep.contains(&self.wait_until(wait, |state| !asleep.contains(&state)).await.state)
    }

    /// Changes the record, in the catalog first.
    pub(crate) async fn update(
        &self,
        catalog: &dyn Catalog,
        change: impl FnOnce(&mut SandboxRecord),
    ) -> Result<SandboxRecord, NodeError> {
        let _one = self.write.lock().await;
        let mut record = self.record();
        change(&mut record);
        catalog.update_sandbox(&record).await?;
        self.record.send_replace(record.clone());
        Ok(record)
    }

    /// Changes the record in memory although the catalog may refuse: the state is a fact already.
    pub(crate) async fn force(&self, catalog: &dyn Catalog, change: impl Fn(&mut SandboxRecord)) -> SandboxRecord {
        match self.update(catalog, &change).await {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(sandbox = %self.id, %error, "a state could not be written");
                self.record.send_modify(&change);
                self.record()
            }
        }
    }

    /// Waits for a state, at most this long; answers with the record either way.
    pub(crate) async fn wait_for(&self, state: SandboxState, wait: Duration) -> SandboxRecord {
        self.wait_until(wait, |now| now == state || (state != SandboxState::Stopped && now == SandboxState::Stopped))
            .await
    }

    /// Its record, and each change of it.
    pub(crate) fn records(&self) -> watch::Receiver<SandboxRecord> {
        self.record.subscribe()
    }

    /// Returns when it has stopped.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut records = self.record.subscribe();
        async move {
            // A sandbox that is let go of has stopped too.
            let _ = records.wait_for(|record| record.state == SandboxState::Stopped).await;
        }
    }

    async fn wait_until(&self, wait: Duration, mut is_it: impl FnMut(SandboxState) -> bool) -> SandboxRecord {
        let mut records = self.record.subscribe();
        let reached = records.wait_for(|record| is_it(record.state));
        let _ = tokio::time::timeout(wait, reached).await;
        self.record()
    }

    pub(crate) fn set_machine(&self, machine: Option<Arc<Machine>>) {
        *self.machine.lock().unwrap_or_else(PoisonError::into_inner) = machine;
    }

    /// The machine, if there is one now.
    pub(crate) fn machine_now(&self) -> Option<Arc<Machine>> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// That it can be captured in this mode: it runs, is paused, or is stopped and only its files are wanted.
    pub(crate) async fn check_capturable(&self, mode: SnapshotMode) -> Result<(), NodeError> {
        self.settle().await;
        match (self.state(), mode) {
            (SandboxState::Paused, _) | (SandboxState::Stopped, SnapshotMode::Disk) => Ok(()),
            _ => self.machine().await.map(drop),
        }
    }

    /// The machine of a running sandbox; a starting one is waited for.
    pub(crate) async fn machine(&self) -> Result<Arc<Machine>, NodeError> {
        self.settle().await;
        match (self.state(), self.machine_now()) {
            (SandboxState::Paused, _) => Err(NodeError::Paused { id: self.id.clone() }),
            (SandboxState::Running, Some(machine)) => Ok(machine),
            (SandboxState::Stopped | SandboxState::Stopping, _) => Err(NodeError::Stopped { id: self.id.clone() }),
            (state, _) => Err(NodeError::NotReady { id: self.id.clone(), state }),
        }
    }

    /// As [`Live::guest`], by the node itself: it is no use.
    pub(crate) async fn guest_quietly(&self, run_dir: &Path) -> Result<(Arc<Machine>, Arc<GuestClient>), NodeError> {
        let machine = self.machine().await?;
        let guest = machine.guest(&self.id, run_dir).await?;
        Ok((machine, guest))
    }

    /// The guest of a running sandbox.
    pub(crate) async fn guest(&self, run_dir: &Path) -> Result<(Arc<Machine>, Arc<GuestClient>), NodeError> {
        self.touch();
        self.guest_quietly(run_dir).await
    }
}
