//! The few btrfs ioctls a pool needs: make, snapshot and remove subvolumes, resize the file system.
//!
//! C: `linux/btrfs.h`, `BTRFS_IOC_*`; all older than Linux 4.0 (`SNAP_DESTROY` without a mount option needs root). A
//! name is one path component; the kernel refuses others.
#![expect(unsafe_code, reason = "ioctls by hand")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const NAME_BYTES: usize = 4088;
const NAME_V2_BYTES: usize = 4040;
const SUBVOL_RDONLY: u64 = 1 << 1;
/// The inode number of every subvolume's root.
const SUBVOLUME_ROOT_INODE: u64 = 256;
const BTRFS_MAGIC: i64 = 0x9123_683E;

const fn iow(number: u64) -> u64 {
    (1 << 30) | (4096 << 16) | (0x94 << 8) | number
}
const RESIZE: u64 = iow(3);
const SUBVOL_CREATE: u64 = iow(14);
const SNAP_DESTROY: u64 = iow(15);
const SNAP_CREATE_V2: u64 = iow(23);

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; NAME_BYTES],
}

/// `struct btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME_V2_BYTES],
}

/// Whether the open directory or file lies on btrfs.
///
/// # Errors
/// That of `fstatfs`.
pub fn is_btrfs(fd: impl AsFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(fd)?.f_type == BTRFS_MAGIC)
}

/// Whether the open directory is the root of a subvolume.
///
/// # Errors
/// That of `fstat`.
pub fn is_subvolume(fd: impl AsFd) -> io::Result<bool> {
    let fd = fd.as_fd();
    Ok(rustix::fs::fstat(fd)?.st_ino == SUBVOLUME_ROOT_INODE && is_btrfs(fd)?)
}

/// Makes an empty subvolume `name` in the directory `parent`.
///
/// # Errors
/// The kernel's error; `EINVAL` for a name too long.
pub fn create_subvolume(parent: impl AsFd, name: &str) -> io::Result<()> {
    vol_args_call(parent.as_fd(), SUBVOL_CREATE, name)
}

/// Removes the subvolume `name` of the directory `parent`; its space is freed in the background.
///
/// # Errors
/// The kernel's error; `EINVAL` when it is no subvolume, `ENOTEMPTY` when it holds others.
pub fn destroy_subvolume(parent: impl AsFd, name: &str) -> io::Result<()> {
    vol_args_call(parent.as_fd(), SNAP_DESTROY, name)
}

/// Makes the file system of `mount` as large as its device.
///
/// # Errors
/// The kernel's error.
pub fn resize_to_device(mount: impl AsFd) -> io::Result<()> {
    vol_args_call(mount.as_fd(), RESIZE, "max")
}

/// Makes `name` in `parent` a snapshot of the subvolume that `source` is open on.
///
/// # Errors
/// The kernel's error; `EXDEV` when the two are on different file systems.
pub fn snapshot_subvolume(source: impl AsFd, parent: impl AsFd, name: &str, writable: bool) -> io::Result<()> {
    let mut args = VolArgsV2 {
        fd: i64::from(source.as_fd().as_raw_fd()),
        transid: 0,
        flags: if writable { 0 } else { SUBVOL_RDONLY },
        unused: [0; 4],
        name: [0; NAME_V2_BYTES],
    };
    copy_name(&mut args.name, name)?;
    // SAFETY: SNAP_CREATE_V2 reads and may write exactly one `btrfs_ioctl_vol_args_v2` (4096 bytes), which `args` is.
    let rc = unsafe { libc::ioctl(parent.as_fd().as_raw_fd(), SNAP_CREATE_V2, &raw mut args) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn vol_args_call(fd: BorrowedFd<'_>, request: u64, name: &str) -> io::Result<()> {
    let mut args = VolArgs { fd: 0, name: [0; NAME_BYTES] };
    copy_name(&mut args.name, name)?;
    // SAFETY: the requests used here read exactly one `btrfs_ioctl_vol_args` (4096 bytes), which `args` is.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut args) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Copies `name`, leaving a NUL at the end.
fn copy_name(into: &mut [u8], name: &str) -> io::Result<()> {
    let fits = !name.is_empty() && name.len() <= 255 && name.len() < into.len() && !name.contains(['/', '\0']);
    if !fits {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    into[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}

const _: () = assert!(size_of::<VolArgs>() == 4096);
const _: () = assert!(size_of::<VolArgsV2>() == 4096);
