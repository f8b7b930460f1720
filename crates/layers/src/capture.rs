//! Taking an upper as it stands and keeping it as an immutable layer.
//!
//! Called while the processes stand still. With btrfs it is a read-only snapshot: nothing is copied, inode numbers stay.
//! The plain driver copies, under a temporary name that a rename makes whole; the overlay's work directories are
//! scratch and stay empty in the copy. Either way a layer that has its name is complete.

use crate::copy::{self, CopyError};
use branchbox_model::PoolDriver;
use branchbox_sys::btrfs;
use std::io;
use std::path::{Path, PathBuf};

/// What a layer under construction is called at its end.
pub(crate) const PARTIAL: &str = ".partial";

/// What taking a layer cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerReport {
    /// How it was taken.
    pub driver: PoolDriver,
    /// Files and directories copied; 0 for a snapshot.
    pub entries: u64,
    /// Bytes copied or shared; 0 for a snapshot.
    pub bytes: u64,
}

/// Why a layer could not be taken or used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The name is not one path component of ordinary characters.
    #[error("`{}` is no name of a layer", name.escape_debug())]
    Name {
        /// The name.
        name: String,
    },
    /// A snapshot was refused.
    #[error("cannot snapshot {}", path.display())]
    Snapshot {
        /// The subvolume.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// An entry could not be copied.
    #[error("cannot copy {}", path.display())]
    Copy {
        /// The entry.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A directory of the pool could not be opened, renamed or removed.
    #[error("cannot use {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl LayerError {
    pub(crate) fn directory(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Directory { path, source }
    }

    /// The kernel's error, if there is one.
    #[must_use]
    pub fn source_io(&self) -> Option<&io::Error> {
        match self {
            Self::Name { .. } => None,
            Self::Snapshot { source, .. } | Self::Copy { source, .. } | Self::Directory { source, .. } => Some(source),
        }
    }
}

/// Starts writing an upper's dirty data, so that little is left to flush in the pause. Only btrfs flushes in a snapshot.
///
/// # Errors
/// [`LayerError::Directory`].
pub fn start_writeback(upper: &Path) -> Result<(), LayerError> {
    let directory = fs_err::File::open(upper).map_err(LayerError::directory(upper))?;
    let flush = || -> io::Result<()> {
        if btrfs::is_btrfs(&directory)? {
            rustix::fs::syncfs(&directory)?;
        }
        Ok(())
    };
    flush().map_err(LayerError::directory(upper))
}

/// Makes `layer`, which must not exist, what `upper` holds now.
///
/// # Errors
/// [`LayerError`]; nothing has the layer's name then.
pub fn capture_layer(upper: &Path, layer: &Path, driver: PoolDriver) -> Result<LayerReport, LayerError> {
    match driver {
        PoolDriver::Btrfs => {
            snapshot(upper, layer, false)?;
            Ok(LayerReport { driver, entries: 0, bytes: 0 })
        }
        PoolDriver::Plain => {
            let copied = copy_upper(upper, layer)?;
            Ok(LayerReport { driver, entries: copied.entries, bytes: copied.bytes })
        }
    }
}

/// Makes the new subvolume `to` a snapshot of `from`.
pub(crate) fn snapshot(from: &Path, to: &Path, writable: bool) -> Result<(), LayerError> {
    let (parent, name) = split(to)?;
    let source = fs_err::File::open(from).map_err(LayerError::directory(from))?;
    let directory = fs_err::File::open(parent).map_err(LayerError::directory(parent))?;
    let failed = |source| LayerError::Snapshot { path: from.to_path_buf(), source };
    btrfs::snapshot_subvolume(&source, &directory, name, writable).map_err(failed)
}

/// Makes the new directory `to` an exact copy of the upper `from`, complete before it has its name.
pub(crate) fn copy_upper(from: &Path, to: &Path) -> Result<copy::Copied, LayerError> {
    let (parent, name) = split(to)?;
    if to.symlink_metadata().is_ok() {
        return Err(LayerError::directory(to)(io::ErrorKind::AlreadyExists.into()));
    }
    let partial = parent.join(format!("{name}{PARTIAL}"));
    let scratch = scratch_directories(from).map_err(LayerError::directory(from))?;
    let copied = copy::copy_tree(from, &partial, &scratch)
        .map_err(|CopyError { path, source }| LayerError::Copy { path: from.join(path), source })
        .and_then(|copied| fs_err::rename(&partial, to).map(|()| copied).map_err(LayerError::directory(to)));
    if copied.is_err() && partial.exists() {
        let open = fs_err::File::open(parent).map_err(LayerError::directory(parent))?;
        copy::remove_tree(&open.into_parts().0.into(), &format!("{name}{PARTIAL}"))
            .map_err(LayerError::directory(&partial))?;
    }
    copied
}

/// `<tree>/work` of every tree.
fn scratch_directories(upper: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs_err::read_dir(upper)? {
        found.push(PathBuf::from(entry?.file_name()).join("work"));
    }
    Ok(found)
}

/// The parent and the name of a layer or upper.
fn split(path: &Path) -> Result<(&Path, &str), LayerError> {
    match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) => Ok((parent, name)),
        _ => Err(LayerError::Name { name: path.display().to_string() }),
    }
}
