//! The default image: the user's own tools, from an allow-list of the host.
//!
//! A host image is a *skeleton* (a small directory with a filtered `/etc` and empty everything else), a *tools* layer
//! of ours above `/usr` (`sudo`, `systemctl`), and the host's `/usr`, `/opt` and package databases as read-only lower
//! layers. Both directories are built once per state of the host into `images/`, under a temporary name, then renamed.
//! What may be seen is decided by one file, [`allow`]. Ids on disk are unshifted: root is 0, `runtime` is 1000.

pub(crate) mod accounts;
pub(crate) mod allow;
mod etc;
mod identity;
mod skeleton;

use branchbox_model::{PoolDriver, RootSpec, Tree};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Grows when the layout of the tools' directory changes.
const TOOLS_FORMAT: u32 = 2;

/// Why the host image could not be made.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Something of the host's identity could not be read.
    #[error("cannot look at {}", path.display())]
    Look {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Part of the skeleton could not be copied or written.
    #[error("cannot copy {} into the host image", path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// `/etc` is larger than any system's.
    #[error("there is too much below {} for a host image", path.display())]
    TooMuch {
        /// Where the limit was met.
        path: PathBuf,
    },
}

/// A host image, ready to be the base of sandboxes.
#[derive(Debug, Clone)]
pub struct HostImage {
    /// `host:` and a digest of what programs run on; kept in snapshots and compared before a restore.
    pub identity: String,
    /// Overlays, the root first.
    pub trees: Vec<Tree>,
    /// The skeleton's directory; the root tree's only lower layer.
    pub skeleton: PathBuf,
    /// Entries of `/etc` that were left out because they look like secrets, for `doctor`.
    pub left_out: Vec<PathBuf>,
}

impl HostImage {
    /// Builds what is missing in `images_dir` and describes the image. `guest_exe` is our own executable.
    ///
    /// # Errors
    /// [`HostError`]; no half-built directory is used by a later call.
    pub fn prepare(images_dir: &Path, guest_exe: &Path) -> Result<Self, HostError> {
        Self::prepare_from(Path::new("/"), images_dir, guest_exe)
    }

    /// The same for a host whose root is another directory.
    ///
    /// # Errors
    /// As [`HostImage::prepare`].
    pub fn prepare_from(root: &Path, images_dir: &Path, guest_exe: &Path) -> Result<Self, HostError> {
        let identity = identity::identity(root)?;
        let image_dir = images_dir.join(format!("host-{}", identity.skeleton));
        build_once(images_dir, &image_dir, |dir| skeleton::build(root, dir))?;
        let tools_dir = tools(images_dir, guest_exe)?;
        let skeleton = image_dir.join("root");
        let trees = trees(root, &skeleton, &tools_dir);
        let left_out = skeleton::read_left_out(&image_dir);
        Ok(Self { identity: format!("host:{}", identity.base), trees, skeleton, left_out })
    }

    /// A root of this image alone, for a sandbox whose upper is `upper`.
    #[must_use]
    pub fn root_spec(&self, upper: PathBuf, driver: PoolDriver) -> RootSpec {
        RootSpec {
            image: self.identity.clone(),
            upper,
            driver,
            trees: self.trees.clone(),
            binds: Vec::new(),
            defaults: branchbox_model::ImageDefaults::default(),
        }
    }
}

fn trees(root: &Path, skeleton: &Path, tools: &Path) -> Vec<Tree> {
    let tree = |name: &str, lower: Vec<PathBuf>, target: PathBuf| Tree {
        name: name.to_owned(),
        lower,
        target,
        owner_outside: (0, 0),
        owner_inside: (0, 0),
    };
    let mut trees = vec![tree("root", vec![skeleton.to_path_buf()], PathBuf::from("/"))];
    for whole in allow::WHOLE {
        let host = root.join(whole);
        if !host.symlink_metadata().is_ok_and(|m| m.is_dir()) {
            continue;
        }
        let lower = if *whole == "usr" { vec![tools.join("usr"), host] } else { vec![host] };
        trees.push(tree(&whole.replace('/', "-"), lower, Path::new("/").join(whole)));
    }
    trees
}

/// The directory of our tools, built if it is not there: a layer of a root file system.
///
/// # Errors
/// [`HostError`].
pub(crate) fn tools(images_dir: &Path, guest_exe: &Path) -> Result<PathBuf, HostError> {
    let dir = images_dir.join(format!("tools{TOOLS_FORMAT}-{}", exe_key(guest_exe)?));
    build_once(images_dir, &dir, |dir| skeleton::build_tools(guest_exe, dir))?;
    Ok(dir)
}

/// Changes whenever the executable does; cheaper than reading it.
fn exe_key(exe: &Path) -> Result<String, HostError> {
    let metadata = exe.metadata().map_err(|source| HostError::Look { path: exe.to_path_buf(), source })?;
    let mut hasher = blake3::Hasher::new();
    for number in [metadata.dev(), metadata.ino(), metadata.len(), metadata.mtime().cast_unsigned()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&metadata.mtime_nsec().to_le_bytes());
    Ok(hasher.finalize().to_hex()[..16].to_owned())
}

/// Runs `build` on a directory under a temporary name and renames it, unless `finished` is there.
pub(crate) fn build_once<E: From<HostError>>(
    images_dir: &Path,
    finished: &Path,
    build: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    if finished.is_dir() {
        return Ok(());
    }
    let failed = |path: &Path, source| E::from(HostError::Copy { path: path.to_path_buf(), source });
    fs_err::create_dir_all(images_dir).map_err(|e| failed(images_dir, e))?;
    // It holds a set-uid file that must not be within reach of the host's users.
    fs_err::set_permissions(images_dir, PermissionsExt::from_mode(0o700)).map_err(|e| failed(images_dir, e))?;
    let name = finished.file_name().unwrap_or_default().to_string_lossy();
    let temporary = images_dir.join(format!("{name}.building-{}", std::process::id()));
    // A leftover of a crash under the same process id.
    if temporary.exists() {
        fs_err::remove_dir_all(&temporary).map_err(|e| failed(&temporary, e))?;
    }
    fs_err::create_dir(&temporary).map_err(|e| failed(&temporary, e))?;
    let built = build(&temporary).and_then(|()| match fs_err::rename(&temporary, finished) {
        // Another process was faster; its directory holds the same.
        Err(_) if finished.is_dir() => Ok(()),
        other => other.map_err(|e| failed(finished, e)),
    });
    if temporary.exists() {
        fs_err::remove_dir_all(&temporary).map_err(|e| failed(&temporary, e))?;
    }
    built
}

/// Removes directories that a killed process left half built.
///
/// # Errors
/// That of listing the directory.
pub fn collect_leftovers(images_dir: &Path) -> io::Result<()> {
    let Ok(entries) = fs_err::read_dir(images_dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((_, pid)) = name.split_once(".building-") else { continue };
        if !Path::new("/proc").join(pid).exists() {
            fs_err::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
