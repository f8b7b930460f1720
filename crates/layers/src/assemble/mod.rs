//! Turning a [`RootSpec`] into detached mounts that another mount namespace can attach.
//!
//! Everything on disk keeps unshifted ids; each layer is cloned as an id-mapped mount that shows them in the sandbox's
//! range, and the overlay is made over the clones. The overlay itself cannot be id-mapped (the kernel refuses), and a
//! capture never remounts. Invariants: no mount made here is visible in any namespace until somebody attaches it, and
//! all are gone when their descriptors are closed. Submounts of a lower directory are not crossed.
//!
//! Kernels before 6.15 refuse detached mounts as overlay layers; then the layers are attached in a private mount
//! namespace of a short-lived thread, which ends with it ([`overlay`]).

mod credentials;
mod id_map;
mod overlay;
mod target;

pub use target::{NewDirectory, TargetKind, Unmounted};

use crate::changes::Owners;
use branchbox_model::{Bind, IdRange, RootSpec, Tree};
use branchbox_sys::mount_attr::{MountChange, set_mount_attributes};
use id_map::IdMaps;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Most trees and binds of one root.
pub const MOUNTS_MAX: usize = 256;

/// A mount that is nowhere yet.
#[derive(Debug)]
pub struct AssembledMount {
    /// The detached mount; attach it with `move_mount`.
    pub fd: OwnedFd,
    /// Absolute path inside the sandbox.
    pub target: PathBuf,
}

