//! The pool: where the uppers of live sandboxes and the layers of captures lie.
//!
//! Three ways, found at open and kept for the life of a state directory: subvolumes right in the state directory when
//! that is btrfs; a btrfs file of our own, mounted at `STATE/pool`; or plain directories, when neither can be had. Below
//! the *pool root* (`STATE`, or `STATE/pool` with a pool file) the layout is the same:
//! `sandboxes/<id>/upper`, `layers/<name>`, `images`, `trash`. What is removed is first renamed into `trash`, so a crash
//! leaves nothing half removed under its name; the next open empties it.

mod loop_file;
mod own;
mod trash;

use crate::capture::PARTIAL;
use crate::capture::{self, LayerError};
use branchbox_model::{PoolDriver, SandboxId};
use branchbox_sys::btrfs;
use loop_file::{LoopFile, free_bytes};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Kept free on the host's file system when nothing else is said.
pub const RESERVE_BYTES_DEFAULT: u64 = 1024 * 1024 * 1024;
/// Free space a new upper needs in the pool, or a sixteenth of a small file system.
const ROOM_BYTES_MIN: u64 = 256 * 1024 * 1024;
/// Longest name of a layer.
const LAYER_NAME_BYTES_MAX: usize = 128;
/// Records which driver the state directory uses.
const RECORD: &str = "pool.json";

/// How to open a pool.
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// `None`: btrfs if it can be had.
    pub driver: Option<PoolDriver>,
    /// Bytes that stay free on the host's file system.
    pub reserve_bytes: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { driver: None, reserve_bytes: RESERVE_BYTES_DEFAULT }
    }
}

