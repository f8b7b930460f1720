//! The node itself: what it holds, its start and its end.

use crate::config::{Ending, NodeConfig};
use crate::error::NodeError;
use crate::images::Images;
use crate::interpreter::Turns;
use crate::keys::Keys;
use crate::live::Live;
use crate::money::Charged;
use crate::settings::Settings;
use crate::state_dir::StateDir;
use crate::uploads::Uploads;
use crate::{clock, meter, metrics, recover};
use branchbox_catalog::{Catalog, SqliteCatalog};
use branchbox_jail::cgroup::Layout;
use branchbox_layers::HostImage;
use branchbox_layers::pool::{Pool, PoolOptions};
use branchbox_model::{Code, Coded, PoolDriver, SandboxId, SandboxState, SnapshotId, StopReason, Timestamp};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{RwLock, Semaphore, watch};

/// Operations that change something, at once; more wait.
const OPERATIONS_MAX: u32 = 1024;
/// Sandboxes being started at once: each copies memory and makes mounts.
const STARTS_MAX: usize = 16;
/// At most this part of a file system is kept free.
const RESERVE_FRACTION: u64 = 20;
/// How often the pool is asked whether it can be closed.
const CLOSE_TRIES: u32 = 50;

/// One host's daemon. Cloning it is cheap and gives the same node.
#[derive(Debug, Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

/// What a node holds.
pub(crate) struct Inner {
    pub(crate) config: NodeConfig,
    pub(crate) state: StateDir,
    pub(crate) catalog: SqliteCatalog,
    pub(crate) layout: Layout,
    pub(crate) image: HostImage,
    pub(crate) boot_id: String,
    pool: Mutex<Option<Arc<Pool>>>,
    driver: PoolDriver,
    live: Mutex<HashMap<SandboxId, Arc<Live>>>,
    /// Held for reading while a sandbox starts from a snapshot, for writing while its files go.
    snapshots: Mutex<HashMap<SnapshotId, Arc<RwLock<()>>>>,
    /// Held from the reading of a snapshot's record to the writing of it.
    pub(crate) snapshot_records: tokio::sync::Mutex<()>,
    operations: Arc<Semaphore>,
    pub(crate) starts: Semaphore,
    closing: watch::Sender<bool>,
    pub(crate) write_token: std::sync::atomic::AtomicU64,
    pub(crate) uploads: Uploads,
    pub(crate) turns: Turns,
    pub(crate) keys: Keys,
    pub(crate) images: Images,
    pub(crate) settings: Settings,
    pub(crate) charged: Charged,
    /// When the node started.
    pub(crate) started: Timestamp,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.state.path().display())
    }
}

/// Runs blocking work on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(NodeError::CutOff))
}

/// An error of the layers or the cgroups, with its causes.
pub(crate) fn storage(action: &'static str, error: &dyn Coded) -> NodeError {
    let mut problem = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        problem.push_str(": ");
        problem.push_str(&source.to_string());
        cause = source.source();
    }
    NodeError::Storage { action, problem, code: error.code(), hint: error.hint() }
}