/// Why a root could not be put together.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The file system cannot show other ids than it stores.
    #[error("the file system of {} has no id-mapped mounts", path.display())]
    NoIdMap {
        /// The layer.
        path: PathBuf,
    },
    /// A layer or the source of a bind could not be cloned.
    #[error("cannot clone the mount of {}", path.display())]
    Clone {
        /// The directory or file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The namespace that carries an id map could not be made.
    #[error("cannot make a user namespace for an id map")]
    IdMap(#[source] io::Error),
    /// The overlay was refused.
    #[error("cannot mount the overlay of tree `{tree}`: {detail}")]
    Overlay {
        /// The tree.
        tree: String,
        /// What the kernel logged about it.
        detail: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A mount point could not be made.
    #[error("cannot make the mount point {}", path.display())]
    Target {
        /// Absolute path inside.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The specification itself is wrong.
    #[error("the root cannot be put together: {0}")]
    Spec(String),
}

/// Makes every mount of `root` with ids in `range`: trees first (the root tree leads), then binds, in their order.
///
/// Makes missing `up`, `work` and mount points in the upper. The caller must be root in the initial namespaces.
///
/// # Errors
/// [`AssembleError`]; nothing stays mounted then.
pub fn assemble(root: &RootSpec, range: IdRange) -> Result<Vec<AssembledMount>, AssembleError> {
    check(root)?;
    prepare_upper(root)?;
    for tree in root.trees.iter().skip(1) {
        ensure_target(root, &tree.target, TargetKind::Directory)?;
    }
    for bind in &root.binds {
        let kind = if bind.source.is_dir() { TargetKind::Directory } else { TargetKind::File };
        ensure_target(root, &bind.target, kind)?;
    }
    let mut maps = IdMaps::new(range);
    let mut mounts = Vec::with_capacity(root.trees.len() + root.binds.len());
    for tree in &root.trees {
        mounts.push(mount_tree(root, tree, &mut maps)?);
    }
    for bind in &root.binds {
        mounts.push(mount_bind(bind, &mut maps)?);
    }
    Ok(mounts)
}

/// Refuses what would escape the upper or mount in the wrong order.
fn check(root: &RootSpec) -> Result<(), AssembleError> {
    let wrong = |text: String| Err(AssembleError::Spec(text));
    if root.trees.len() + root.binds.len() > MOUNTS_MAX {
        return wrong(format!("more than {MOUNTS_MAX} mounts"));
    }
    let mut names = std::collections::BTreeSet::new();
    for tree in &root.trees {
        let one_component = !tree.name.is_empty() && tree.name != "." && tree.name != ".." && !tree.name.contains('/');
        if !one_component || !names.insert(&tree.name) {
            return wrong(format!("`{}` does not name one tree", tree.name.escape_debug()));
        }
        if tree.lower.is_empty() {
            return wrong(format!("tree `{}` has no lower directory", tree.name));
        }
    }
    match root.trees.first() {
        Some(first) if first.target == Path::new("/") => Ok(()),
        _ => wrong("the first tree is not the root".to_owned()),
    }
}

/// Makes `<tree>/up` and `<tree>/work` where they are missing; a new `up` looks like the directory it covers.
fn prepare_upper(root: &RootSpec) -> Result<(), AssembleError> {
    for tree in &root.trees {
        let failed = |path: &Path, source| AssembleError::Target { path: path.to_path_buf(), source };
        let tree_dir = root.upper.join(&tree.name);
        let (up, work) = (tree_dir.join("up"), tree_dir.join("work"));
        fs_err::create_dir_all(&work).map_err(|e| failed(&work, e))?;
        if up.symlink_metadata().is_ok() {
            continue;
        }
        let lower = &tree.lower[0];
        let stat =
            rustix::fs::stat(lower).map_err(|e| AssembleError::Clone { path: lower.clone(), source: e.into() })?;
        make_like(&up, &stat, tree).map_err(|e| failed(&up, e))?;
    }
    Ok(())
}

fn make_like(up: &Path, stat: &rustix::fs::Stat, tree: &Tree) -> io::Result<()> {
    fs_err::create_dir(up)?;
    let (uid, gid) = owners(tree).shown(stat.st_uid, stat.st_gid);
    std::os::unix::fs::chown(up, Some(uid), Some(gid))?;
    rustix::fs::chmod(up, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    Ok(())
}

/// Makes the mount point in the tree that will show it: the deepest other one that it lies in.
fn ensure_target(root: &RootSpec, target: &Path, kind: TargetKind) -> Result<(), AssembleError> {
    let shows = |tree: &&Tree| tree.target != target && target.starts_with(&tree.target);
    let Some(tree) = root.trees.iter().filter(shows).max_by_key(|tree| tree.target.components().count()) else {
        return Err(AssembleError::Spec(format!("{} lies in no tree", target.display())));
    };
    let up = root.upper.join(&tree.name).join("up");
    let unmounted = Unmounted { up: &up, lowers: &tree.lower, owners: owners(tree) };
    let inside = Path::new("/").join(target.strip_prefix(&tree.target).unwrap_or(target));
    unmounted.ensure(&inside, kind, NewDirectory::default())
}

fn owners(tree: &Tree) -> Owners {
    Owners { outside: tree.owner_outside, inside: tree.owner_inside }
}

fn mount_tree(root: &RootSpec, tree: &Tree, maps: &mut IdMaps) -> Result<AssembledMount, AssembleError> {
    let mut lowers = Vec::with_capacity(tree.lower.len());
    for lower in &tree.lower {
        let map = maps.get(tree.owner_outside, tree.owner_inside).map_err(AssembleError::IdMap)?;
        lowers.push(clone_mapped(lower, MountChange { read_only: true, nosuid_nodev: false, id_map: Some(map) })?);
    }
    let tree_dir = root.upper.join(&tree.name);
    let map = maps.get((0, 0), (0, 0)).map_err(AssembleError::IdMap)?;
    let upper = clone_mapped(&tree_dir, MountChange { read_only: false, nosuid_nodev: false, id_map: Some(map) })?;
    let layers = overlay::Layers { lowers, upper, range: maps.range() };
    let fd = overlay::mount(&tree.name, layers)?;
    Ok(AssembledMount { fd, target: tree.target.clone() })
}

fn mount_bind(bind: &Bind, maps: &mut IdMaps) -> Result<AssembledMount, AssembleError> {
    let map = maps.get(bind.owner_outside, bind.owner_inside).map_err(AssembleError::IdMap)?;
    let change = MountChange { read_only: bind.read_only, nosuid_nodev: true, id_map: Some(map) };
    Ok(AssembledMount { fd: clone_mapped(&bind.source, change)?, target: bind.target.clone() })
}

/// A detached clone of the mount at `path`, with `change` applied.
fn clone_mapped(path: &Path, change: MountChange<'_>) -> Result<OwnedFd, AssembleError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let cloned = rustix::mount::open_tree(CWD, path, flags);
    let mount = cloned.map_err(|e| AssembleError::Clone { path: path.to_path_buf(), source: e.into() })?;
    match set_mount_attributes(&mount, change) {
        Ok(()) => Ok(mount),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && change.id_map.is_some() => {
            Err(AssembleError::NoIdMap { path: path.to_path_buf() })
        }
        Err(source) => Err(AssembleError::Clone { path: path.to_path_buf(), source }),
    }
}

/// Whether the file system of `path` has id-mapped mounts, found by making one.
///
/// # Errors
/// [`AssembleError`] other than `NoIdMap`.
pub fn has_id_mapped_mounts(path: &Path, range: IdRange) -> Result<bool, AssembleError> {
    let mut maps = IdMaps::new(range);
    let map = maps.get((0, 0), (0, 0)).map_err(AssembleError::IdMap)?;
    match clone_mapped(path, MountChange { read_only: true, nosuid_nodev: true, id_map: Some(map) }) {
        Ok(_) => Ok(true),
        Err(AssembleError::NoIdMap { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens a directory below a (detached) mount, never through a symlink.
fn open_below(mount: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
    Ok(rustix::fs::openat(mount, name, flags, Mode::empty())?)
}