/// Why a pool cannot be opened, grown or closed.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A file or directory of the pool cannot be used.
    #[error("cannot use {}", path.display())]
    Directory {
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No program makes btrfs file systems here.
    #[error("there is no mkfs.btrfs")]
    NoMkfs,
    /// The program failed.
    #[error("mkfs.btrfs failed: {detail}")]
    Mkfs {
        /// What it said.
        detail: String,
    },
    /// The pool file cannot be mounted.
    #[error("cannot mount the pool {}", path.display())]
    Mount {
        /// The pool file.
        path: PathBuf,
        /// The kernel's error; `ENODEV`: no btrfs in this kernel.
        #[source]
        source: io::Error,
    },
    /// The pool cannot be unmounted; `EBUSY`: something runs in it.
    #[error("cannot unmount the pool {}", path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The pool file cannot grow.
    #[error("cannot grow the pool {}", path.display())]
    Grow {
        /// The pool file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Not enough free space.
    #[error("{} has less than {} MiB free", path.display(), needed >> 20)]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// How much is needed, reserve included.
        needed: u64,
    },
    /// The state directory was made with another driver and holds its layers.
    #[error("{} holds a pool of the driver {recorded:?}, not {asked:?}", path.display())]
    OtherDriver {
        /// The state directory.
        path: PathBuf,
        /// The driver it has.
        recorded: PoolDriver,
        /// The driver asked for.
        asked: PoolDriver,
    },
    /// A layer or upper.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

impl PoolError {
    fn directory(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Directory { path, source }
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    driver: PoolDriver,
    pool_file: bool,
}

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    state: PathBuf,
    root: PathBuf,
    driver: PoolDriver,
    reserve: u64,
    pool_file: Option<LoopFile>,
    fallback: Option<String>,
}

impl Pool {
    /// Opens the pool of a state directory (mode 0700, made if missing), making or mounting it, and empties its trash.
    /// One process at a time: the caller holds the state directory's lock.
    ///
    /// # Errors
    /// [`PoolError`]; without a wish for a driver, a machine that cannot have btrfs gets the plain one (see
    /// [`Pool::fallback`]), but a pool file that exists and cannot be mounted is an error.
    pub fn open(state: &Path, options: PoolOptions) -> Result<Self, PoolError> {
        make_private_dir(state)?;
        let recorded = read_record(state)?;
        let mut pool = match (recorded.as_ref().map(|record| record.driver), options.driver) {
            (Some(recorded), Some(asked)) if recorded != asked => {
                return Err(PoolError::OtherDriver { path: state.to_path_buf(), recorded, asked });
            }
            (Some(PoolDriver::Plain), _) | (None, Some(PoolDriver::Plain)) => Self::plain(state, options),
            (Some(PoolDriver::Btrfs), _) | (None, Some(PoolDriver::Btrfs)) => Self::btrfs(state, options)?,
            (None, None) => match Self::btrfs(state, options) {
                Ok(pool) => pool,
                Err(error) => Self { fallback: Some(sentence(&error)), ..Self::plain(state, options) },
            },
        };
        if pool.fallback.is_some() {
            // Made by the failed attempt, empty.
            let _ = fs_err::remove_dir(state.join("pool"));
            let _ = fs_err::remove_file(state.join("pool.btrfs"));
        }
        pool.prepare(recorded.is_none())?;
        Ok(pool)
    }

    fn plain(state: &Path, options: PoolOptions) -> Self {
        Self {
            state: state.to_path_buf(),
            root: state.to_path_buf(),
            driver: PoolDriver::Plain,
            reserve: options.reserve_bytes,
            pool_file: None,
            fallback: None,
        }
    }

    fn btrfs(state: &Path, options: PoolOptions) -> Result<Self, PoolError> {
        let plain = Self::plain(state, options);
        let directory = fs_err::File::open(state).map_err(PoolError::directory(state))?;
        if btrfs::is_btrfs(&directory).map_err(PoolError::directory(state))? && !state.join("pool.btrfs").exists() {
            return Ok(Self { driver: PoolDriver::Btrfs, ..plain });
        }
        let file = LoopFile::open(state, options.reserve_bytes)?;
        Ok(Self { driver: PoolDriver::Btrfs, root: file.mount.clone(), pool_file: Some(file), ..plain })
    }

    fn prepare(&mut self, write_record: bool) -> Result<(), PoolError> {
        for name in ["sandboxes", "layers", "images", "trash"] {
            make_private_dir(&self.root.join(name))?;
        }
        if write_record {
            let record = Record { driver: self.driver, pool_file: self.pool_file.is_some() };
            let path = self.state.join(RECORD);
            let text = serde_json::to_string(&record).map_err(|e| PoolError::directory(&path)(e.into()))?;
            fs_err::write(&path, text).map_err(PoolError::directory(&path))?;
        }
        self.collect_leftovers()
    }

    /// How uppers are kept here.
    #[must_use]
    pub fn driver(&self) -> PoolDriver {
        self.driver
    }

    /// Why the plain driver is used although nobody asked for it, as a sentence; to be said aloud.
    #[must_use]
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// The directory everything of the pool lies below.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where images belong: opening one of their files for writing then clones instead of copying, with btrfs.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
        self.root.join("images")
    }

    /// Bytes that may still be written: what the pool has left, or the host has above the reserve, whichever is less.
    ///
    /// # Errors
    /// [`PoolError::Directory`].
    pub fn room_bytes(&self) -> Result<u64, PoolError> {
        let host = free_bytes(&self.state).map_err(PoolError::directory(&self.state))?.saturating_sub(self.reserve);
        let pool = free_bytes(&self.root).map_err(PoolError::directory(&self.root))?;
        Ok(host.min(pool))
    }

    /// The writable upper of a sandbox.
    #[must_use]
    pub fn upper_path(&self, id: &SandboxId) -> PathBuf {
        self.root.join("sandboxes").join(id.as_str()).join("upper")
    }

    /// A layer; its name is a snapshot's id.
    ///
    /// # Errors
    /// [`LayerError::Name`] for what is not one component of letters, digits, `.`, `-` and `_`.
    pub fn layer_path(&self, name: &str) -> Result<PathBuf, LayerError> {
        let fine = !name.is_empty()
            && name.len() <= LAYER_NAME_BYTES_MAX
            && !name.starts_with('.')
            && !name.ends_with(PARTIAL)
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
        if fine {
            return Ok(self.root.join("layers").join(name));
        }
        Err(LayerError::Name { name: name.chars().take(LAYER_NAME_BYTES_MAX).collect() })
    }

    /// Makes an empty upper.
    ///
    /// # Errors
    /// [`PoolError::NoRoom`] when it would break the reserve; else what failed.
    pub fn new_upper(&self, id: &SandboxId) -> Result<PathBuf, PoolError> {
        self.ensure_room()?;
        let (parent, upper) = self.upper_parent(id)?;
        match self.driver {
            PoolDriver::Plain => make_new_dir(&upper)?,
            PoolDriver::Btrfs => {
                let directory = fs_err::File::open(&parent).map_err(PoolError::directory(&parent))?;
                btrfs::create_subvolume(&directory, "upper").map_err(PoolError::directory(&upper))?;
                fs_err::set_permissions(&upper, PermissionsExt::from_mode(0o700))
                    .map_err(PoolError::directory(&upper))?;
            }
        }
        Ok(upper)
    }

    /// Makes an upper that holds what a layer holds.
    ///
    /// # Errors
    /// As [`Pool::new_upper`].
    pub fn upper_from_layer(&self, layer: &str, id: &SandboxId) -> Result<PathBuf, PoolError> {
        self.ensure_room()?;
        let layer = self.layer_path(layer)?;
        let (_, upper) = self.upper_parent(id)?;
        match self.driver {
            PoolDriver::Plain => drop(capture::copy_upper(&layer, &upper)?),
            PoolDriver::Btrfs => capture::snapshot(&layer, &upper, true)?,
        }
        Ok(upper)
    }

    fn upper_parent(&self, id: &SandboxId) -> Result<(PathBuf, PathBuf), PoolError> {
        let parent = self.root.join("sandboxes").join(id.as_str());
        make_private_dir(&parent)?;
        let upper = parent.join("upper");
        Ok((parent, upper))
    }

    /// Removes a sandbox's upper; one that is not there is removed already.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn remove_upper(&self, id: &SandboxId) -> Result<(), PoolError> {
        self.remove(&self.upper_path(id), &format!("upper-{id}"))?;
        if self.pool_file.is_some() {
            // With a pool file this directory holds the upper alone; else it is the node's.
            let _ = fs_err::remove_dir(self.root.join("sandboxes").join(id.as_str()));
        }
        Ok(())
    }

    /// Removes a layer; one that is not there is removed already.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn remove_layer(&self, name: &str) -> Result<(), PoolError> {
        self.remove(&self.layer_path(name)?, &format!("layer-{name}"))
    }

    /// Bytes a layer holds on disk. With btrfs other layers may share them.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn layer_bytes(&self, name: &str) -> Result<u64, LayerError> {
        let path = self.layer_path(name)?;
        disk_bytes(&path).map_err(LayerError::directory(&path))
    }

    /// Bytes on disk below a directory of the pool.
    pub(crate) fn layer_size(&self, path: &Path) -> Result<u64, PoolError> {
        disk_bytes(path).map_err(PoolError::directory(path))
    }

    /// Bytes on disk of the files of a layer that the others do not keep as well. A file that has changed counts whole.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn own_bytes(&self, name: &str, others: &[String]) -> Result<u64, LayerError> {
        let path = self.layer_path(name)?;
        let others = others.iter().map(|other| self.layer_path(other)).collect::<Result<Vec<_>, _>>()?;
        own::bytes(&path, &others).map_err(LayerError::directory(&path))
    }

    /// Names of the layers there are, for the collection of those nobody knows.
    ///
    /// # Errors
    /// [`PoolError::Directory`].
    pub fn layers(&self) -> Result<Vec<String>, PoolError> {
        self.names_in("layers", |_| true)
    }

    /// Ids of the sandboxes that have an upper.
    ///
    /// # Errors
    /// [`PoolError::Directory`].
    pub fn uppers(&self) -> Result<Vec<SandboxId>, PoolError> {
        let names = self.names_in("sandboxes", |dir| dir.join("upper").is_dir())?;
        Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
    }

    pub(crate) fn names_in(&self, folder: &str, keep: impl Fn(&Path) -> bool) -> Result<Vec<String>, PoolError> {
        let folder = self.root.join(folder);
        let mut names = Vec::new();
        for entry in fs_err::read_dir(&folder).map_err(PoolError::directory(&folder))? {
            let entry = entry.map_err(PoolError::directory(&folder))?;
            let name = entry.file_name().into_string();
            names.extend(name.ok().filter(|name| !name.ends_with(PARTIAL) && keep(&entry.path())));
        }
        Ok(names)
    }

    fn room_needed(&self) -> Result<u64, PoolError> {
        let space = rustix::fs::statvfs(&self.root).map_err(|errno| PoolError::directory(&self.root)(errno.into()))?;
        Ok(ROOM_BYTES_MIN.min(space.f_blocks.saturating_mul(space.f_frsize) / 16))
    }

    /// Grows the pool file when little is left, and refuses when the host has no room for that.
    fn ensure_room(&self) -> Result<(), PoolError> {
        self.ensure_room_for(0)
    }

    /// The same, with so many bytes to be written.
    pub(crate) fn ensure_room_for(&self, bytes: u64) -> Result<(), PoolError> {
        let needed = self.room_needed()?.saturating_add(bytes);
        let enough = |pool: &Self| pool.room_bytes().map(|room| room >= needed);
        if enough(self)? {
            return Ok(());
        }
        if let Some(file) = &self.pool_file {
            file.grow(ROOM_BYTES_MIN.max(needed), self.reserve)?;
        }
        if enough(self)? {
            return Ok(());
        }
        Err(PoolError::NoRoom { path: self.root.clone(), needed: needed.saturating_add(self.reserve) })
    }

    /// Unmounts a pool file; for a node that leaves with nothing running.
    ///
    /// # Errors
    /// [`PoolError::Unmount`], when something still runs in it.
    pub fn close(self) -> Result<(), PoolError> {
        self.pool_file.as_ref().map_or(Ok(()), LoopFile::close)
    }
}

fn sentence(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

fn read_record(state: &Path) -> Result<Option<Record>, PoolError> {
    let path = state.join(RECORD);
    match fs_err::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| PoolError::directory(&path)(e.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(PoolError::directory(&path)(error)),
    }
}

/// A directory that only root may enter: what lies in it has unshifted ids.
fn make_private_dir(path: &Path) -> Result<(), PoolError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.and_then(|()| std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)))
        .map_err(PoolError::directory(path))
}

fn make_new_dir(path: &Path) -> Result<(), PoolError> {
    std::fs::DirBuilder::new().mode(0o700).create(path).map_err(PoolError::directory(path))
}

/// Blocks of a tree, each file once.
fn disk_bytes(root: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut seen = std::collections::HashSet::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in fs_err::read_dir(&directory)? {
            let metadata = entry?.metadata()?;
            if metadata.nlink() < 2 || metadata.is_dir() || seen.insert(metadata.ino()) {
                bytes += metadata.blocks() * 512;
            }
        }
        for entry in fs_err::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(bytes)
}
