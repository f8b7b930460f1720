//! One sandbox's groups, from creation to removal.

use super::CgroupError;
use super::files::{error, wait_event, write};
use super::layout::{Controller, Layout};
use super::usage::{self, Usage};
use branchbox_model::{IdRange, Limits, SandboxId};
use rustix::fs::{Mode, OFlags};
use rustix::mount::OpenTreeFlags;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The directory of all our groups in every hierarchy.
const PARENT: &str = "branchbox";
/// Longest wait for a freeze; busy loops on a loaded machine took 16 ms.
const FREEZE_WAIT: Duration = Duration::from_secs(5);
/// Longest wait until killed processes are gone; large ones give back their memory first.
const KILL_WAIT: Duration = Duration::from_secs(20);
/// Longest wait for a group to be let go after it was empty.
const REMOVE_WAIT: Duration = Duration::from_secs(5);
/// Between two tries of a removal.
const REMOVE_PAUSE: Duration = Duration::from_millis(2);
/// Groups a sandbox may make: one per running command, and room for ended ones.
const DESCENDANTS_MAX: u32 = 1024;
/// How deep groups may nest below `work`: a command's own, and one level that a command may make.
const DEPTH_MAX: u32 = 2;
/// The scheduler's accounting period.
const CPU_PERIOD_US: u64 = 100_000;
/// Tries of a creation that races with the removal of the last other sandbox.
const CREATE_TRIES: usize = 5;

/// Which processes of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Process 1 and all commands.
    All,
    /// The commands.
    Work,
}

/// The groups of one sandbox. Dropping the value leaves them; [`SandboxCgroup::remove`] ends them.
#[derive(Debug)]
pub struct SandboxCgroup {
    dir: PathBuf,
    legacy: Vec<PathBuf>,
    missing: Vec<Controller>,
}

impl SandboxCgroup {
    /// Makes the groups, sets the limits and gives `work` to the sandbox's root. A failure leaves nothing.
    ///
    /// # Errors
    /// [`CgroupError::Io`] naming the file.
    pub fn create(layout: &Layout, id: &SandboxId, ids: IdRange, limits: &Limits) -> Result<Self, CgroupError> {
        let group = Self::open(layout, id);
        let made = group.make(layout, ids, limits);
        if made.is_err() {
            // The first error is the one to report; what is left is found again by its name.
            let _ = group.remove();
        }
        made.map(|()| group)
    }

    /// The groups of a sandbox that runs already.
    #[must_use]
    pub fn open(layout: &Layout, id: &SandboxId) -> Self {
        let below = |mount: &Path| mount.join(PARENT).join(id.as_str());
        Self {
            dir: below(&layout.unified),
            legacy: legacy_needed(layout).map(|(mount, _)| below(mount)).collect(),
            missing: layout.missing(),
        }
    }

    fn make(&self, layout: &Layout, ids: IdRange, limits: &Limits) -> Result<(), CgroupError> {
        make_dir(&self.dir, |parent| enable(layout, parent))?;
        for dir in &self.legacy {
            make_dir(dir, |_| Ok(()))?;
        }
        for part in [self.guest_path(), self.work_path()] {
            std::fs::create_dir(&part).map_err(error("create", &part))?;
        }
        write(&self.work_path().join("cgroup.max.descendants"), &DESCENDANTS_MAX.to_string())?;
        write(&self.work_path().join("cgroup.max.depth"), &DEPTH_MAX.to_string())?;
        self.limit(layout, limits)?;
        self.delegate(ids)
    }

