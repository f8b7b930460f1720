//! A mount namespace per test thread, and a tree attached in it.

use branchbox_layers::{AssembledMount, assemble};
use branchbox_model::{IdRange, PoolDriver, RootSpec, Tree};
use branchbox_sys::id_map::{MapEntry, id_map_namespace};
use branchbox_testkit::needs::{is_root, or_skip};
use rustix::fs::CWD;
use rustix::mount::{MountPropagationFlags, MoveMountFlags, mount_change, move_mount};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The range of every test.
pub const RANGE: IdRange = IdRange { base: 131_072 };

/// Whether this process may do what these tests need; says so when not.
pub fn root() -> bool {
    or_skip(is_root(), "root")
}

/// Gives this thread a mount namespace of its own: what the test mounts ends with its thread.
pub fn private_mounts() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
}

/// A system tree.
pub fn tree(name: &str, lower: Vec<PathBuf>, target: &str) -> Tree {
    Tree { name: name.into(), lower, target: target.into(), owner_outside: (0, 0), owner_inside: (0, 0) }
}

/// A root of these trees.
pub fn spec(upper: &Path, driver: PoolDriver, trees: Vec<Tree>) -> RootSpec {
    RootSpec {
        image: "test".into(),
        upper: upper.into(),
        driver,
        trees,
        binds: Vec::new(),
        defaults: branchbox_model::ImageDefaults::default(),
    }
}

/// Assembles `root` and attaches it at `at` in this thread's namespace.
pub fn attach(root: &RootSpec, at: &Path) {
    attach_all(assemble(root, RANGE).unwrap(), at);
}

pub fn attach_all(mounts: Vec<AssembledMount>, at: &Path) {
    for mount in mounts {
        let target = at.join(mount.target.strip_prefix("/").unwrap());
        move_mount(&mount.fd, "", CWD, &target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .unwrap_or_else(|e| panic!("{}: {e}", target.display()));
    }
}

/// Detaches what [`attach`] attached.
pub fn detach(at: &Path) {
    rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// Runs a shell script as `uid` of a user namespace with [`RANGE`], chrooted into `root`; returns its output.
pub fn run_inside(root: &Path, uid: u32, script: &str) -> String {
    let map = [MapEntry { inside: 0, outside: RANGE.base, length: IdRange::LENGTH }];
    let namespace = id_map_namespace(&map, &map).unwrap();
    let user = format!("--user=/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd());
    let id = uid.to_string();
    let output = Command::new("nsenter")
        .args([&user, "-S", "0", "-G", "0", "unshare", "--mount", "--root"])
        .arg(root)
        .args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "/bin/sh", "-ec", script])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
