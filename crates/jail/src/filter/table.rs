//! The calls a sandbox may not make, each with its reason.
//!
//! `ENOSYS` is the answer of a kernel built without the call, which programs know how to take; `EPERM` is for calls that
//! exist everywhere and need a right which a sandbox does not have; `EINVAL` is for one argument of a call that stays.

use libc::{c_int, c_long};
use nix::libc;

/// When a line applies.
#[derive(Debug, Clone, Copy)]
pub enum When {
    /// Always.
    Always,
    /// The low 32 bits of an argument are this value.
    Equals(u8, u32),
    /// The low 32 bits of an argument are none of these.
    NoneOf(u8, &'static [u32]),
    /// An argument has at least one of these bits.
    AnyBit(u8, u32),
}

/// One line of the filter.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// The call.
    pub call: c_long,
    /// Its arguments.
    pub when: When,
    /// The answer.
    pub errno: c_int,
    /// Why.
    pub reason: &'static str,
}

const fn line(call: c_long, when: When, errno: c_int, reason: &'static str) -> Line {
    Line { call, when, errno, reason }
}
const fn absent(call: c_long, reason: &'static str) -> Line {
    line(call, When::Always, libc::ENOSYS, reason)
}
const fn denied(call: c_long, reason: &'static str) -> Line {
    line(call, When::Always, libc::EPERM, reason)
}

/// Namespaces of any kind. In `clone` the lowest of them, time, is a part of the exit signal.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .cast_unsigned();
const NEW_TIME: u32 = 0x80;
/// `ADDR_NO_RANDOMIZE`, and the question for the present value.
const PERSONALITIES: &[u32] = &[0, 0x0004_0000, 0xffff_ffff];
const FAMILIES: &[u32] = &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];
const FILTER_FLAG_NEW_LISTENER: u32 = 8;
const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
const PR_SET_MDWE: u32 = 65;
const PR_SET_MEMORY_MERGE: u32 = 67;
const F_NOTIFY: u32 = 1026;
const ARCH_REQ_XCOMP_PERM: u32 = 0x1023;
const ARCH_SHSTK_ENABLE: u32 = 0x5001;
const SYS_OPEN_TREE_ATTR: c_long = 467;
const SYS_MSEAL: c_long = 462;