    fn limit(&self, layout: &Layout, limits: &Limits) -> Result<(), CgroupError> {
        let memory = (u64::from(limits.memory.0) << 20).to_string();
        let quota = u64::from(limits.vcpus.0) * CPU_PERIOD_US;
        let pids = limits.pids.to_string();
        for controller in &layout.unified_controllers {
            match controller {
                Controller::Memory => {
                    write(&self.dir.join("memory.max"), &memory)?;
                    write_if_there(&self.dir.join("memory.swap.max"), "0")?;
                }
                Controller::Cpu => write(&self.dir.join("cpu.max"), &format!("{quota} {CPU_PERIOD_US}"))?,
                Controller::Pids => write(&self.dir.join("pids.max"), &pids)?,
                Controller::CpuAcct => {}
            }
        }
        for (dir, (_, controllers)) in self.legacy.iter().zip(legacy_needed(layout)) {
            for controller in controllers {
                match controller {
                    Controller::Memory => {
                        write(&dir.join("memory.limit_in_bytes"), &memory)?;
                        // Memory and swap together no more than memory alone: no swap.
                        write_if_there(&dir.join("memory.memsw.limit_in_bytes"), &memory)?;
                    }
                    Controller::Cpu => {
                        write(&dir.join("cpu.cfs_period_us"), &CPU_PERIOD_US.to_string())?;
                        write(&dir.join("cpu.cfs_quota_us"), &quota.to_string())?;
                    }
                    Controller::Pids => write(&dir.join("pids.max"), &pids)?,
                    Controller::CpuAcct => {}
                }
            }
        }
        Ok(())
    }

    fn delegate(&self, ids: IdRange) -> Result<(), CgroupError> {
        let work = self.work_path();
        let given = [self.dir.join("cgroup.procs"), work.join("cgroup.procs"), work.join("cgroup.threads"), work];
        for path in given {
            std::os::unix::fs::chown(&path, Some(ids.base), Some(ids.base)).map_err(error("give away", &path))?;
        }
        Ok(())
    }

    /// The v2 group over `guest` and `work`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The v2 group of process 1.
    #[must_use]
    pub fn guest_path(&self) -> PathBuf {
        self.dir.join("guest")
    }

    /// The v2 group of commands, owned by the sandbox's root.
    #[must_use]
    pub fn work_path(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// Limits that are not in force, because this host has no controller for them.
    #[must_use]
    pub fn missing(&self) -> &[Controller] {
        &self.missing
    }

    pub(super) fn legacy_dirs(&self) -> impl Iterator<Item = &Path> {
        self.legacy.iter().map(PathBuf::as_path)
    }

    /// A descriptor of `work` to hand inside. It is opened through a detached mount of that directory alone: from the
    /// host's own mount, `..` would lead through the hierarchy to the host's root.
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn open_work(&self) -> Result<OwnedFd, CgroupError> {
        let work = self.work_path();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree =
            rustix::mount::open_tree(rustix::fs::CWD, &work, flags).map_err(|e| error("clone", &work)(e.into()))?;
        rustix::fs::openat(&tree, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| error("open", &work)(e.into()))
    }

    /// Moves a process into the sandbox's group of every hierarchy; in v2 into the one over `guest` and `work`, where it
    /// makes its cgroup namespace.
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn place(&self, pid: i32) -> Result<(), CgroupError> {
        self.legacy_dirs().chain([self.dir()]).try_for_each(|dir| write(&dir.join("cgroup.procs"), &pid.to_string()))
    }

    /// Moves process 1 to its place.
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn place_guest(&self, pid: i32) -> Result<(), CgroupError> {
        write(&self.guest_path().join("cgroup.procs"), &pid.to_string())
    }

    fn part(&self, part: Part) -> PathBuf {
        match part {
            Part::All => self.dir.clone(),
            Part::Work => self.work_path(),
        }
    }

    /// Stops every process of that part and waits until the kernel says so. On a timeout they run again.
    ///
    /// # Errors
    /// [`CgroupError::Timeout`] or [`CgroupError::Io`].
    pub fn freeze(&self, part: Part) -> Result<(), CgroupError> {
        let dir = self.part(part);
        write(&dir.join("cgroup.freeze"), "1")?;
        let frozen = wait_event(&dir, "frozen", 1, "frozen", FREEZE_WAIT);
        if frozen.is_err() {
            write(&dir.join("cgroup.freeze"), "0")?;
        }
        frozen
    }

    /// Lets every process of that part run.
    ///
    /// # Errors
    /// [`CgroupError::Io`].
    pub fn thaw(&self, part: Part) -> Result<(), CgroupError> {
        write(&self.part(part).join("cgroup.freeze"), "0")
    }

    /// Kills everything, frozen or not, and waits until it is gone.
    ///
    /// # Errors
    /// [`CgroupError::Timeout`] when a process cannot die.
    pub fn kill(&self) -> Result<(), CgroupError> {
        write(&self.dir.join("cgroup.kill"), "1")?;
        wait_event(&self.dir, "populated", 0, "empty", KILL_WAIT)
    }

    /// What the sandbox has used.
    #[must_use]
    pub fn usage(&self) -> Usage {
        usage::measure(self)
    }

    /// Kills what is there and removes the groups. Nothing there is fine.
    ///
    /// # Errors
    /// The first group that would not go.
    pub fn remove(&self) -> Result<(), CgroupError> {
        if self.dir.exists() {
            self.kill()?;
        }
        let mut result = remove_tree(&self.dir);
        for dir in &self.legacy {
            let removed = remove_tree(dir);
            result = result.and(removed);
        }
        for dir in self.legacy_dirs().chain([self.dir()]) {
            // Goes when this was the last sandbox; is refused, rightly, when not.
            dir.parent().map(std::fs::remove_dir);
        }
        result
    }
}

/// Ends every group that nobody looks after: those whose id `is_leftover` claims. Answers with the ids ended.
///
/// # Errors
/// The first group that would not go.
pub fn collect(layout: &Layout, is_leftover: impl Fn(&SandboxId) -> bool) -> Result<Vec<SandboxId>, CgroupError> {
    let mut ids = std::collections::BTreeSet::new();
    for mount in std::iter::once(&layout.unified).chain(legacy_needed(layout).map(|(mount, _)| mount)) {
        let Ok(entries) = std::fs::read_dir(mount.join(PARENT)) else { continue };
        ids.extend(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<SandboxId>().ok()));
    }
    ids.retain(|id| is_leftover(id));
    for id in &ids {
        SandboxCgroup::open(layout, id).remove()?;
    }
    Ok(ids.into_iter().collect())
}

