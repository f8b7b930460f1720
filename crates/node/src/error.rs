//! How an operation of a node fails, with the code, hint and details that a client sees.

use crate::peer::PeerError;
use branchbox_catalog::CatalogError;
use branchbox_model::{Code, Coded, Retry, SandboxId, SandboxState, SnapshotState, SpecError};
use branchbox_protocol::guest::GuestError;
use branchbox_protocol::keeper::KeeperError;
use std::path::PathBuf;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No such sandbox; deleted ones count as none.
    #[error("no sandbox `{id}`")]
    NoSandbox {
        /// As asked for.
        id: String,
    },
    /// No such snapshot.
    #[error("no snapshot `{id}`")]
    NoSnapshot {
        /// As asked for.
        id: String,
    },
    /// The port is not shared.
    #[error("port {port} is not shared")]
    NoPreview {
        /// Which.
        port: u16,
    },
    /// A value that cannot be accepted here.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// No such image.
    #[error("no image `{name}`")]
    NoImage {
        /// As asked for.
        name: String,
    },
    /// Something about images.
    #[error(transparent)]
    Images(#[from] crate::images::ImagesError),
    /// The sandbox was stopped.
    #[error("sandbox {id} is stopped")]
    Stopped {
        /// Which.
        id: SandboxId,
    },
    /// The sandbox is in a state in which this cannot be done.
    #[error("sandbox {id} is {}", state_word(*state))]
    NotReady {
        /// Which.
        id: SandboxId,
        /// Its state.
        state: SandboxState,
    },
    /// The sandbox is paused, and requests do not wake it.
    #[error("sandbox {id} is paused")]
    Paused {
        /// Which.
        id: SandboxId,
    },
    /// A restart of a sandbox that is not stopped.
    #[error("sandbox {id} is {}", state_word(*state))]
    NotStopped {
        /// Which.
        id: SandboxId,
        /// Its state.
        state: SandboxState,
    },
    /// More uploads than a sandbox may have open.
    #[error("{max} uploads into this sandbox are open")]
    TooManyUploads {
        /// How many it may have.
        max: usize,
    },
    /// No such key.
    #[error("no key `{id}`")]
    NoKey {
        /// As asked for.
        id: String,
    },
    /// The name belongs to another key.
    #[error("the name `{name}` belongs to another key")]
    KeyNameTaken {
        /// As asked for.
        name: String,
    },
    /// More keys than a node may have.
    #[error("this node has {max} keys")]
    TooManyKeys {
        /// How many it may have.
        max: usize,
    },
    /// The catalog's keys make no sense.
    #[error("the keys in the catalog cannot be read: {problem}")]
    Keys {
        /// What about them.
        problem: String,
    },
    /// More interpreter contexts than a sandbox may have.
    #[error("this sandbox has {max} interpreter contexts")]
    TooManyContexts {
        /// How many it may have.
        max: usize,
    },
    /// An interpreter did not start, or went away.
    #[error("the interpreter failed: {problem}")]
    Interpreter {
        /// How.
        problem: String,
    },
    /// An upload that cannot be ended yet.
    #[error("the upload is not whole: {problem}")]
    UploadIncomplete {
        /// What is missing or wrong.
        problem: String,
    },
    /// A folder could not be packed, or an archive not be unpacked.
    #[error("tar failed: {problem}")]
    Archive {
        /// What it said.
        problem: String,
    },
    /// A wake of a sandbox that is awake.
    #[error("sandbox {id} is not paused")]
    NotPaused {
        /// Which.
        id: SandboxId,
    },
    /// The snapshot cannot be started from.
    #[error("snapshot {id} is {}", snapshot_word(*state))]
    SnapshotNotReady {
        /// Which.
        id: String,
        /// Its state.
        state: SnapshotState,
    },
    /// The snapshot stands on another base than this machine has now.
    #[error("the base of snapshot {id} was {was}, this machine's is {now}")]
    BaseChanged {
        /// Which.
        id: String,
        /// The base it stands on.
        was: String,
        /// The base there is.
        now: String,
    },
    /// A disk snapshot does not fit the disk asked for.
    #[error("a disk of {asked} MiB is smaller than the saved one of {saved} MiB")]
    DiskTooSmall {
        /// As asked for.
        asked: u32,
        /// The saved one.
        saved: u32,
    },
    /// A watch did not begin.
    #[error("the watch did not begin: {problem}")]
    Watch {
        /// What its program said.
        problem: String,
    },
    /// A watch of that id runs.
    #[error("a watch `{id}` runs already")]
    WatchTaken {
        /// The id.
        id: String,
    },
    /// A sandbox has as many watches as it may.
    #[error("{max} watches run in the sandbox, and there may be no more")]
    TooManyWatches {
        /// How many there may be.
        max: usize,
    },
    /// A key has spent what it may in a day.
    #[error("the key has spent {used_micros} of {limit_micros} microdollars that it may spend in 24 hours")]
    SpendingLimit {
        /// What it may.
        limit_micros: u64,
        /// What it has.
        used_micros: u64,
    },
    /// A key has as many sandboxes as it may.
    #[error("the key has {max} sandboxes, and may have no more at once")]
    KeySandboxes {
        /// How many it may have.
        max: u32,
    },
    /// The settings file.
    #[error(transparent)]
    Settings(#[from] crate::settings::SettingsError),
    /// Something this node does not have.
    #[error("this node has no {what}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// What to do instead.
        hint: &'static str,
    },
    /// A way out of the sandbox was asked for.
    #[error("this node has no gateway, so a sandbox has no way out")]
    NoGateway,
    /// The node is going down.
    #[error("the node is shutting down")]
    Closing,
    /// Another node has the state directory.
    #[error("the state directory {} is in use by process {pid}", path.display())]
    AlreadyRunning {
        /// The state directory.
        path: PathBuf,
        /// The other node.
        pid: u32,
    },
    /// The state directory was written by a newer version.
    #[error("the state directory {} has version {found}, this program knows up to {known}", path.display())]
    NewerState {
        /// The state directory.
        path: PathBuf,
        /// What it says.
        found: String,
        /// The newest known here.
        known: u32,
    },
    /// The node needs root.
    #[error("a node has to run as root: it makes namespaces, mounts and cgroups for its sandboxes")]
    NotRoot,
    /// This machine lacks something.
    #[error("this machine cannot run sandboxes: {problem}")]
    Host {
        /// What is missing.
        problem: String,
    },
    /// A file of the node could not be used.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Files of a sandbox could not be made or removed.
    #[error("cannot {action}: {problem}")]
    Storage {
        /// What was to be done.
        action: &'static str,
        /// Why, with its objects.
        problem: String,
        /// What kind of failure.
        code: Code,
        /// What to do.
        hint: Option<String>,
    },
    /// Too little space is left to begin.
    #[error("{free_mib} MiB are free below {}, {needed_mib} are needed", path.display())]
    LittleSpace {
        /// Where.
        path: PathBuf,
        /// What there is.
        free_mib: u64,
        /// What is needed.
        needed_mib: u64,
    },
    /// The keeper refused or failed.
    #[error("{0}")]
    Keeper(Box<KeeperError>),
    /// The guest refused or failed.
    #[error("{0}")]
    Guest(GuestError),
    /// A keeper or guest cannot be talked to.
    #[error("sandbox {id}: its {who} cannot be reached")]
    Peer {
        /// Whose.
        id: SandboxId,
        /// `keeper` or `guest`.
        who: &'static str,
        /// Why.
        #[source]
        source: PeerError,
    },
    /// A keeper ended before its sandbox ran.
    #[error("sandbox {id} could not be started: {problem}")]
    Start {
        /// Which.
        id: SandboxId,
        /// What its log says last.
        problem: String,
    },
    /// Some copies of a fork run, one failed.
    #[error("a copy could not be started ({} of the fork run)", started.len())]
    Partly {
        /// The ones that run.
        started: Vec<SandboxId>,
        /// The first failure.
        #[source]
        source: Box<NodeError>,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A task of ours ended without an answer.
    #[error("an operation of the node was cut off")]
    CutOff,
}

fn state_word(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Starting => "still starting",
        SandboxState::Running => "running",
        SandboxState::Pausing => "being paused",
        SandboxState::Paused => "paused",
        SandboxState::Resuming => "being woken",
        SandboxState::Stopping => "being stopped",
        SandboxState::Stopped => "stopped",
    }
}

