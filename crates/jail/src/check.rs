//! What this host has of what sandboxes need, each thing tried rather than inferred where trying is harmless.
//!
//! `branchbox doctor` prints the list and the node refuses to start while a required row fails. Whether the state
//! directory can hold a pool is the layers' question, not asked here.

use crate::cgroup::{Layout, Part, SandboxCgroup};
use branchbox_model::{IdRange, Limits, SandboxId};
use branchbox_sys::id_map::{MapEntry, id_map_namespace};
use branchbox_sys::mount_attr::{MountChange, set_mount_attributes};
use rustix::fs::CWD;
use rustix::mount::{FsOpenFlags, OpenTreeFlags};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use rustix::thread::CapabilitySet;
use std::os::fd::AsFd;
use std::path::Path;

/// The oldest kernel that sandboxes run on.
const KERNEL_MIN: (u32, u32) = (5, 15);
/// The oldest kernel that tells which pages changed.
const KERNEL_SCAN: (u32, u32) = (6, 7);
/// Shared watch instances below which a few sandboxes exhaust them.
const INOTIFY_MIN: u64 = 1024;
/// Mounts below /proc that hide nothing: the kernel makes their places for them.
const PROC_MOUNTS: [&str; 1] = ["/proc/sys/fs/binfmt_misc"];

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is as needed.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do when not `ok`.
    pub hint: &'static str,
    /// Nothing runs without it.
    pub required: bool,
}

type Probe = fn() -> Result<String, String>;

/// Name, whether required, hint, and the probe.
const PROBES: &[(&str, bool, &str, Probe)] = &[
    ("root", true, "run as root of the host: namespaces, overlays and control groups are made by it", root),
    ("capabilities", true, "give the daemon these capabilities, or run it outside a container", capabilities),
    ("kernel", true, "use Linux 5.15 or newer on x86-64", kernel),
    (
        "unfiltered",
        true,
        "run the daemon outside a seccomp filter (in a container: seccomp=unconfined): a filter stops the engine",
        unfiltered,
    ),
    ("namespaces", true, "raise user.max_user_namespaces and its siblings with sysctl", namespaces),
    (
        "control groups",
        true,
        "mount cgroup v2 (`mount -t cgroup2 none /sys/fs/cgroup/unified`), on Linux 5.14 or newer",
        control_groups,
    ),
    ("limits", true, "enable the memory, cpu and pids controllers (kernel command line: cgroup_enable=memory)", limits),
    ("overlay", true, "enable overlayfs: `modprobe overlay`", overlay),
    ("id-mapped mounts", true, "keep the image on ext4, xfs, btrfs or tmpfs", id_mapped),
    ("proc", true, "uncover /proc: in a container that masks it, run with the mask off (systempaths=unconfined)", proc),
    ("devices", true, "the host's /dev lacks a device that sandboxes get", devices),
    ("descriptors of others", true, "use Linux 5.6 or newer without a filter on pidfd_getfd", getfd),
    ("comparison of objects", true, "use a kernel built with CONFIG_KCMP", kcmp),
    (
        "mapped files",
        true,
        "give the daemon CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN of the initial namespace",
        map_files,
    ),
    ("tracing", true, "set kernel.yama.ptrace_scope below 3", tracing),
    ("closed network", true, "the check for ways out must be able to make a network namespace", closed),
    ("changed pages", false, "with Linux 6.7 or newer captures copy only what changed", changed_pages),
    ("watches", false, "raise fs.inotify.max_user_instances to 8192", watches),
];

/// Looks at everything.
#[must_use]
pub fn check_host() -> Vec<Check> {
    let check = |(name, required, hint, probe): &(&'static str, bool, &'static str, Probe)| {
        let found = probe();
        let ok = found.is_ok();
        Check { name, ok, detail: found.unwrap_or_else(|problem| problem), hint, required: *required }
    };
    PROBES.iter().map(check).collect()
}

fn root() -> Result<String, String> {
    let uid = rustix::process::geteuid();
    if uid.is_root() { Ok("uid 0".into()) } else { Err(format!("uid {uid}")) }
}

fn capabilities() -> Result<String, String> {
    let needed = CapabilitySet::SYS_ADMIN
        | CapabilitySet::SYS_PTRACE
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::KILL
        | CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::MKNOD;
    let held = rustix::thread::capabilities(None).map_err(|e| e.to_string())?.effective;
    let missing: Vec<_> = (needed - held).iter_names().map(|(name, _)| name).collect();
    if missing.is_empty() { Ok("all that are needed".into()) } else { Err(format!("missing {}", missing.join(", "))) }
}

fn kernel_version() -> Option<(u32, u32)> {
    let release = rustix::system::uname().release().to_str().ok()?.to_owned();
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn kernel() -> Result<String, String> {
    let uname = rustix::system::uname();
    let text = format!("{} {}", uname.release().to_string_lossy(), uname.machine().to_string_lossy());
    let fine = kernel_version() >= Some(KERNEL_MIN) && uname.machine() == c"x86_64";
    if fine { Ok(text) } else { Err(text) }
}

fn changed_pages() -> Result<String, String> {
    let (major, minor) = KERNEL_SCAN;
    if kernel_version() >= Some(KERNEL_SCAN) {
        Ok("PAGEMAP_SCAN".into())
    } else {
        Err(format!("older than {major}.{minor}: every capture is a full one"))
    }
}

fn unfiltered() -> Result<String, String> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|e| e.to_string())?;
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match mode {
        Some("0") | None => Ok("no filter on the daemon".into()),
        Some(other) => Err(format!("the daemon runs under seccomp mode {other}")),
    }
}

