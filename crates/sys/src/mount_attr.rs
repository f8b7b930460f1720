//! `mount_setattr(2)`: attributes and id maps of mounts that nobody can see yet.
//!
//! C: `int mount_setattr(int dirfd, const char *path, unsigned flags, struct mount_attr *, size_t)`; Linux 5.12. An id
//! map can be set only while the mount is detached (`open_tree(OPEN_TREE_CLONE)`) and needs `CAP_SYS_ADMIN` in the
//! user namespace of the file system; `EINVAL` means that the file system has no id-mapped mounts. Overlay mounts can
//! themselves not be id-mapped; their layers can.
#![expect(unsafe_code, reason = "mount_setattr has no safe wrapper in the crates used here")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// What a detached mount gets.
#[derive(Debug, Clone, Copy, Default)]
pub struct MountChange<'a> {
    /// No writes through this mount.
    pub read_only: bool,
    /// No set-id execution and no device nodes through this mount.
    pub nosuid_nodev: bool,
    /// User namespace whose maps translate the ids on disk to the ids shown.
    pub id_map: Option<BorrowedFd<'a>>,
}

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Changes the mount that `mount` is the root of; submounts are left alone.
///
/// # Errors
/// The kernel's error; `EINVAL` with an id map means that the file system supports none.
pub fn set_mount_attributes(mount: impl AsFd, change: MountChange<'_>) -> io::Result<()> {
    let mut attr = MountAttr { attr_set: 0, attr_clr: 0, propagation: 0, userns_fd: 0 };
    if change.read_only {
        attr.attr_set |= MOUNT_ATTR_RDONLY;
    }
    if change.nosuid_nodev {
        attr.attr_set |= MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    }
    if let Some(namespace) = change.id_map {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = u64::from(namespace.as_raw_fd().unsigned_abs());
    }
    let fd = mount.as_fd().as_raw_fd();
    // SAFETY: `attr` is a live `struct mount_attr` of exactly the size passed and is only read; the path is a
    // NUL-terminated literal; both descriptors are open because they are borrowed for the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
