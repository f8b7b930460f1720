//! Processes, threads and memory.

use crate::machine::Blob;
use crate::object::{Lock, ObjectId};
use serde::{Deserialize, Serialize};

/// Whether a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Life {
    /// It runs or waits.
    Alive,
    /// Stopped by this signal.
    Stopped(i32),
    /// Ended, not yet waited for; its wait status.
    Zombie(i32),
}

/// A process. Ids are those inside the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's; 1 is the guest.
    pub parent: i32,
    /// Process group.
    pub group: i32,
    /// Session.
    pub session: i32,
    /// Whether it lives. A zombie has nothing of what follows.
    pub life: Life,
    /// Its cgroup below the sandbox's `work`, such as `e3`.
    pub cgroup: String,
    /// Threads, the leader first.
    pub threads: Vec<Thread>,
    /// Address space.
    pub memory: MemoryLayout,
    /// Descriptors.
    pub fds: Vec<FdSlot>,
    /// Working directory.
    pub cwd: Option<ObjectId>,
    /// umask(2).
    pub umask: u32,
    /// Actions of signals 1 to 64.
    pub actions: Vec<SignalAction>,
    /// Signals pending for the whole process, raw `siginfo_t`.
    pub pending: Vec<Vec<u8>>,
    /// Soft and hard limits by resource number.
    pub limits: Vec<(u64, u64)>,
    /// `setitimer` timers: interval and remaining value in microseconds.
    pub interval_timers: [(u64, u64); 3],
    /// timer_create(2) timers.
    pub posix_timers: Vec<PosixTimer>,
    /// POSIX record locks.
    pub locks: Vec<PosixLock>,
    /// personality(2).
    pub personality: u32,
    /// `PR_GET_DUMPABLE`.
    pub dumpable: u32,
    /// `PR_GET_CHILD_SUBREAPER`.
    pub subreaper: bool,
    /// `PR_GET_THP_DISABLE`.
    pub thp_disabled: bool,
    /// `/proc/<pid>/oom_score_adj`.
    pub oom_score_adj: i32,
    /// `/proc/<pid>/coredump_filter`.
    pub coredump_filter: u32,
    /// membarrier(2) registrations.
    pub membarrier: u32,
}

/// One thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Its id.
    pub tid: i32,
    /// General registers in the order of `user_regs_struct`, as they were (results of interrupted calls not yet changed).
    pub registers: Vec<u64>,
    /// Raw xstate.
    pub xstate: Vec<u8>,
    /// How an interrupted system call goes on in a copy.
    pub restart: Restart,
    /// Blocked signals.
    pub mask: u64,
    /// Pending for this thread alone, raw `siginfo_t`.
    pub pending: Vec<Vec<u8>>,
    /// Alternate signal stack: address, flags, size.
    pub alt_stack: (u64, u32, u64),
    /// Robust list head and length.
    pub robust_list: (u64, u64),
    /// `clear_child_tid`.
    pub clear_child_tid: u64,
    /// rseq area: address, size, signature.
    pub rseq: Option<(u64, u32, u32)>,
    /// Name.
    pub name: Vec<u8>,
    /// Rights.
    pub credentials: Credentials,
    /// Installed seccomp filters beyond the sandbox's own, oldest first; raw BPF.
    pub filters: Vec<Vec<u8>>,
    /// `no_new_privs`.
    pub no_new_privs: bool,
    /// Parent-death signal.
    pub death_signal: i32,
    /// Timer slack in nanoseconds.
    pub timer_slack: u64,
    /// Raw `sched_attr`.
    pub scheduling: Vec<u8>,
    /// Raw affinity mask.
    pub affinity: Vec<u8>,
    /// I/O priority.
    pub io_priority: i32,
}

/// How an interrupted call goes on in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restart {
    /// It was not in a call, or the call had ended.
    None,
    /// The same call is made again.
    Again,
}

/// Who a thread is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// Real, effective, saved, file-system uid.
    pub uids: [u32; 4],
    /// Real, effective, saved, file-system gid.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Inheritable, permitted, effective, bounding, ambient capabilities.
    pub capabilities: [u64; 5],
    /// Securebits.
    pub securebits: u32,
}

/// One signal's action as the kernel keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SignalAction {
    /// Handler, or 0 default, 1 ignore.
    pub handler: u64,
    /// `SA_*`.
    pub flags: u64,
    /// Restorer.
    pub restorer: u64,
    /// Signals blocked while it runs.
    pub mask: u64,
}

/// A timer_create(2) timer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixTimer {
    /// Its id.
    pub id: i32,
    /// Clock.
    pub clock: i32,
    /// Signal, or 0.
    pub signal: i32,
    /// `SIGEV_*`.
    pub notify: i32,
    /// The program's own value.
    pub value: u64,
    /// Thread for `SIGEV_THREAD_ID`.
    pub tid: i32,
    /// Interval and remaining value in nanoseconds.
    pub interval_ns: u64,
    /// Remaining.
    pub remaining_ns: u64,
}

/// A POSIX record lock held through a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PosixLock {
    /// A descriptor of this process on the file.
    pub fd: i32,
    /// Kind.
    pub lock: Lock,
    /// First byte.
    pub start: u64,
    /// Bytes, 0 to the end of the file.
    pub length: u64,
}

/// One descriptor of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FdSlot {
    /// Its number.
    pub fd: i32,
    /// What it is.
    pub object: ObjectId,
    /// Close-on-exec.
    pub cloexec: bool,
}

/// An address space.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLayout {
    /// Mappings in address order.
    pub mappings: Vec<Mapping>,
    /// The running program.
    pub exe: Option<ObjectId>,
    /// start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end.
    pub fields: [u64; 11],
    /// The auxiliary vector.
    pub auxv: Vec<u8>,
}

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// `PROT_*`.
    pub protection: u32,
    /// Shared with others.
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// What is behind it.
    pub backing: Backing,
    /// `madvise` advice values in force.
    pub advice: Vec<i32>,
    /// Grows downwards.
    pub grows_down: bool,
    /// Swap space not reserved.
    pub no_reserve: bool,
    /// `mlock`ed; on fault only.
    pub locked: Option<bool>,
    /// `MAP_DROPPABLE`: comes back empty.
    pub droppable: bool,
    /// Ranges made inaccessible by `MADV_GUARD_INSTALL`.
    pub guards: Vec<(u64, u64)>,
    /// Name of anonymous memory.
    pub name: Option<Vec<u8>>,
    /// Content that differs from what is behind it.
    pub extents: Vec<Extent>,
}

/// Content of a run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// First address.
    pub address: u64,
    /// Where its bytes lie.
    pub blob: Blob,
}

/// What is behind a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Nothing: zeros.
    Anonymous,
    /// A file or memory file.
    Object(ObjectId),
    /// The kernel's own code.
    Vdso,
    /// The kernel's time data.
    Vvar,
    /// The kernel's time data of virtual clocks.
    VvarVclock,
}