fn namespaces() -> Result<String, String> {
    for kind in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let limit =
            std::fs::read_to_string(format!("/proc/sys/user/max_{kind}_namespaces")).map_err(|e| e.to_string())?;
        if limit.trim() == "0" {
            return Err(format!("user.max_{kind}_namespaces is 0"));
        }
    }
    mapped().map(|_| "a user namespace with a range of ids was made".into())
}

fn mapped() -> Result<std::os::fd::OwnedFd, String> {
    let base = IdRange::of_slot(0).map_or(0, |range| range.base);
    let entry = [MapEntry { inside: 0, outside: base, length: IdRange::LENGTH }];
    id_map_namespace(&entry, &entry).map_err(|e| format!("a user namespace cannot be made: {e}"))
}

fn control_groups() -> Result<String, String> {
    let layout = Layout::detect().map_err(|e| e.to_string())?;
    let ids = IdRange::of_slot(0).ok_or("no ids")?;
    let group = SandboxCgroup::create(&layout, &SandboxId::generate(), ids, &Limits::default()).map_err(explained)?;
    let frozen = group.freeze(Part::All).and_then(|()| group.thaw(Part::All));
    frozen.and(group.remove()).map_err(explained)?;
    let kind = if layout.legacy.is_empty() { "v2" } else { "v1 and v2 (hybrid)" };
    Ok(format!("{kind}, freezing works"))
}

/// An error with its cause.
fn explained(error: impl std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

fn limits() -> Result<String, String> {
    let missing = Layout::detect().map_err(|e| e.to_string())?.missing();
    let names: Vec<_> = missing.iter().map(|c| c.name()).collect();
    if names.is_empty() {
        Ok("memory, cpu, pids".into())
    } else {
        Err(format!("no controller for {}", names.join(", ")))
    }
}

fn overlay() -> Result<String, String> {
    rustix::mount::fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)
        .map(|_| "overlay mounts can be made".into())
        .map_err(|e| e.to_string())
}

fn id_mapped() -> Result<String, String> {
    let namespace = mapped()?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, "/usr", flags).map_err(|e| format!("clone the mount of /usr: {e}"))?;
    let change = MountChange { read_only: true, nosuid_nodev: false, id_map: Some(namespace.as_fd()) };
    set_mount_attributes(&tree, change)
        .map(|()| "/usr can be shown with shifted ids".into())
        .map_err(|e| format!("/usr: {e}"))
}

fn proc() -> Result<String, String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let covering: Vec<_> = points.filter(|p| p.starts_with("/proc/") && !PROC_MOUNTS.contains(p)).collect();
    if covering.is_empty() {
        Ok("nothing covers it".into())
    } else {
        Err(format!("covered at {}", covering.join(", ")))
    }
}

fn devices() -> Result<String, String> {
    for name in crate::spawn::DEVICES {
        let path = Path::new("/dev").join(name);
        std::fs::metadata(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(crate::spawn::DEVICES.join(", "))
}

fn getfd() -> Result<String, String> {
    let own = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|e| format!("pidfd_open: {e}"))?;
    let file = std::fs::File::open("/dev/null").map_err(|e| e.to_string())?;
    let number = std::os::fd::AsRawFd::as_raw_fd(&file);
    pidfd_getfd(&own, number, PidfdGetfdFlags::empty())
        .map(|_| "pidfd_getfd works".into())
        .map_err(|e| format!("pidfd_getfd: {e}"))
}

fn kcmp() -> Result<String, String> {
    let file = std::fs::File::open("/dev/null").map_err(|e| e.to_string())?;
    let (pid, number) = (getpid().as_raw_nonzero().get(), std::os::fd::AsRawFd::as_raw_fd(&file));
    branchbox_sys::kcmp::files(pid, number, pid, number).map(|_| "kcmp works".into()).map_err(|e| format!("kcmp: {e}"))
}

fn map_files() -> Result<String, String> {
    let entry = std::fs::read_dir("/proc/self/map_files").map_err(|e| e.to_string())?.flatten().next();
    let entry = entry.ok_or("/proc/self/map_files is empty")?;
    std::fs::File::open(entry.path()).map(|_| "map_files can be opened".into()).map_err(|e| format!("map_files: {e}"))
}

fn tracing() -> Result<String, String> {
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) if scope.trim() == "3" => Err("kernel.yama.ptrace_scope is 3".into()),
        Ok(scope) => Ok(format!("kernel.yama.ptrace_scope is {}", scope.trim())),
        Err(_) => Ok("not restricted".into()),
    }
}

fn closed() -> Result<String, String> {
    crate::closed::control().map(|()| "a way out is seen where there is one".into()).map_err(explained)
}

fn watches() -> Result<String, String> {
    let text = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").map_err(|e| e.to_string())?;
    let number: u64 = text.trim().parse().map_err(|_| "not a number")?;
    let detail = format!("fs.inotify.max_user_instances is {number}");
    if number >= INOTIFY_MIN { Ok(detail) } else { Err(detail) }
}
