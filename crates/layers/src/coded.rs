//! Stable codes, retry classes and hints of this crate's errors.

use crate::changes::ChangesError;
use crate::writeback::WriteBackError;
use crate::{AssembleError, HostError, ImageError, LayerError, PoolError};
use branchbox_model::{Code, Coded, Retry};
use std::io;

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A full disk is its own code wherever it shows.
fn code_of(source: Option<&io::Error>, otherwise: Code) -> Code {
    if source.is_some_and(is_full) { Code::DiskFull } else { otherwise }
}

fn retry_of(code: Code) -> Retry {
    if code == Code::DiskFull { Retry::Retry } else { Retry::Permanent }
}

const FREE_SPACE: &str = "free some disk space, or remove snapshots: `branchbox snapshots rm`";

impl Coded for AssembleError {
    fn code(&self) -> Code {
        match self {
            Self::NoIdMap { .. } => Code::HostUnsupported,
            Self::Clone { source, .. } | Self::Overlay { source, .. } | Self::Target { source, .. } => {
                code_of(Some(source), Code::StartFailed)
            }
            Self::IdMap(source) => code_of(Some(source), Code::HostUnsupported),
            Self::Spec(_) => Code::InternalError,
        }
    }

    fn retry(&self) -> Retry {
        retry_of(self.code())
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoIdMap { .. } => "use a directory on ext4, xfs, btrfs or tmpfs".into(),
            _ if self.code() == Code::DiskFull => FREE_SPACE.into(),
            _ => "see what this machine lacks: `branchbox doctor`".into(),
        })
    }
}

impl Coded for HostError {
    fn code(&self) -> Code {
        match self {
            Self::Look { source, .. } | Self::Copy { source, .. } => code_of(Some(source), Code::StartFailed),
            Self::TooMuch { .. } => Code::StartFailed,
        }
    }

    fn retry(&self) -> Retry {
        retry_of(self.code())
    }

    fn hint(&self) -> Option<String> {
        let full = self.code() == Code::DiskFull;
        Some(if full {
            FREE_SPACE.into()
        } else {
            "see that the path can be read and the state directory written".into()
        })
    }
}

impl Coded for LayerError {
    fn code(&self) -> Code {
        match self {
            Self::Name { .. } => Code::InvalidRequest,
            _ => code_of(self.source_io(), Code::CaptureFailed),
        }
    }

    fn retry(&self) -> Retry {
        retry_of(self.code())
    }

    fn hint(&self) -> Option<String> {
        (self.code() == Code::DiskFull).then(|| FREE_SPACE.into())
    }
}

impl Coded for PoolError {
    fn code(&self) -> Code {
        match self {
            Self::NoRoom { .. } => Code::DiskFull,
            Self::NoMkfs | Self::Mkfs { .. } | Self::Mount { .. } => Code::HostUnsupported,
            Self::Unmount { .. } => Code::Busy,
            Self::OtherDriver { .. } => Code::InvalidRequest,
            Self::Directory { source, .. } | Self::Grow { source, .. } => code_of(Some(source), Code::InternalError),
            Self::Layer(error) => error.code(),
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Unmount { .. } => Retry::Retry,
            _ => retry_of(self.code()),
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NoMkfs => "install btrfs-progs, or use the plain driver".into(),
            Self::Mkfs { .. } | Self::Mount { .. } => "use the plain driver".into(),
            Self::Unmount { .. } => "end the sandboxes first".into(),
            Self::OtherDriver { .. } => "leave the driver out, or use a new state directory".into(),
            Self::Layer(error) => return error.hint(),
            _ if self.code() == Code::DiskFull => FREE_SPACE.into(),
            _ => "see that the state directory can be written".into(),
        })
    }
}

impl Coded for ImageError {
    fn code(&self) -> Code {
        match self {
            Self::File { source, .. } => code_of(Some(source), Code::InternalError),
            Self::Entry { source, .. } => code_of(Some(source), Code::ImageBuildFailed),
            Self::Archive { .. } | Self::Unfit { .. } | Self::Stopped => Code::ImageBuildFailed,
            Self::Assemble(error) => error.code(),
            Self::Pool(error) => error.code(),
        }
    }

    fn retry(&self) -> Retry {
        retry_of(self.code())
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Assemble(error) => return error.hint(),
            Self::Pool(error) => return error.hint(),
            _ if self.code() == Code::DiskFull => FREE_SPACE.into(),
            Self::Stopped => "make it again when the node is up".into(),
            Self::File { .. } => "see that the state directory can be written".into(),
            _ => "an image is a root file system, or layers of OCI or docker, for linux/amd64".into(),
        })
    }
}

impl Coded for ChangesError {
    fn code(&self) -> Code {
        Code::InternalError
    }

    fn retry(&self) -> Retry {
        Retry::Retry
    }
}

impl Coded for WriteBackError {
    fn code(&self) -> Code {
        match self {
            Self::Changes(error) => error.code(),
            Self::TooMany => Code::TooLarge,
            Self::Conflict { .. } => Code::BaseChanged,
            Self::Journal { source, .. } | Self::Stage { source, .. } | Self::Apply { source, .. } => {
                code_of(Some(source), Code::InternalError)
            }
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::Conflict { .. } => Retry::Conflict,
            _ => retry_of(self.code()),
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Conflict { .. } => "look at both versions and run the step again".into(),
            Self::TooMany => "run the step in a smaller directory".into(),
            _ if self.code() == Code::DiskFull => FREE_SPACE.into(),
            _ => "see that the directory can be written".into(),
        })
    }
}