fn snapshot_word(state: SnapshotState) -> &'static str {
    match state {
        SnapshotState::Capturing => "still being captured",
        SnapshotState::Ready => "ready",
        SnapshotState::Failed => "failed",
        SnapshotState::Deleting => "being deleted",
    }
}

/// The code of a file operation that the sandbox's kernel refused.
fn file_code(errno: i32) -> Code {
    use rustix::io::Errno;
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT => Code::FileNotFound,
        Errno::ISDIR => Code::IsADirectory,
        Errno::NOTDIR => Code::NotADirectory,
        // A link that leads out of what may be seen is refused with `ELOOP`.
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP => Code::PermissionDenied,
        Errno::NOSPC | Errno::DQUOT => Code::DiskFull,
        _ => Code::InvalidRequest,
    }
}

fn guest_code(error: &GuestError) -> Code {
    match error {
        GuestError::NoSuchExec(_) => Code::NotFound,
        GuestError::TooManyExecs => Code::QuotaExceeded,
        GuestError::File { errno, .. } => file_code(*errno),
        GuestError::BadCall(_) => Code::InvalidRequest,
        GuestError::Dial { .. } => Code::TunnelUnavailable,
        GuestError::Rebuild(_) => Code::GuestFailed,
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

impl NodeError {
    /// The copies of a fork that run although the fork failed.
    #[must_use]
    pub fn started(&self) -> &[SandboxId] {
        match self {
            Self::Partly { started, .. } => started,
            _ => &[],
        }
    }
}

impl Coded for NodeError {
    fn code(&self) -> Code {
        match self {
            Self::NoSandbox { .. } | Self::NoPreview { .. } => Code::NotFound,
            Self::NoSnapshot { .. } => Code::SnapshotNotFound,
            Self::NoImage { .. } => Code::ImageNotFound,
            Self::Images(error) => error.code(),
            Self::Spec(error) => error.code(),
            Self::Stopped { .. } => Code::SandboxStopped,
            Self::NotReady { .. } => Code::SandboxNotReady,
            Self::Paused { .. } => Code::SandboxPaused,
            Self::NoKey { .. } => Code::NotFound,
            Self::KeyNameTaken { .. } => Code::NameTaken,
            Self::Keys { .. } => Code::InternalError,
            Self::TooManyUploads { .. } | Self::TooManyContexts { .. } | Self::TooManyKeys { .. } => {
                Code::QuotaExceeded
            }
            Self::Watch { .. } => Code::GuestFailed,
            Self::WatchTaken { .. } => Code::NameTaken,
            Self::TooManyWatches { .. } => Code::QuotaExceeded,
            Self::SpendingLimit { .. } => Code::SpendingLimitReached,
            Self::KeySandboxes { .. } => Code::QuotaExceeded,
            Self::Settings(_) => Code::InvalidRequest,
            Self::Interpreter { .. } => Code::InterpreterFailed,
            Self::UploadIncomplete { .. } => Code::UploadIncomplete,
            Self::Archive { problem } if problem.contains("No space left") => Code::DiskFull,
            Self::Archive { problem } if problem.contains("Permission denied") => Code::PermissionDenied,
            Self::Archive { .. } => Code::InvalidRequest,
            Self::NotStopped { .. } => Code::SandboxNotStopped,
            Self::NotPaused { .. } => Code::NotPaused,
            Self::SnapshotNotReady { .. } => Code::SnapshotNotReady,
            Self::BaseChanged { .. } => Code::BaseChanged,
            Self::DiskTooSmall { .. } => Code::DiskTooSmall,
            Self::Unavailable { .. } => Code::Unavailable,
            Self::NoGateway => Code::NetworkRulesUnavailable,
            Self::Closing | Self::AlreadyRunning { .. } => Code::Busy,
            Self::NewerState { .. } | Self::NotRoot | Self::Host { .. } => Code::HostUnsupported,
            Self::File { source, .. } if is_full(source) => Code::DiskFull,
            Self::LittleSpace { .. } => Code::DiskFull,
            Self::Storage { code, .. } => *code,
            Self::File { .. } | Self::CutOff => Code::InternalError,
            Self::Keeper(error) => error.code,
            Self::Guest(error) => guest_code(error),
            Self::Peer { .. } => Code::GuestFailed,
            Self::Start { .. } => Code::StartFailed,
            Self::Partly { source, .. } => source.code(),
            Self::Catalog(error) => error.code(),
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Closing => Retry::Retry,
            Self::Partly { source, .. } => source.retry(),
            Self::Catalog(error) => error.retry(),
            _ => Retry::Permanent,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NoSandbox { .. } => "see what there is: branchbox ls",
            Self::NoSnapshot { .. } => "see what there is: branchbox snapshots ls",
            Self::NoPreview { .. } => "share it: POST …/previews with `port`",
            Self::NoImage { .. } => "see what there is: branchbox images ls",
            Self::Images(error) => return error.hint(),
            Self::Stopped { .. } => "start it again from its disk: POST …:restart; its memory is gone",
            Self::NoKey { .. } => "see what there is: branchbox keys ls",
            Self::KeyNameTaken { .. } => "choose another name, or remove that key",
            Self::TooManyKeys { .. } => "remove some that are not needed",
            Self::Keys { .. } => "restore the catalog from a copy",
            Self::TooManyContexts { .. } => "remove some that are not needed",
            Self::Watch { .. } => "check that the sandbox's user may read the folder",
            Self::WatchTaken { .. } => "stop that one, or choose another id",
            Self::TooManyWatches { .. } => "stop one that is not needed",
            Self::SpendingLimit { .. } => {
                "wait until what was spent is a day old, or make a key with a higher daily limit"
            }
            Self::KeySandboxes { .. } => "stop or delete some, or make a key that may have more",
            Self::Settings(_) => "correct the file, or remove it for the defaults",
            Self::Interpreter { .. } => "check that the sandbox has the language's program, and run the cell again",
            Self::TooManyUploads { .. } => "commit or abort some first",
            Self::UploadIncomplete { .. } => "send what is missing and commit again, or abort it",
            Self::Archive { .. } => "check the archive, the folder and its rights",
            Self::Paused { .. } => "wake it: POST …:wake, or update it with autoWake true",
            Self::NotStopped { .. } => "a restart starts a stopped sandbox; wake a paused one, or stop this one first",
            Self::NotReady { .. } => "wait until it runs: GET it with waitFor=running",
            Self::NotPaused { .. } => "it can be used as it is",
            Self::SnapshotNotReady { .. } => "wait until its state is ready; a failed one says why in `error`",
            Self::BaseChanged { .. } => "packages of this machine changed since: take a new snapshot",
            Self::DiskTooSmall { .. } => "ask for at least the saved size, or leave diskMiB out",
            Self::Unavailable { hint, .. } => hint,
            Self::NoGateway => "leave `network` out, or send internet:false without lists",
            Self::Closing => "try again when the node is up",
            Self::AlreadyRunning { .. } => "use that node, or another --state-dir",
            Self::NewerState { .. } => "start the newer branchbox that made it, or use another --state-dir",
            Self::NotRoot => "start it with sudo",
            Self::Host { .. } => "see what is missing: branchbox doctor",
            Self::File { source, .. } if is_full(source) => "free space on the state directory's disk",
            Self::Storage { hint: Some(hint), .. } => hint,
            Self::LittleSpace { .. } => {
                "delete snapshots and sandboxes that are not needed, or free space on the state directory's disk"
            }
            Self::File { .. } => "see that the state directory can be written",
            Self::Guest(error) => return guest_hint(error),
            Self::Keeper(error) => return error.hint.clone(),
            Self::Partly { source, .. } => return source.hint(),
            Self::Spec(error) => return error.hint(),
            Self::Catalog(error) => return error.hint(),
            Self::Peer { .. } | Self::Start { .. } | Self::Storage { .. } | Self::CutOff => {
                "look into the node's log and the sandbox's keeper.log"
            }
        };
        Some(text.into())
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Keeper(error) => error.details.iter().map(|(key, value)| (detail_key(key), value.clone())).collect(),
            Self::Images(error) => error.details(),
            Self::TooManyKeys { .. } => vec![("limit", "key.count".into())],
            Self::TooManyWatches { .. } => vec![("limit", "watch.count".into())],
            Self::KeySandboxes { .. } => vec![("limit", "key.sandbox.count".into())],
            Self::SpendingLimit { limit_micros, used_micros } => vec![
                ("limit", "daily".into()),
                ("limitMicros", limit_micros.to_string()),
                ("usedMicros", used_micros.to_string()),
            ],
            Self::TooManyContexts { .. } => vec![("limit", "interpreter.context.count".into())],
            Self::TooManyUploads { .. } => vec![("limit", "upload.count".into())],
            Self::Guest(GuestError::TooManyExecs) => vec![("limit", "process.count".into())],
            Self::Guest(GuestError::File { path, .. }) => vec![("path", path.clone())],
            Self::Partly { source, .. } => source.details(),
            Self::Catalog(error) => error.details(),
            _ => Vec::new(),
        }
    }
}

/// Keys of details are fixed words; a keeper of another release may know more than we do.
fn detail_key(key: &str) -> &'static str {
    const KNOWN: &[&str] = &["pid", "process", "object", "why", "path", "step", "fd", "address", "limit"];
    KNOWN.iter().find(|known| **known == key).copied().unwrap_or("more")
}

fn guest_hint(error: &GuestError) -> Option<String> {
    let text = match error {
        GuestError::NoSuchExec(_) => "see what runs: branchbox ps",
        GuestError::TooManyExecs => "end commands that are not needed",
        GuestError::File { .. } => "check the path inside the sandbox",
        GuestError::BadCall(_) => "correct the request",
        GuestError::Dial { .. } => "see that a program listens on that port on 0.0.0.0, localhost or [::]",
        GuestError::Rebuild(_) => "look into the sandbox's keeper.log",
    };
    Some(text.into())
}
