//! The btrfs pool on other file systems: a sparse file in the state directory, loop-mounted, grown on demand.
//!
//! The mount carries `nosuid,nodev`: what a sandbox stores there has unshifted ids, a set-uid file of its root included,
//! and nothing on the host may run it from there. The loop device frees itself with the mount.

use super::PoolError;
use branchbox_sys::{btrfs, loop_device};
use rustix::mount::MountFlags;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Smallest pool that is worth making; mkfs needs about half of it.
const POOL_BYTES_MIN: u64 = 256 * 1024 * 1024;
/// Largest size at first; the file is sparse, so this costs nothing until used.
const POOL_BYTES_FIRST_MAX: u64 = 64 * 1024 * 1024 * 1024;
/// The pool grows in such steps.
const GROWTH_BYTES_MIN: u64 = 1024 * 1024 * 1024;
const OPTIONS: &std::ffi::CStr = c"discard=async";
const MKFS_PLACES: &[&str] = &["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin"];

/// A mounted pool file.
#[derive(Debug)]
pub(super) struct LoopFile {
    pub(super) file: PathBuf,
    pub(super) mount: PathBuf,
    device: PathBuf,
}

impl LoopFile {
    /// Mounts the pool of `state`, making it first when there is none; takes over a mount that is already there.
    pub(super) fn open(state: &Path, reserve: u64) -> Result<Self, PoolError> {
        let (file, mount) = (state.join("pool.btrfs"), state.join("pool"));
        fs_err::create_dir_all(&mount).map_err(PoolError::directory(&mount))?;
        if let Some(device) = mounted_device(&mount)? {
            return Ok(Self { file, mount, device });
        }
        if !file.exists() {
            make_file_system(state, &file, reserve)?;
        }
        let device = mount_file(&file, &mount)?;
        Ok(Self { file, mount, device })
    }

    /// Unmounts; the kernel frees the loop device.
    pub(super) fn close(&self) -> Result<(), PoolError> {
        rustix::mount::unmount(&self.mount, rustix::mount::UnmountFlags::NOFOLLOW)
            .map_err(|e| PoolError::Unmount { path: self.mount.clone(), source: e.into() })
    }

    /// Makes room for `wanted` more bytes if the host has it, keeping `reserve` free there.
    pub(super) fn grow(&self, wanted: u64, reserve: u64) -> Result<(), PoolError> {
        let failed = |source| PoolError::Grow { path: self.file.clone(), source };
        let spare = free_bytes(&self.file).map_err(PoolError::directory(&self.file))?.saturating_sub(reserve);
        let step = wanted.max(GROWTH_BYTES_MIN).min(spare);
        if step < wanted {
            return Ok(());
        }
        let file = File::options().write(true).open(&self.file).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        file.set_len(size + step).map_err(failed)?;
        let device = File::open(&self.device).map_err(failed)?;
        loop_device::refresh_capacity(&device).map_err(failed)?;
        let mount = File::open(&self.mount).map_err(failed)?;
        btrfs::resize_to_device(&mount).map_err(failed)
    }
}

/// Bytes that can still be written on the file system of `path`.
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// The device mounted at exactly `mount`, if btrfs is.
fn mounted_device(mount: &Path) -> Result<Option<PathBuf>, PoolError> {
    let table = Path::new("/proc/thread-self/mountinfo");
    let text = fs_err::read_to_string(table).map_err(PoolError::directory(table))?;
    let wanted = fs_err::canonicalize(mount).map_err(PoolError::directory(mount))?;
    Ok(text.lines().rev().find_map(|line| {
        let (place, rest) = line.split_once(" - ")?;
        let at = place.split(' ').nth(4)?;
        let mut after = rest.split(' ');
        let is_ours = Path::new(&unescape(at)) == wanted && after.next() == Some("btrfs");
        is_ours.then(|| PathBuf::from(unescape(after.next().unwrap_or_default())))
    }))
}

/// Undoes the kernel's octal escapes of blanks.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn make_file_system(state: &Path, file: &Path, reserve: u64) -> Result<(), PoolError> {
    let size =
        free_bytes(state).map_err(PoolError::directory(state))?.saturating_sub(reserve).min(POOL_BYTES_FIRST_MAX);
    if size < POOL_BYTES_MIN {
        return Err(PoolError::NoRoom { path: state.to_path_buf(), needed: POOL_BYTES_MIN.saturating_add(reserve) });
    }
    let fresh = state.join("pool.btrfs.new");
    let made = run_mkfs(&fresh, size).and_then(|()| fs_err::rename(&fresh, file).map_err(PoolError::directory(file)));
    if made.is_err() {
        // Nothing else knows the file; the error that is returned says why.
        let _ = fs_err::remove_file(&fresh);
    }
    made
}

fn run_mkfs(fresh: &Path, size: u64) -> Result<(), PoolError> {
    let file = File::create(fresh).map_err(PoolError::directory(fresh))?;
    file.set_len(size).map_err(PoolError::directory(fresh))?;
    let program = find_mkfs().ok_or(PoolError::NoMkfs)?;
    let output = Command::new(&program)
        .args(["-q", "-f", "--nodiscard", "-m", "single", "-d", "single", "-L", "branchbox"])
        .arg(fresh)
        .env_clear()
        .output()
        .map_err(PoolError::directory(&program))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(PoolError::Mkfs { detail: text.trim().chars().take(400).collect() })
}

fn find_mkfs() -> Option<PathBuf> {
    MKFS_PLACES.iter().map(|dir| Path::new(dir).join("mkfs.btrfs")).find(|path| path.exists())
}

fn mount_file(file: &Path, mount: &Path) -> Result<PathBuf, PoolError> {
    let failed = |source: io::Error| PoolError::Mount { path: file.to_path_buf(), source };
    let backing = File::options().read(true).write(true).open(file).map_err(failed)?;
    let device = loop_device::attach(&backing).map_err(failed)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount(&device.path, mount, "btrfs", flags, OPTIONS).map_err(|e| failed(e.into()))?;
    Ok(device.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_pool_grows() {
        if !rustix::process::geteuid().is_root() || find_mkfs().is_none() {
            return;
        }
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).expect("namespace");
        let private = rustix::mount::MountPropagationFlags::PRIVATE | rustix::mount::MountPropagationFlags::REC;
        rustix::mount::mount_change("/", private).expect("private");
        let state = tempfile::tempdir().expect("directory");
        let pool = LoopFile::open(state.path(), 1 << 30).expect("pool");
        let before = rustix::fs::statvfs(&pool.mount).expect("stat").f_blocks;
        pool.grow(1 << 30, 1 << 30).expect("grown");
        let after = rustix::fs::statvfs(&pool.mount).expect("stat").f_blocks;
        assert!(after > before, "{before} {after}");
        assert!(pool.grow(1, u64::MAX).is_ok(), "no room on the host is no error of the pool");
        pool.close().expect("closed");
    }

    #[test]
    fn escaped_blanks_are_read_back() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
    }
}
