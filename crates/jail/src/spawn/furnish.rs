//! The file tree of the room: trees made outside, /proc, /sys, /dev, their masks, and the change of root.
//!
//! Every mount is made detached and then attached to a place that was resolved *inside the tree* (`RESOLVE_IN_ROOT`): the
//! tree's content may come from an earlier, hostile life of the sandbox, and a link in it must not lead the setup outside.
//! Runs with the sandbox's own rights.

use super::step::Step;
use super::{GUEST_PATH, JailSpec};
use branchbox_sys::mount_attr::{MountChange, set_mount_attributes};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

/// Devices that a program may expect, bound from the host's `/dev`.
pub(crate) const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links in `/dev`.
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Files and directories that show or change the host. Those a kernel does not have are skipped.
const MASKED: [&str; 16] = [
    "proc/acpi",
    "proc/asound",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/key-users",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/scsi",
    "proc/sysrq-trigger",
    "proc/timer_list",
    "proc/timer_stats",
    "sys/firmware",
    "sys/kernel/security",
    "sys/devices/virtual/powercap",
];
/// What may be read and not changed.
const READ_ONLY: [&str; 4] = ["proc/bus", "proc/fs", "proc/irq", "proc/sys"];
const LAST_PID: &str = "proc/sys/kernel/ns_last_pid";

type Failure = (Step, io::Error);

fn at(step: Step) -> impl Fn(Errno) -> Failure {
    move |errno| (step, errno.into())
}