impl Node {
    /// Opens the state directory and finds every sandbox that has run on.
    ///
    /// # Errors
    /// [`NodeError`]: not root, a machine that lacks something, another node, a newer state directory.
    pub async fn start(mut config: NodeConfig) -> Result<Self, NodeError> {
        if !rustix::process::geteuid().is_root() {
            return Err(NodeError::NotRoot);
        }
        // Before anything is mounted that would have to be undone.
        let settings = Settings::read(&config.state_dir)?;
        config.sandboxes_max = settings.sandboxes.unwrap_or(config.sandboxes_max);
        let begun = blocking({
            let config = config.clone();
            move || Foundation::lay(&config)
        })
        .await?;
        let Foundation { state, layout, pool, image, boot_id } = begun;
        let catalog = SqliteCatalog::open(&state.catalog()).await?;
        let driver = pool.driver();
        let keys = Keys::read(&catalog).await?;
        let images = Images::read(&catalog).await?;
        let charged = Charged::read(&catalog).await?;
        let inner = Inner {
            config,
            state,
            catalog,
            layout,
            image,
            boot_id,
            pool: Mutex::new(Some(Arc::new(pool))),
            driver,
            live: Mutex::default(),
            snapshots: Mutex::default(),
            snapshot_records: tokio::sync::Mutex::default(),
            operations: Arc::new(Semaphore::new(OPERATIONS_MAX as usize)),
            starts: Semaphore::new(STARTS_MAX),
            closing: watch::Sender::new(false),
            // Names of temporary files are not used again, also after a restart.
            write_token: std::sync::atomic::AtomicU64::new(Timestamp::now().0.cast_unsigned() << 16),
            uploads: Uploads::default(),
            turns: Turns::default(),
            keys,
            images,
            settings,
            charged,
            started: Timestamp::now(),
        };
        let node = Self { inner: Arc::new(inner) };
        recover::run(&node).await?;
        tokio::spawn(clock::run(Arc::downgrade(&node.inner), node.inner.closing.subscribe()));
        tokio::spawn(meter::run(Arc::downgrade(&node.inner), node.inner.closing.subscribe()));
        tokio::spawn(metrics::run(Arc::downgrade(&node.inner), node.inner.closing.subscribe()));
        Ok(node)
    }

    /// The key that may do everything.
    #[must_use]
    pub fn admin_key(&self) -> &str {
        self.inner.state.admin_key()
    }

    /// Where everything is kept.
    #[must_use]
    pub fn state_dir(&self) -> &Path {
        self.inner.state.path()
    }

    /// How uppers are kept.
    #[must_use]
    pub fn pool_driver(&self) -> PoolDriver {
        self.inner.driver
    }

    /// Why the plain driver is in use although nobody asked for it.
    #[must_use]
    pub fn pool_fallback(&self) -> Option<String> {
        self.inner.pool().ok().and_then(|pool| pool.fallback().map(str::to_owned))
    }

    /// Where a sandbox's own files lie, for a caller on this machine.
    ///
    /// # Errors
    /// [`NodeError::NoSandbox`].
    pub fn upper_of(&self, id: &str) -> Result<PathBuf, NodeError> {
        Ok(self.live(id)?.record().detail.root.upper)
    }

    /// Whether the node is going down; streams end when it does.
    #[must_use]
    pub fn closing(&self) -> watch::Receiver<bool> {
        self.inner.closing.subscribe()
    }

    /// Says that the node is going down: new operations are refused, streams end.
    pub fn begin_closing(&self) {
        self.inner.closing.send_replace(true);
    }

    /// Ends the node. Operations that run are waited for.
    ///
    /// # Errors
    /// What could not be ended or closed; the rest has been.
    pub async fn shutdown(&self, ending: Ending) -> Result<(), NodeError> {
        self.begin_closing();
        let _all = self.inner.operations.acquire_many(OPERATIONS_MAX).await;
        meter::all(&self.inner).await;
        let mut result = Ok(());
        if ending != Ending::KeepSandboxes {
            // What is paused does not run, and keeps its memory.
            let ends = |live: &Arc<Live>| ending == Ending::DeleteSandboxes || live.state() != SandboxState::Paused;
            for live in self.inner.all_live().into_iter().filter(ends) {
                let ended = match ending {
                    Ending::DeleteSandboxes => crate::lifecycle::delete(&self.inner, &live).await.map(drop),
                    _ => crate::lifecycle::stop(&self.inner, &live, StopReason::OperatorStopped).await.map(drop),
                };
                result = result.and(ended);
            }
        }
        let at_rest = [SandboxState::Stopped, SandboxState::Paused];
        let running = self.inner.all_live().iter().any(|live| !at_rest.contains(&live.state()));
        for live in self.inner.all_live() {
            live.set_machine(None);
        }
        self.inner.catalog.close().await;
        if !running {
            result = result.and(self.inner.close_pool().await);
            let _ = std::fs::remove_dir(self.inner.state.run_dir());
            if let Some(parent) = self.inner.state.run_dir().parent() {
                // Refused, rightly, while another node has sockets there.
                let _ = std::fs::remove_dir(parent);
            }
        }
        result
    }