/// The v1 hierarchies that hold something v2 does not.
fn legacy_needed(layout: &Layout) -> impl Iterator<Item = &(PathBuf, Vec<Controller>)> {
    layout.legacy.iter().filter(|(_, list)| list.iter().any(|c| !layout.unified_controllers.contains(c)))
}

/// Lets the groups below have the v2 controllers.
fn enable(layout: &Layout, parent: &Path) -> Result<(), CgroupError> {
    let wanted: Vec<_> = layout.unified_controllers.iter().map(|c| format!("+{}", c.name())).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    for dir in [layout.unified.as_path(), parent] {
        write(&dir.join("cgroup.subtree_control"), &wanted.join(" "))?;
    }
    Ok(())
}

/// Makes a sandbox's directory and its parent, which another sandbox's removal may take away in between.
fn make_dir(dir: &Path, prepare: impl Fn(&Path) -> Result<(), CgroupError>) -> Result<(), CgroupError> {
    let parent = dir.parent().unwrap_or(dir);
    let mut last = None;
    for _ in 0..CREATE_TRIES {
        let made = std::fs::create_dir_all(parent).map_err(error("create", parent)).and_then(|()| prepare(parent));
        match made.and_then(|()| std::fs::create_dir(dir).map_err(error("create", dir))) {
            Ok(()) => return Ok(()),
            Err(CgroupError::Io { source, action, path }) if source.kind() == ErrorKind::NotFound => {
                last = Some(CgroupError::Io { source, action, path });
            }
            Err(other) => return Err(other),
        }
    }
    Err(last.unwrap_or(CgroupError::NoUnified))
}

fn write_if_there(path: &Path, text: &str) -> Result<(), CgroupError> {
    if path.exists() { write(path, text) } else { Ok(()) }
}

/// Removes a group and those below it, waiting a moment for the kernel to let go of them.
fn remove_tree(dir: &Path) -> Result<(), CgroupError> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    let started = Instant::now();
    loop {
        match std::fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(gone) if gone.kind() == ErrorKind::NotFound => return Ok(()),
            Err(busy) if busy.kind() == ErrorKind::ResourceBusy && started.elapsed() < REMOVE_WAIT => {
                std::thread::sleep(REMOVE_PAUSE);
            }
            Err(other) => return Err(error("remove", dir)(other)),
        }
    }
}