/// The base filter, in order of the groups of `SECURITY.md`.
pub const TABLE: &[Line] = &[
    // State in the kernel that a capture cannot see or bring back.
    absent(
        libc::SYS_io_uring_setup,
        "rings hold requests in flight that cannot be read; libuv and liburing users fall back to epoll",
    ),
    absent(libc::SYS_io_uring_enter, "as io_uring_setup"),
    absent(libc::SYS_io_uring_register, "as io_uring_setup"),
    absent(
        libc::SYS_io_setup,
        "AIO rings hold requests in flight that cannot be read; nginx and databases fall back to threads",
    ),
    absent(
        libc::SYS_userfaultfd,
        "a registered range waits for a handler that a copy would not have; the engine uses its own",
    ),
    absent(libc::SYS_fanotify_init, "marks and queued events cannot be read; watchers use inotify"),
    absent(libc::SYS_fanotify_mark, "as fanotify_init"),
    absent(
        libc::SYS_landlock_create_ruleset,
        "a process's rules cannot be read back, so a copy would run without them",
    ),
    absent(libc::SYS_landlock_add_rule, "as landlock_create_ruleset"),
    absent(libc::SYS_landlock_restrict_self, "as landlock_create_ruleset"),
    absent(libc::SYS_memfd_secret, "its pages cannot be read from outside"),
    absent(libc::SYS_add_key, "keyrings are not namespaced: keys are shared with the host and not in a capture"),
    absent(libc::SYS_request_key, "as add_key"),
    absent(libc::SYS_keyctl, "as add_key"),
    absent(
        libc::SYS_modify_ldt,
        "a process's descriptor table cannot be written from outside; only 16- and 32-bit emulation uses it",
    ),
    absent(libc::SYS_mbind, "memory policy is not captured; libnuma takes this for a machine with one node"),
    absent(libc::SYS_set_mempolicy, "as mbind"),
    absent(libc::SYS_get_mempolicy, "as mbind: libnuma asks this first"),
    absent(libc::SYS_set_mempolicy_home_node, "as mbind"),
    absent(libc::SYS_migrate_pages, "as mbind"),
    absent(libc::SYS_move_pages, "as mbind"),
    absent(libc::SYS_pkey_alloc, "protection keys are not captured; V8 and others work without"),
    absent(SYS_MSEAL, "a sealed mapping can not be taken away again by a rewind; its users treat it as optional"),
    line(
        libc::SYS_seccomp,
        When::AnyBit(1, FILTER_FLAG_NEW_LISTENER),
        libc::EINVAL,
        "the holder of a listener would be missing in a copy; the call of mode strict has no flags",
    ),
    line(
        libc::SYS_prctl,
        When::Equals(0, PR_SET_SYSCALL_USER_DISPATCH),
        libc::EINVAL,
        "the selector lies in memory the engine injects beside; only emulators of other systems use it",
    ),
    line(
        libc::SYS_prctl,
        When::Equals(0, PR_SET_MEMORY_MERGE),
        libc::EINVAL,
        "merging of a whole process's pages is not captured; it only saves memory",
    ),
    line(
        libc::SYS_fcntl,
        When::Equals(1, F_NOTIFY),
        libc::EINVAL,
        "directory notifications cannot be seen from outside; inotify took their place",
    ),
    absent(libc::SYS_mq_open, "a queue lives on when nobody has it open, where a capture does not find it"),
    line(
        libc::SYS_prctl,
        When::Equals(0, PR_SET_MDWE),
        libc::EINVAL,
        "can not be taken back, so the engine could not map its page; hardening that is optional",
    ),
    line(
        libc::SYS_arch_prctl,
        When::Equals(0, ARCH_SHSTK_ENABLE),
        libc::EINVAL,
        "shadow stacks are not captured; the loader goes on without",
    ),
    line(
        libc::SYS_arch_prctl,
        When::Equals(0, ARCH_REQ_XCOMP_PERM),
        libc::EINVAL,
        "the right to tile registers is not captured; libraries use AVX",
    ),
    line(
        libc::SYS_personality,
        When::NoneOf(0, PERSONALITIES),
        libc::EPERM,
        "other address layouts and system emulations are not captured; the one debuggers use is",
    ),
    line(
        libc::SYS_socket,
        When::NoneOf(0, FAMILIES),
        libc::EAFNOSUPPORT,
        "families that are not namespaced or not captured (packet, alg, vsock, can, bluetooth, …), and a large attack surface",
    ),
    line(libc::SYS_socketpair, When::NoneOf(0, FAMILIES), libc::EAFNOSUPPORT, "as socket"),
    // Namespaces and mounts: the room is furnished before the sandbox runs.
    line(
        libc::SYS_unshare,
        When::AnyBit(0, NAMESPACES | NEW_TIME),
        libc::EPERM,
        "namespaces inside are not captured, and give rights that open the kernel to attack",
    ),
    line(
        libc::SYS_clone,
        When::AnyBit(0, NAMESPACES),
        libc::EPERM,
        "as unshare; clone3 hides its flags from a filter, and the limits of user.max_*_namespaces stop it",
    ),
    denied(libc::SYS_setns, "no other namespace is inside, and none outside may be entered"),
    denied(libc::SYS_mount, "mounts are not captured, and each file system type is a parser of hostile input"),
    denied(libc::SYS_umount2, "would uncover what the masks on /proc and /sys hide"),
    denied(libc::SYS_pivot_root, "as umount2"),
    denied(libc::SYS_move_mount, "as mount"),
    denied(libc::SYS_open_tree, "as mount"),
    denied(SYS_OPEN_TREE_ATTR, "as mount"),
    denied(libc::SYS_fsopen, "as mount"),
    denied(libc::SYS_fsconfig, "as mount"),
    denied(libc::SYS_fsmount, "as mount"),
    denied(libc::SYS_fspick, "as mount"),
    denied(libc::SYS_mount_setattr, "as mount"),
    denied(libc::SYS_open_by_handle_at, "a handle names files of the whole file system, outside the tree too"),
    // The host's own state.
    absent(libc::SYS_bpf, "programs in the host's kernel"),
    absent(libc::SYS_perf_event_open, "counters of the host, and a long record of kernel faults"),
    denied(libc::SYS_kexec_load, "replaces the host's kernel"),
    denied(libc::SYS_kexec_file_load, "as kexec_load"),
    denied(libc::SYS_init_module, "code in the host's kernel"),
    denied(libc::SYS_finit_module, "as init_module"),
    denied(libc::SYS_delete_module, "as init_module"),
    denied(libc::SYS_reboot, "the host's power, or an end of the sandbox that nobody asked the keeper for"),
    denied(libc::SYS_swapon, "the host's swap"),
    denied(libc::SYS_swapoff, "as swapon"),
    denied(libc::SYS_quotactl, "the host's quotas"),
    denied(libc::SYS_quotactl_fd, "as quotactl"),
    denied(libc::SYS_acct, "the host's accounting"),
    denied(libc::SYS_settimeofday, "the host's clock"),
    denied(libc::SYS_clock_settime, "as settimeofday"),
    denied(libc::SYS_adjtimex, "as settimeofday"),
    denied(libc::SYS_clock_adjtime, "as settimeofday"),
    denied(libc::SYS_syslog, "the host's kernel log"),
    denied(libc::SYS_iopl, "the host's devices"),
    denied(libc::SYS_ioperm, "as iopl"),
    denied(libc::SYS_vhangup, "a terminal that may be the host's"),
    absent(libc::SYS_lookup_dcookie, "profiles of the host; removed from newer kernels"),
    absent(libc::SYS_uselib, "obsolete program formats"),
];