    /// Does something that is finished even when the caller goes away.
    pub(crate) async fn owned<T, F>(&self, work: F) -> Result<T, NodeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, NodeError>> + Send + 'static,
    {
        if *self.inner.closing.borrow() {
            return Err(NodeError::Closing);
        }
        let permit = Arc::clone(&self.inner.operations).acquire_owned().await.map_err(|_| NodeError::Closing)?;
        let done = tokio::spawn(async move {
            let _permit = permit;
            work.await
        });
        done.await.unwrap_or(Err(NodeError::CutOff))
    }

    /// The sandbox with this id, if it is not deleted.
    pub(crate) fn live(&self, id: &str) -> Result<Arc<Live>, NodeError> {
        let missing = || NodeError::NoSandbox { id: id.chars().take(64).collect() };
        let parsed: SandboxId = id.parse().map_err(|_| missing())?;
        self.inner.find(&parsed).ok_or_else(missing)
    }
}

impl Inner {
    pub(crate) fn pool(&self) -> Result<Arc<Pool>, NodeError> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(NodeError::Closing)
    }

    pub(crate) fn find(&self, id: &SandboxId) -> Option<Arc<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn hold(&self, live: &Arc<Live>) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).insert(live.id.clone(), Arc::clone(live));
    }

    pub(crate) fn let_go(&self, id: &SandboxId) {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    pub(crate) fn all_live(&self) -> Vec<Arc<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    pub(crate) fn catalog(&self) -> &dyn Catalog {
        &self.catalog
    }

    /// The lock of a snapshot's files.
    pub(crate) fn snapshot_lock(&self, id: &SnapshotId) -> Arc<RwLock<()>> {
        let mut locks = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        Arc::clone(locks.entry(id.clone()).or_default())
    }

    async fn close_pool(&self) -> Result<(), NodeError> {
        let Some(mut pool) = self.pool.lock().unwrap_or_else(PoisonError::into_inner).take() else { return Ok(()) };
        for _ in 0..CLOSE_TRIES {
            match Arc::try_unwrap(pool) {
                Ok(pool) => {
                    let closed = move || pool.close().map_err(|error| storage("close the pool", &error));
                    return blocking(closed).await;
                }
                Err(shared) => pool = shared,
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Err(NodeError::Storage {
            action: "close the pool",
            problem: "an operation still uses it".into(),
            code: Code::Busy,
            hint: None,
        })
    }
}

/// The pool's default reserve, or less on a small file system.
fn reserve(path: &Path) -> Result<u64, NodeError> {
    let usage = rustix::fs::statvfs(path).map_err(|errno| NodeError::File {
        action: "look at",
        path: path.into(),
        source: errno.into(),
    })?;
    let whole = usage.f_blocks.saturating_mul(usage.f_frsize);
    Ok(PoolOptions::default().reserve_bytes.min(whole / RESERVE_FRACTION))
}

/// What is opened before anything async can begin.
struct Foundation {
    state: StateDir,
    layout: Layout,
    pool: Pool,
    image: HostImage,
    boot_id: String,
}

impl Foundation {
    fn lay(config: &NodeConfig) -> Result<Self, NodeError> {
        for check in branchbox_jail::check::check_host() {
            if check.required && !check.ok {
                return Err(NodeError::Host { problem: format!("{}: {}", check.name, check.detail) });
            }
        }
        let state = StateDir::open(&config.state_dir, &config.run_parent)?;
        let layout = Layout::detect().map_err(|error| NodeError::Host { problem: error.to_string() })?;
        let reserve_bytes = match config.reserve_bytes {
            Some(bytes) => bytes,
            None => reserve(state.path())?,
        };
        let options = PoolOptions { driver: config.pool_driver, reserve_bytes };
        let pool = Pool::open(state.path(), options).map_err(|error| storage("open the pool", &error))?;
        let image = HostImage::prepare(&pool.images_dir(), &config.exe)
            .map_err(|error| storage("prepare the host image", &error))?;
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        let asked = || {
            fs_err::read_to_string(path).map_err(|source| NodeError::File { action: "read", path: path.into(), source })
        };
        let boot_id = config.boot_id.clone().map_or_else(asked, Ok)?;
        Ok(Self { state, layout, pool, image, boot_id: boot_id.trim().to_owned() })
    }
}
