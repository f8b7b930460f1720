//! Removing: first a rename out of the way, then the slow part; what a crash leaves is collected at the next open.

use super::{PARTIAL, Pool, PoolError};
use crate::copy::remove_tree;
use branchbox_sys::btrfs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

impl Pool {
    /// Renames `path` into the trash and removes it there.
    pub(crate) fn remove(&self, path: &Path, label: &str) -> Result<(), PoolError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        if let (Ok(true), Some(parent)) = (is_subvolume(path), path.parent()) {
            // Gone at once for everybody; a read-only one could not even be renamed.
            return self.destroy(parent, &path.file_name().unwrap_or_default().to_string_lossy());
        }
        let trash = self.root.join("trash");
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{label}-{}-{number}", std::process::id());
        match fs_err::rename(path, trash.join(&name)) {
            Ok(()) => self.destroy(&trash, &name),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(PoolError::directory(path)(error)),
        }
    }

    /// Empties the trash and removes layers that a capture did not finish.
    pub(super) fn collect_leftovers(&self) -> Result<(), PoolError> {
        for layers in [self.root.join("layers"), self.root.join("images/layers")] {
            if !layers.is_dir() {
                continue;
            }
            for name in list(&layers)? {
                if name.ends_with(PARTIAL) {
                    self.remove(&layers.join(&name), &name)?;
                }
            }
        }
        let trash = self.root.join("trash");
        for name in list(&trash)? {
            // A tree under removal is flattened into the trash, so one of these may be gone with another.
            if trash.join(&name).symlink_metadata().is_ok() {
                self.destroy(&trash, &name)?;
            }
        }
        Ok(())
    }

    fn destroy(&self, directory: &Path, name: &str) -> Result<(), PoolError> {
        let path = directory.join(name);
        let remove = || -> std::io::Result<()> {
            let parent: OwnedFd = std::fs::File::open(directory)?.into();
            if is_subvolume(&path)? { btrfs::destroy_subvolume(&parent, name) } else { remove_tree(&parent, name) }
        };
        remove().map_err(PoolError::directory(&path))
    }
}

fn is_subvolume(path: &Path) -> std::io::Result<bool> {
    btrfs::is_subvolume(std::fs::File::open(path)?)
}

fn list(directory: &Path) -> Result<Vec<String>, PoolError> {
    let mut names = Vec::new();
    for entry in fs_err::read_dir(directory).map_err(PoolError::directory(directory))? {
        let entry = entry.map_err(PoolError::directory(directory))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}
