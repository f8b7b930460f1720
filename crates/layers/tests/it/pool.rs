//! Pools of every kind: what a capture keeps, what a fork sees, what is left behind.

use crate::support::{attach, detach, private_mounts, root, run_inside, spec, tree};
use branchbox_layers::pool::PoolOptions;
use branchbox_layers::{Pool, PoolError, capture_layer, start_writeback};
use branchbox_model::{PoolDriver, SandboxId};
use branchbox_testkit::needs::or_skip;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn options(driver: PoolDriver) -> PoolOptions {
    PoolOptions { driver: Some(driver), ..PoolOptions::default() }
}

/// Skips when this machine cannot have a pool file.
fn has_btrfs() -> bool {
    let there = Path::new("/usr/sbin/mkfs.btrfs").exists() || Path::new("/sbin/mkfs.btrfs").exists();
    or_skip(there, "mkfs.btrfs")
}

/// A root tree with a few system directories, enough for a shell.
fn image(dir: &Path) -> PathBuf {
    let lower = dir.join("lower");
    for made in ["bin", "lib", "lib64", "etc", "data/deep", "usr"] {
        std::fs::create_dir_all(lower.join(made)).unwrap();
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        let _ = std::fs::remove_dir(lower.join(link));
        std::os::unix::fs::symlink(format!("usr/{link}"), lower.join(link)).unwrap();
    }
    std::fs::write(lower.join("data/base"), "base").unwrap();
    std::fs::write(lower.join("data/deep/gone"), "gone").unwrap();
    std::fs::write(lower.join("data/changed"), "old").unwrap();
    lower
}

const MAKE: &str = "cd /data; echo new > new; echo more >> changed; rm -r deep; mkdir deep; echo d > deep/d; ln new hard; \
    ln -s new sym; mkfifo fifo; chmod 4751 new; touch -d @1.5 new; truncate -s 1M holes; chown 33:34 sym -h; mv base moved";

/// Inode, mode, owner, links, size, mtime of everything below `dir`.
fn state(dir: &Path, inodes: bool) -> BTreeMap<String, Vec<i64>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![dir.to_path_buf()];
    while let Some(at) = pending.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let entry = entry.unwrap();
            let m = entry.path().symlink_metadata().unwrap();
            let ino = if inodes { m.ino() as i64 } else { 0 };
            let size = if m.is_dir() { 0 } else { m.size() as i64 };
            let name = entry.path().strip_prefix(dir).unwrap().display().to_string();
            let rdev = m.rdev() as i64;
            let links = if m.is_dir() { 0 } else { m.nlink() as i64 };
            found.insert(
                name,
                vec![
                    ino,
                    m.mode() as i64,
                    m.uid() as i64,
                    m.gid() as i64,
                    links,
                    size,
                    m.mtime(),
                    m.mtime_nsec(),
                    rdev,
                ],
            );
            if m.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    found
}

fn capture_and_fork(driver: PoolDriver, same_inodes: bool) {
    let dir = tempfile::tempdir().unwrap();
    private_mounts();
    let pool = Pool::open(&dir.path().join("state"), options(driver)).unwrap();
    assert_eq!((pool.driver(), pool.fallback()), (driver, None));
    let lower = image(dir.path());
    let trees = || vec![tree("root", vec![lower.clone()], "/"), tree("usr", vec!["/usr".into()], "/usr")];
    let (parent, child) = (SandboxId::generate(), SandboxId::generate());
    let upper = pool.new_upper(&parent).unwrap();
    let (at, fork) = (dir.path().join("at"), dir.path().join("fork"));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&fork).unwrap();
    attach(&spec(&upper, driver, trees()), &at);
    run_inside(&at, 0, MAKE);
    let before = state(&at.join("data"), same_inodes);

    start_writeback(&upper).unwrap();
    let layer = pool.layer_path("snap").unwrap();
    let report = capture_layer(&upper, &layer, driver).unwrap();
    assert_eq!(report.entries > 0, driver == PoolDriver::Plain);
    run_inside(&at, 0, "echo later > /data/later; echo later > /data/new");
    let forked = pool.upper_from_layer("snap", &child).unwrap();
    attach(&spec(&forked, driver, trees()), &fork);
    assert_eq!(state(&fork.join("data"), same_inodes), before);
    assert_eq!(std::fs::read_to_string(fork.join("data/new")).unwrap(), "new\n");
    assert_eq!(std::fs::read_to_string(fork.join("data/changed")).unwrap(), "old\nmore\n".replace("old\n", "old"));
    // Copied-up files keep the number they had, with every driver.
    let number = |at: &Path, name: &str| at.join("data").join(name).symlink_metadata().unwrap().ino();
    for copied_up in ["changed", "moved"] {
        assert_eq!(number(&at, copied_up), number(&fork, copied_up), "{copied_up}");
    }
    run_inside(&fork, 0, "rm /data/new; echo x > /data/only-here");
    assert_eq!(std::fs::read_to_string(at.join("data/new")).unwrap(), "later\n");
    assert!(!at.join("data/only-here").exists());
    assert!(pool.layer_bytes("snap").unwrap() > 0);
    assert!(capture_layer(&upper, &layer, driver).is_err(), "a layer is never overwritten");

    for mounted in [&at, &fork] {
        detach(&mounted.join("usr"));
        detach(mounted);
    }
    pool.remove_upper(&parent).unwrap();
    pool.remove_upper(&child).unwrap();
    pool.remove_layer("snap").unwrap();
    pool.remove_layer("snap").unwrap();
    assert!(pool.layers().unwrap().is_empty() && pool.uppers().unwrap().is_empty());
    pool.close().unwrap();
}

