//! Where this host's hierarchies are mounted and which one has which controller.

use super::CgroupError;
use super::files::{error, read};
use std::path::{Path, PathBuf};

/// What can be limited or counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Memory.
    Memory,
    /// CPU bandwidth.
    Cpu,
    /// CPU time (v1 only; v2 always counts it).
    CpuAcct,
    /// Processes and threads.
    Pids,
}

impl Controller {
    /// Those that a sandbox's limits need.
    pub const LIMITING: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    /// The kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuAcct => "cpuacct",
            Self::Pids => "pids",
        }
    }
}

/// The hierarchies of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Mount point of v2.
    pub unified: PathBuf,
    /// Controllers that v2 has.
    pub unified_controllers: Vec<Controller>,
    /// Mount points of the v1 hierarchies we need, each with its controllers.
    pub legacy: Vec<(PathBuf, Vec<Controller>)>,
}

const ALL: [Controller; 4] = [Controller::Memory, Controller::Cpu, Controller::CpuAcct, Controller::Pids];

impl Layout {
    /// Looks at what is mounted for this process.
    ///
    /// # Errors
    /// [`CgroupError::NoUnified`] without a v2 hierarchy.
    pub fn detect() -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = std::fs::read_to_string(path).map_err(error("read", path))?;
        let (unified, legacy) = parse(&mounts);
        let unified = unified.ok_or(CgroupError::NoUnified)?;
        let there = read(&unified.join("cgroup.controllers"))?;
        let unified_controllers = ALL.into_iter().filter(|c| there.split_whitespace().any(|w| w == c.name())).collect();
        Ok(Self { unified, unified_controllers, legacy })
    }

    /// Limits that cannot be set on this host.
    #[must_use]
    pub fn missing(&self) -> Vec<Controller> {
        let has = |c: &Controller| {
            self.unified_controllers.contains(c) || self.legacy.iter().any(|(_, list)| list.contains(c))
        };
        Controller::LIMITING.into_iter().filter(|c| !has(c)).collect()
    }
}

/// Mount points in mountinfo(5): `id parent dev root point options… - type source superoptions`.
fn parse(mountinfo: &str) -> (Option<PathBuf>, Vec<(PathBuf, Vec<Controller>)>) {
    let mut unified = None;
    let mut legacy: Vec<(PathBuf, Vec<Controller>)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (left.split(' ').nth(4), right.split(' ').next()) else { continue };
        // A bind mount of one group is no hierarchy to make groups in.
        if left.split(' ').nth(3).is_none_or(|root| root.starts_with("/..")) {
            continue;
        }
        let options = right.split(' ').nth(2).unwrap_or_default();
        match kind {
            "cgroup2" if unified.is_none() => unified = Some(PathBuf::from(point)),
            "cgroup" => {
                let list: Vec<_> = ALL.into_iter().filter(|c| options.split(',').any(|o| o == c.name())).collect();
                let seen = legacy.iter().any(|(_, other)| *other == list);
                if !list.is_empty() && !seen {
                    legacy.push((PathBuf::from(point), list));
                }
            }
            _ => {}
        }
    }
    (unified, legacy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hybrid_layout_is_read_with_joined_controllers() {
        let text = "30 29 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
                    31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                    32 29 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
                    33 29 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                    34 29 0:29 / /mnt/again rw - cgroup cgroup rw,memory\n";
        let (unified, legacy) = parse(text);
        assert_eq!(unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(legacy.len(), 2);
        assert_eq!(legacy[0].1, [Controller::Cpu, Controller::CpuAcct]);
        assert_eq!(legacy[1].0, Path::new("/sys/fs/cgroup/memory"));
    }

    #[test]
    fn nothing_mounted_is_nothing_found() {
        assert_eq!(parse("garbage\n\n1 2 3\n"), (None, Vec::new()));
    }
}
