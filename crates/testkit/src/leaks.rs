//! What the product has made on this machine, so that a test can compare before and after.
//!
//! Looks from outside, in the places where the kernel shows a thing, and never asks the product. Two looks that
//! differ by something new mean that something was left behind.

use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The directories that hold temporary state of tests; entries with one of [`TEMPORARY_PREFIXES`] count.
const TEMPORARY_DIRECTORIES: &[&str] = &["/tmp", "/var/tmp", "/dev/shm"];
/// How temporary things of ours are named.
const TEMPORARY_PREFIXES: &[&str] = &["branchbox", ".branchbox", "bbx-"];
/// Where sockets of running sandboxes lie.
const RUN_DIRECTORY: &str = "/run/branchbox";
/// Directories deep enough in a cgroup tree to show a command's own cgroup.
const CGROUP_DEPTH_MAX: u32 = 6;

/// Everything of ours that exists now, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    kinds: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Inventory {
    /// Looks at the machine; `temporary` names more directories all of whose entries count.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn take(temporary: &[PathBuf]) -> Result<Self> {
        let mut kinds = BTreeMap::new();
        kinds.insert("process", processes()?);
        kinds.insert("mount", mounts()?);
        kinds.insert("cgroup", cgroups()?);
        kinds.insert("loop device", loop_devices());
        kinds.insert("network namespace", named_network_namespaces());
        kinds.insert("file", files(temporary));
        Ok(Self { kinds })
    }

    /// What is here and was not in `before`, one line each.
    #[must_use]
    pub fn left_since(&self, before: &Self) -> Vec<String> {
        let empty = BTreeSet::new();
        let mut left = Vec::new();
        for (kind, things) in &self.kinds {
            let old = before.kinds.get(kind).unwrap_or(&empty);
            left.extend(things.difference(old).map(|thing| format!("{kind}: {thing}")));
        }
        left
    }
}

/// Processes whose program is ours, or that live in a sandbox's cgroup.
fn processes() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for entry in fs_err::read_dir("/proc")? {
        let path = entry?.path();
        let Some(pid) = path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok()) else {
            continue;
        };
        if is_ours(&path) {
            let start = start_time(&path).unwrap_or_default();
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.insert(format!("{pid} started at {start} ({})", name.trim_end()));
        }
    }
    Ok(found)
}

fn is_ours(process: &Path) -> bool {
    let program = std::fs::read_link(process.join("exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let name = name.trim_end_matches(" (deleted)");
    let cgroup = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
    name == "branchbox" || cgroup.lines().any(|line| line.contains("/branchbox/"))
}

/// Field 22 of `stat`, counted after the name, which may hold spaces and parentheses.
fn start_time(process: &Path) -> Option<String> {
    let stat = std::fs::read_to_string(process.join("stat")).ok()?;
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_whitespace().nth(19).map(str::to_owned)
}

/// Mount points of this namespace that name the product, by path or by source.
fn mounts() -> Result<BTreeSet<String>> {
    let text = fs_err::read_to_string("/proc/self/mountinfo")?;
    let ours = text.lines().filter(|line| line.contains("branchbox") || line.contains(" nsfs "));
    Ok(ours.map(mount_of).collect())
}

fn mount_of(line: &str) -> String {
    let fields: Vec<&str> = line.split(' ').collect();
    let kind = fields.iter().position(|field| *field == "-").and_then(|at| fields.get(at + 1));
    format!("{} ({})", fields.get(4).unwrap_or(&"?"), kind.unwrap_or(&"?"))
}

/// Directories named `branchbox` at the top of each cgroup hierarchy, and all below them.
fn cgroups() -> Result<BTreeSet<String>> {
    let text = fs_err::read_to_string("/proc/self/mounts")?;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, target, "cgroup" | "cgroup2", ..] = fields[..] {
            let top = Path::new(target).join("branchbox");
            if top.is_dir() {
                walk_directories(&top, CGROUP_DEPTH_MAX, &mut found);
            }
        }
    }
    Ok(found)
}

fn walk_directories(directory: &Path, depth: u32, found: &mut BTreeSet<String>) {
    found.insert(directory.display().to_string());
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        walk_directories(&entry.path(), depth, found);
    }
}

fn loop_devices() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let attached = entries.filter_map(|entry| {
        let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        Some(format!("{} on {}", entry.file_name().to_string_lossy(), file.trim_end()))
    });
    attached.collect()
}

fn named_network_namespaces() -> BTreeSet<String> {
    names_in(Path::new("/run/netns"), |_| true)
}

fn files(temporary: &[PathBuf]) -> BTreeSet<String> {
    let mut found = names_in(Path::new(RUN_DIRECTORY), |_| true);
    for directory in TEMPORARY_DIRECTORIES {
        let ours = |name: &str| TEMPORARY_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        found.extend(names_in(Path::new(directory), ours));
    }
    for directory in temporary {
        found.extend(names_in(directory, |_| true));
    }
    found
}

fn names_in(directory: &Path, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path().display().to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_in_a_watched_directory_is_left_behind() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let watched = [directory.path().to_owned()];
        let before = Inventory::take(&watched).expect("first look");
        fs_err::write(directory.path().join("forgotten"), b"").expect("write");
        let left = Inventory::take(&watched).expect("second look").left_since(&before);
        assert!(left.iter().any(|line| line.ends_with("/forgotten")), "{left:?}");
    }

    #[test]
    fn a_mount_line_is_told_by_its_point_and_kind() {
        let line = "36 35 98:0 /mnt1 /tmp/branchbox/pool rw,noatime shared:1 - btrfs /dev/loop0 rw";
        assert_eq!(mount_of(line), "/tmp/branchbox/pool (btrfs)");
    }

    #[test]
    fn our_own_start_time_is_found() {
        assert!(start_time(Path::new("/proc/self")).is_some_and(|time| time.parse::<u64>().is_ok()));
    }
}