#[test]
fn a_plain_pool_captures_and_forks_exactly_but_for_new_inode_numbers() {
    if root() {
        capture_and_fork(PoolDriver::Plain, false);
    }
}

#[test]
fn a_btrfs_pool_captures_and_forks_with_the_same_inode_numbers() {
    if root() && has_btrfs() {
        capture_and_fork(PoolDriver::Btrfs, true);
    }
}

#[test]
fn a_btrfs_state_directory_is_the_pool_itself() {
    if !root() || !has_btrfs() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    let outer = Pool::open(&dir.path().join("outer"), options(PoolDriver::Btrfs)).unwrap();
    let inner = Pool::open(&outer.root().join("state"), PoolOptions::default()).unwrap();
    assert_eq!((inner.driver(), inner.root()), (PoolDriver::Btrfs, outer.root().join("state").as_path()));
    let id = SandboxId::generate();
    inner.new_upper(&id).unwrap();
    assert_eq!(inner.uppers().unwrap(), std::slice::from_ref(&id));
    inner.remove_upper(&id).unwrap();
    inner.close().unwrap();
    outer.close().unwrap();
}

#[test]
fn a_pool_is_found_again_mounted_or_not_and_leaves_no_loop_device() {
    if !root() || !has_btrfs() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let id = SandboxId::generate();
    let first = Pool::open(&state, PoolOptions::default()).unwrap();
    std::fs::write(first.new_upper(&id).unwrap().join("f"), "kept").unwrap();
    // A node that was killed leaves the mount; the next one takes it over.
    let second = Pool::open(&state, PoolOptions::default()).unwrap();
    assert_eq!(second.uppers().unwrap(), std::slice::from_ref(&id));
    let mut held = Command::new("sleep").arg("60").current_dir(second.root()).spawn().unwrap();
    let busy = second.close().unwrap_err();
    assert!(matches!(busy, PoolError::Unmount { .. }), "{busy}");
    held.kill().unwrap();
    held.wait().unwrap();
    first.close().unwrap();
    let third = Pool::open(&state, PoolOptions::default()).unwrap();
    assert_eq!(std::fs::read_to_string(third.upper_path(&id).join("f")).unwrap(), "kept");
    let other = Pool::open(&state, options(PoolDriver::Plain)).unwrap_err();
    assert!(matches!(other, PoolError::OtherDriver { .. }), "{other}");
    third.close().unwrap();
    let attached: Vec<_> = (0..64)
        .filter_map(|n| std::fs::read_to_string(format!("/sys/block/loop{n}/loop/backing_file")).ok())
        .filter(|file| file.contains(&*state.to_string_lossy()))
        .collect();
    assert!(attached.is_empty(), "{attached:?}");
}

#[test]
fn leftovers_are_collected_however_deep_they_are() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    Pool::open(&state, options(PoolDriver::Plain)).unwrap().close().unwrap();
    let script = "cd trash; mkdir old; cd old; for i in $(seq 600); do mkdir -p 0123456789; cd -P ./0123456789; touch f; done; \
        cd \"$0\"; mkdir -p layers/half.partial/root/up; touch layers/half.partial/root/up/f";
    let made = Command::new("sh").args(["-ec", script]).arg(&state).current_dir(&state).status().unwrap();
    assert!(made.success());
    let pool = Pool::open(&state, options(PoolDriver::Plain)).unwrap();
    assert_eq!(std::fs::read_dir(state.join("trash")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(state.join("layers")).unwrap().count(), 0);
    for bad in ["", "..", "a/b", ".hidden", "x.partial", "a\nb"] {
        assert!(pool.layer_path(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_machine_without_room_for_btrfs_says_so_and_works() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let wish = PoolOptions { driver: None, reserve_bytes: u64::MAX };
    let pool = Pool::open(dir.path(), wish).unwrap();
    assert_eq!(pool.driver(), PoolDriver::Plain);
    assert!(
        pool.fallback().unwrap().contains("free") || pool.fallback().unwrap().contains("mkfs"),
        "{:?}",
        pool.fallback()
    );
    let refused = pool.new_upper(&SandboxId::generate()).unwrap_err();
    assert!(matches!(refused, PoolError::NoRoom { .. }), "{refused}");
}
