//! What can go wrong, in the user's terms.

use branchbox_model::{Code, Coded, Retry};
use std::io;

/// Something in the sandbox that cannot be captured: who has it, what it is, why not, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("process {pid} ({process}) has {object}, which cannot be captured: {why}")]
pub struct Refusal {
    /// Pid inside the sandbox.
    pub pid: i32,
    /// Its name.
    pub process: String,
    /// The descriptor, mapping or attribute.
    pub object: String,
    /// Why not.
    pub why: String,
    /// What to do.
    pub hint: String,
    /// It goes away by itself in the ordinary course of things, so a capture tries again before it gives up.
    pub passing: bool,
}

/// A capture that did not come about. The source runs on in either case.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Law 1: it would not be exact.
    #[error(transparent)]
    Refused(#[from] Box<Refusal>),
    /// The tasks could not be brought to a stop.
    #[error("the sandbox's processes did not stop within {waited_ms} ms: {what}")]
    Stop {
        /// Milliseconds spent.
        waited_ms: u64,
        /// What did not stop.
        what: String,
    },
    /// The kernel refused a step.
    #[error("{step}")]
    Io {
        /// The step, with its object.
        step: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The image could not be written.
    #[error("the image could not be written")]
    Image(#[source] branchbox_snapshot::MachineFileError),
    /// The file layer could not be taken.
    #[error("the file layer could not be taken: {0}")]
    Layer(String),
}

impl CaptureError {
    /// Marks a refusal as one that goes away by itself.
    pub(crate) fn passing(mut self) -> Self {
        if let Self::Refused(refusal) = &mut self {
            refusal.passing = true;
        }
        self
    }

    /// An I/O failure of a named step.
    pub(crate) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Io { step, source }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

impl Coded for CaptureError {
    fn code(&self) -> Code {
        match self {
            Self::Refused(_) => Code::CaptureRefused,
            Self::Image(branchbox_snapshot::MachineFileError::Io { source, .. }) if is_full(source) => Code::DiskFull,
            _ => Code::CaptureFailed,
        }
    }
    fn retry(&self) -> Retry {
        match self {
            // Also one that passes: the capture has waited already, and a client told to retry a conflict would loop.
            Self::Refused(_) => Retry::Permanent,
            _ => Retry::Retry,
        }
    }
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Refused(refusal) => refusal.hint.clone(),
            Self::Stop { .. } => "try again; if it stays, look at what the processes wait for in the kernel".into(),
            Self::Image(_) if self.code() == Code::DiskFull => "free space in the state directory".into(),
            _ => "the source runs on; the keeper's log has the details".into(),
        })
    }
    fn details(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Refused(refusal) => vec![
                ("pid", refusal.pid.to_string()),
                ("process", refusal.process.clone()),
                ("object", refusal.object.clone()),
                ("why", refusal.why.clone()),
            ],
            _ => Vec::new(),
        }
    }
}

/// A restore that did not come about; the half-made sandbox is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The capture cannot be read.
    #[error("the capture cannot be read")]
    Image(#[source] branchbox_snapshot::MachineFileError),
    /// This host is not the one it needs.
    #[error("{0}")]
    Host(String),
    /// A file of the base image is not as it was.
    #[error("{path} of the base image is not as it was when the snapshot was taken")]
    BaseChanged {
        /// The file.
        path: String,
    },
    /// The guest could not make something.
    #[error("the guest could not rebuild the machine: {0}")]
    Guest(String),
    /// A process could not be made as it was.
    #[error("process {pid}: {step}")]
    Process {
        /// Pid inside.
        pid: i32,
        /// Which step.
        step: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused something that belongs to no process.
    #[error("{step}")]
    Io {
        /// Which step.
        step: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl RestoreError {
    pub(crate) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Io { step, source }
    }

    pub(crate) fn process(pid: i32, step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Process { pid, step, source }
    }
}

impl Coded for RestoreError {
    fn code(&self) -> Code {
        match self {
            Self::BaseChanged { .. } => Code::BaseChanged,
            Self::Host(_) => Code::HostUnsupported,
            _ => Code::RestoreFailed,
        }
    }
    fn retry(&self) -> Retry {
        Retry::Permanent
    }
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::BaseChanged { .. } => {
                "packages of the host changed underneath: capture again from a fresh sandbox".into()
            }
            Self::Host(_) => "restore it on a host like the one it was captured on".into(),
            _ => "the keeper's log has the details".into(),
        })
    }
}
