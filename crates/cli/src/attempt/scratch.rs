//! The temporary state directory of one `try`.
//!
//! It must hold an overlay's upper, which overlay, network and FAT file systems cannot; so the first place that can is
//! taken, and memory only when no disk can, said aloud. The directory carries a lock for as long as its owner lives:
//! what a killed run left behind is known by its free lock and removed by the next.

use crate::fault::Fault;
use rustix::fs::statfs;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name of a state directory begins so.
const PREFIX: &str = "branchbox-try-";
/// Name of a kept branch begins so.
const KEPT_PREFIX: &str = "branchbox-kept-";
/// Least free space of a place that is taken.
const FREE_BYTES_MIN: u64 = 256 << 20;
/// How long a branch that met a conflict is kept.
pub const KEPT: Duration = Duration::from_secs(3600);
/// How long a directory without a lock may belong to a run that is just starting.
const UNLOCKED: Duration = Duration::from_secs(60);
/// File systems that cannot hold an overlay's upper: overlay, NFS, CIFS, SMB2, 9p, FUSE, FAT, exFAT, ramfs.
const NO_UPPER: &[u64] =
    &[0x794c_7630, 0x6969, 0xff53_4d42, 0xfe53_4d42, 0x0102_1997, 0x6573_5546, 0x4d44, 0x2011_bab0, 0x8584_58f6];
const TMPFS: u64 = 0x0102_1994;

/// A state directory that goes away with its value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    in_memory: bool,
    // Held for its lock.
    _lock: File,
}

impl Scratch {
    /// Takes the first place that can hold an upper.
    ///
    /// # Errors
    /// A [`Fault`] that names what was looked at.
    pub fn make(temporary: Option<&Path>) -> Result<Self, Fault> {
        let disks = temporary.into_iter().chain([Path::new("/var/tmp"), Path::new("/tmp")]);
        let places: Vec<(&Path, bool)> = disks
            .map(|place| (place, false))
            .chain([(Path::new("/dev/shm"), true), (Path::new("/run"), true)])
            .collect();
        let mut looked = Vec::new();
        for &(place, memory) in &places {
            match suits(place) {
                Ok(kind) => return Self::make_in(place, kind == TMPFS).map_err(|error| made(place, &error)),
                Err(_) if memory && !place.exists() => {}
                Err(why) => looked.push(format!("{}: {why}", place.display())),
            }
        }
        let fault = Fault::cannot_run("no place for a temporary state directory");
        let fault = looked.into_iter().fold(fault, Fault::cause);
        Err(fault.hint("set TMPDIR to a directory on ext4, xfs or btrfs with free space"))
    }

    fn make_in(place: &Path, in_memory: bool) -> std::io::Result<Self> {
        collect(place);
        let path = place.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::create(path.join("try.lock"))?;
        lock.try_lock().map_err(std::io::Error::from)?;
        Ok(Self { path, in_memory, _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether changes are held in memory.
    #[must_use]
    pub fn in_memory(&self) -> bool {
        self.in_memory
    }

    /// Moves a directory of it aside, to be kept for [`KEPT`].
    ///
    /// # Errors
    /// When the directory cannot be renamed.
    pub fn keep(&self, directory: &Path) -> std::io::Result<PathBuf> {
        let place = self.path.parent().unwrap_or(Path::new("/"));
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().replacen(PREFIX, KEPT_PREFIX, 1);
        let kept = place.join(name);
        let _ = std::fs::remove_dir_all(&kept);
        std::fs::DirBuilder::new().mode(0o700).create(&kept)?;
        fs_err::rename(directory, kept.join("files"))?;
        Ok(kept.join("files"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The keepers of this run remove it too; what stays is collected by the next run.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn made(place: &Path, error: &std::io::Error) -> Fault {
    Fault::cannot_run(format!("cannot make a state directory in {}", place.display())).because(error)
}

/// The file system's number, or why the place does not suit.
fn suits(place: &Path) -> Result<u64, String> {
    let facts = statfs(place).map_err(|error| std::io::Error::from(error).to_string())?;
    #[expect(clippy::cast_sign_loss, reason = "a magic number, whatever type this target gives it")]
    let kind = facts.f_type as u64 & 0xffff_ffff;
    if NO_UPPER.contains(&kind) {
        return Err("its file system cannot hold an overlay's upper".into());
    }
    #[expect(clippy::cast_sign_loss, reason = "a block size")]
    let free = facts.f_bavail.saturating_mul(facts.f_bsize as u64);
    if free < FREE_BYTES_MIN {
        return Err(format!("{} free, {} needed", crate::text::bytes(free), crate::text::bytes(FREE_BYTES_MIN)));
    }
    Ok(kind)
}

/// Removes what runs that were killed left behind, and kept branches whose time is over.
fn collect(place: &Path) {
    for entry in fs_err::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // Another user's directory of this name in a shared place is not ours to remove.
        let Ok(facts) = entry.metadata() else { continue };
        if !facts.is_dir() || facts.uid() != rustix::process::geteuid().as_raw() {
            continue;
        }
        let age = facts.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        let over =
            (name.starts_with(KEPT_PREFIX) && age > KEPT) || (name.starts_with(PREFIX) && is_free(&entry.path(), age));
        if over {
            // Keepers of that run may still be ending; the run after this one tries again.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_free(state: &Path, age: Duration) -> bool {
    match File::open(state.join("try.lock")) {
        Ok(lock) => lock.try_lock().is_ok(),
        // A run makes its lock at once: without one and old, nobody is behind it.
        Err(error) => error.kind() == std::io::ErrorKind::NotFound && age > UNLOCKED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_runs_directory_is_collected_a_live_ones_is_not() {
        let place = tempfile::tempdir_in("/var/tmp").expect("temporary directory");
        let dead = place.path().join(format!("{PREFIX}dead"));
        fs_err::create_dir_all(dead.join("sandboxes/x")).expect("directory");
        fs_err::write(dead.join("try.lock"), "").expect("file");
        let live = place.path().join(format!("{PREFIX}live"));
        fs_err::create_dir(&live).expect("directory");
        let lock = File::create(live.join("try.lock")).expect("lock");
        lock.try_lock().expect("locks");
        let kept = place.path().join(format!("{KEPT_PREFIX}new"));
        fs_err::create_dir(&kept).expect("directory");
        let scratch = Scratch::make_in(place.path(), false).expect("makes");
        assert!(!dead.exists() && live.exists() && kept.exists() && scratch.path().exists());
        let path = scratch.path().to_path_buf();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn a_kept_branch_outlives_its_run() {
        let place = tempfile::tempdir_in("/var/tmp").expect("temporary directory");
        let scratch = Scratch::make_in(place.path(), false).expect("makes");
        fs_err::create_dir_all(scratch.path().join("upper/repo")).expect("directory");
        let kept = scratch.keep(&scratch.path().join("upper/repo")).expect("keeps");
        drop(scratch);
        assert!(kept.is_dir());
    }
}