/// Attaches the root of the tree over the staging directory. Called while the ids are still the keeper's: the way to
/// that directory is for root of the host alone.
pub(super) fn attach_root(spec: &JailSpec<'_>) -> Result<OwnedFd, Failure> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private).map_err(at(Step::Propagation))?;
    let attach = || {
        let (first, _) = spec.mounts.split_first().ok_or(Errno::INVAL)?;
        let from_fd = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        rustix::mount::move_mount(&first.0, c"", CWD, &spec.staging, from_fd)?;
        rustix::fs::open(&spec.staging, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    };
    attach().map_err(at(Step::Trees))
}

/// Puts the rest together and makes it the root. The answer is `ns_last_pid`, open for writing from before it was masked.
pub(super) fn furnish(spec: &JailSpec<'_>, root: BorrowedFd<'_>, guest: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
    attach_trees(spec, root).map_err(at(Step::Trees))?;
    proc(root).map_err(at(Step::Proc))?;
    let last_pid = resolve(root, Path::new(LAST_PID), OFlags::WRONLY | OFlags::CLOEXEC).map_err(at(Step::LastPid))?;
    sys(root).map_err(at(Step::Sys))?;
    devices(root).map_err(at(Step::Devices))?;
    terminals(root).map_err(at(Step::Terminals))?;
    masks(root).map_err(|error| (Step::Masks, error))?;
    attach(root, guest, Path::new(GUEST_PATH), Kind::File).map_err(at(Step::GuestProgram))?;
    pivot(root).map_err(at(Step::Pivot))?;
    Ok(last_pid)
}

/// All mounts but the first go where they belong in it.
fn attach_trees(spec: &JailSpec<'_>, root: BorrowedFd<'_>) -> Result<(), Errno> {
    spec.mounts.iter().skip(1).try_for_each(|(mount, target)| {
        let kind = if is_directory(mount.as_fd())? { Kind::Directory } else { Kind::File };
        attach(root, mount.as_fd(), target, kind)
    })
}

fn proc(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes =
        MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    attach(root, file_system("proc", &[], attributes)?.as_fd(), Path::new("proc"), Kind::Directory)
}

fn sys(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    attach(root, file_system("sysfs", &[], attributes)?.as_fd(), Path::new("sys"), Kind::Directory)
}

fn devices(root: BorrowedFd<'_>) -> Result<(), Errno> {
    for device in DEVICES {
        let node = clone_of(CWD, &Path::new("/dev").join(device))?;
        attach(root, node.as_fd(), &Path::new("dev").join(device), Kind::File)?;
    }
    let dev = resolve(root, Path::new("dev"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
    for (name, target) in DEVICE_LINKS {
        unless_there(rustix::fs::symlinkat(target, &dev, name))?;
    }
    if rustix::fs::mkdirat(&dev, "shm", Mode::RWXU).is_ok() {
        rustix::fs::chmodat(&dev, "shm", Mode::RWXU | Mode::RWXG | Mode::RWXO | Mode::SVTX, AtFlags::empty())?;
    }
    Ok(())
}

fn terminals(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    // Group 5 is `tty` wherever there is one.
    let options = [("ptmxmode", "0666"), ("mode", "0620"), ("gid", "5")];
    attach(root, file_system("devpts", &options, attributes)?.as_fd(), Path::new("dev/pts"), Kind::Directory)
}

fn masks(root: BorrowedFd<'_>) -> io::Result<()> {
    let path_only = OFlags::PATH | OFlags::CLOEXEC;
    for path in READ_ONLY.map(Path::new) {
        let Ok(place) = resolve(root, path, path_only) else { continue };
        let clone = clone_of(place.as_fd(), Path::new(""))?;
        make_read_only(clone.as_fd())?;
        attach(root, clone.as_fd(), path, Kind::Directory)?;
    }
    for path in MASKED.map(Path::new) {
        let Ok(place) = resolve(root, path, path_only) else { continue };
        if is_directory(place.as_fd())? {
            let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
                | MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV;
            let empty = file_system("tmpfs", &[("size", "4k"), ("nr_inodes", "2"), ("mode", "0555")], attributes)?;
            attach(root, empty.as_fd(), path, Kind::Directory)?;
        } else {
            let null = clone_of(CWD, Path::new("/dev/null"))?;
            attach(root, null.as_fd(), path, Kind::File)?;
        }
    }
    Ok(())
}

/// As in pivot_root(2): the old root is stacked over the new one for a moment and then let go.
fn pivot(root: BorrowedFd<'_>) -> Result<(), Errno> {
    let old = rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::process::fchdir(root)?;
    rustix::process::pivot_root(c".", c".")?;
    rustix::process::fchdir(&old)?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}

/// What a place must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
}

/// Attaches a detached mount inside the tree, making the place if it is missing.
fn attach(root: BorrowedFd<'_>, mount: BorrowedFd<'_>, target: &Path, kind: Kind) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let place = match resolve(root, target, flags) {
        Err(Errno::NOENT) => {
            make_place(root, target, kind)?;
            resolve(root, target, flags)?
        }
        found => found?,
    };
    let both = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    rustix::mount::move_mount(mount, c"", &place, c"", both)
}

/// Makes the missing directories of a path, and its last part as `kind`.
fn make_place(root: BorrowedFd<'_>, target: &Path, kind: Kind) -> Result<(), Errno> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let names: Vec<_> =
        target.components().filter_map(|c| if let Component::Normal(name) = c { Some(name) } else { None }).collect();
    let (last, parents) = names.split_last().ok_or(Errno::INVAL)?;
    let mut path = std::path::PathBuf::from(".");
    for name in parents {
        let parent = resolve(root, &path, directory)?;
        unless_there(rustix::fs::mkdirat(&parent, *name, Mode::from_raw_mode(0o755)))?;
        path.push(name);
    }
    let parent = resolve(root, &path, directory)?;
    match kind {
        Kind::Directory => unless_there(rustix::fs::mkdirat(&parent, *last, Mode::from_raw_mode(0o755))),
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            unless_there(rustix::fs::openat(&parent, *last, flags, Mode::from_raw_mode(0o644)).map(drop))
        }
    }
}

fn unless_there(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::EXIST) { Ok(()) } else { result }
}

/// Opens a path as a process rooted in the tree would see it, without following magic links.
fn resolve(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags, Mode::empty(), resolve)
}

fn is_directory(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode).is_dir())
}

fn clone_of(dir: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    rustix::mount::open_tree(dir, path, flags)
}

fn file_system(kind: &str, options: &[(&str, &str)], attributes: MountAttrFlags) -> Result<OwnedFd, Errno> {
    let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        rustix::mount::fsconfig_set_string(&context, *key, *value)?;
    }
    rustix::mount::fsconfig_create(&context)?;
    rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// No writes, set-id programs or devices through a mount.
pub(super) fn make_read_only(mount: BorrowedFd<'_>) -> io::Result<()> {
    set_mount_attributes(mount, MountChange { read_only: true, nosuid_nodev: true, id_map: None })
}
