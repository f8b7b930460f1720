//! Making a sandbox's room and starting process 1 in it.
//!
//! The parent (the keeper, root outside, one thread) clones a child into new namespaces, maps its ids, moves it into its
//! control groups and waits for its word. The child furnishes the room from within (`child`, `furnish`), puts on the
//! filter and executes the guest. The child's failures come back as a step and an error number over a pipe that the
//! exec closes: end of file is success.
//!
//! Invariants: the child runs nothing before it is in its control groups; an error leaves no process. What a sandbox's
//! own files say (links in its tree, for one) is never followed outside the tree.
//! Deliberately not here: whether the sandbox survives its keeper. It does: nothing in this module ties their lives.

mod child;
mod clocks;
mod furnish;
mod step;

pub use clocks::ClockOffsets;
pub(crate) use furnish::DEVICES;
pub use step::Step;

use crate::cgroup::{CgroupError, SandboxCgroup};
use branchbox_model::{Code, Coded, IdRange, Retry, SandboxId};
use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, WaitIdOptions};
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use step::{PLACE_ME, REPORT_BYTES};

/// Where the guest's program appears inside.
pub const GUEST_PATH: &str = "/.branchbox/guest";
/// The guest's name for itself, by which the executable knows its mode.
pub const GUEST_NAME: &str = "branchbox-guest";
/// Descriptor of the listening socket in the guest.
pub const LISTENER_FD: i32 = 3;
/// Descriptor of the `work` control group in the guest.
pub const CGROUP_FD: i32 = 4;
/// Descriptor of `/proc/sys/kernel/ns_last_pid` in the guest, open for writing; for rebuilding saved processes.
pub const LAST_PID_FD: i32 = 5;

/// Longest wait for one word of the child; it takes milliseconds.
const SETUP_WAIT: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Everything a room is made of.
#[derive(Debug)]
pub struct JailSpec<'a> {
    /// The sandbox.
    pub id: SandboxId,
    /// Its host name.
    pub hostname: String,
    /// Its ids on the host.
    pub ids: IdRange,
    /// Its control groups.
    pub cgroup: &'a SandboxCgroup,
    /// Detached mounts and where they go inside, the root first.
    pub mounts: Vec<(OwnedFd, PathBuf)>,
    /// An existing directory of the host, empty, over which the root is put together. Nothing is visible there outside.
    pub staging: PathBuf,
    /// The guest's executable, open.
    pub guest_exe: OwnedFd,
    /// The listening socket that becomes descriptor 3.
    pub listener: OwnedFd,
    /// How far its clocks are from the host's; `None` when they are the host's.
    pub clocks: Option<ClockOffsets>,
}

/// A room that could not be made. Nothing of it is left but the control groups, which the caller made.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// Something outside the room.
    #[error("{action}")]
    Host {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The control groups.
    #[error("place process 1 in its control group")]
    Cgroup(#[source] CgroupError),
    /// A step inside the room.
    #[error("{}", step.text())]
    Setup {
        /// Which step.
        step: Step,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The child ended without a word.
    #[error("process 1 ended during its setup")]
    Vanished,
}

impl Coded for JailError {
    fn code(&self) -> Code {
        Code::StartFailed
    }
    fn retry(&self) -> Retry {
        match self {
            Self::Vanished => Retry::Retry,
            _ => Retry::Permanent,
        }
    }
    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Host { source, .. } if source.raw_os_error() == Some(libc::ENOSPC) => {
                "a limit on namespaces is reached: raise user.max_user_namespaces and its siblings".into()
            }
            Self::Setup { step: Step::Proc | Step::Sys, .. } => {
                "the host's own /proc and /sys must not be covered in parts, as they are in many containers; run `branchbox doctor`".into()
            }
            _ => "run `branchbox doctor`; the sandbox's keeper.log has the details".into(),
        })
    }
}

/// A running room. Dropping the value leaves it running.
#[derive(Debug)]
pub struct Jail {
    /// Process 1 as the host sees it.
    pub pid: i32,
    /// A descriptor of process 1; readable when it has ended.
    pub pidfd: OwnedFd,
}

impl Jail {
    /// The room of an earlier keeper, whose process 1 is this.
    ///
    /// # Errors
    /// `ESRCH` when it has ended.
    pub fn adopt(pid: i32) -> io::Result<Self> {
        let number = Pid::from_raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
        Ok(Self { pid, pidfd })
    }

    /// Whether process 1 has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(rustix::event::poll(&mut fds, Some(&at_once)), Ok(1..))
    }

    /// Ends process 1, and with it everything in its pid namespace, and waits for that.
    pub fn kill_and_reap(&self) {
        // It may have ended already; then both calls have nothing to do.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        while rustix::event::poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
        self.reap();
    }

    /// Takes the ended process 1 out of the process table, if it is a child of this process.
    pub fn reap(&self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let _ = rustix::process::waitid(rustix::process::WaitId::PidFd(self.pidfd.as_fd()), options);
    }
}

/// Makes the room and starts the guest in it. The caller must have one thread.
///
/// # Errors
/// [`JailError`]; no process is left then.
pub fn spawn(spec: JailSpec<'_>) -> Result<Jail, JailError> {
    let host = |action| move |source: io::Error| JailError::Host { action, source };
    let prepared = child::Prepared::new(&spec)?;
    let (report, report_child) = pipe().map_err(host("make a pipe"))?;
    let (go_child, go) = pipe().map_err(host("make a pipe"))?;
    let (mut report, mut go) = (Some(report), Some(go));
    let clocks = spec.clocks.map(clocks::Namespace::enter).transpose();
    let clocks = clocks.map_err(host("set the sandbox's clocks; this kernel may lack time namespaces"))?;
    let started = branchbox_sys::clone::fork_with(child::NAMESPACES, || {
        // The child's copies of the parent's ends: kept, they would hide the parent's death.
        drop((report.take(), go.take()));
        child::run(&spec, &prepared, go_child.as_fd(), report_child.as_fd())
    });
    let left = clocks.map_or(Ok(()), clocks::Namespace::leave);
    let started = started.map_err(host("make namespaces"))?;
    let jail = Jail { pid: started.pid, pidfd: started.pidfd };
    if let Err(error) = left {
        jail.kill_and_reap();
        return Err(host("leave the sandbox's clocks")(error));
    }
    drop((report_child, go_child));
    let ends = report.zip(go).ok_or(JailError::Vanished)?;
    let done = attend(&jail, &spec, ends.0, ends.1.as_fd());
    if done.is_err() {
        jail.kill_and_reap();
    }
    done.map(|()| jail)
}

/// The parent's part of the setup.
fn attend(jail: &Jail, spec: &JailSpec<'_>, report: OwnedFd, go: BorrowedFd<'_>) -> Result<(), JailError> {
    let mut report = std::fs::File::from(report);
    let host = |action| move |source: io::Error| JailError::Host { action, source };
    let map = format!("0 {} {}", spec.ids.base, IdRange::LENGTH);
    for kind in ["uid_map", "gid_map"] {
        std::fs::write(format!("/proc/{}/{kind}", jail.pid), &map).map_err(host("map the sandbox's ids"))?;
    }
    spec.cgroup.place(jail.pid).map_err(JailError::Cgroup)?;
    rustix::io::write(go, b"1").map_err(|e| host("tell the child to go on")(e.into()))?;
    if let Some(error) = next_report(&mut report)? {
        return Err(error);
    }
    spec.cgroup.place_guest(jail.pid).map_err(JailError::Cgroup)?;
    rustix::io::write(go, b"2").map_err(|e| host("tell the child to go on")(e.into()))?;
    match next_report(&mut report) {
        // The pipe was closed by the exec.
        Err(JailError::Vanished) if !jail.has_ended() => Ok(()),
        Err(error) => Err(error),
        Ok(error) => Err(error.unwrap_or(JailError::Vanished)),
    }
}

/// The child's next word: `None` is [`PLACE_ME`], `Vanished` the end of the pipe.
fn next_report(report: &mut std::fs::File) -> Result<Option<JailError>, JailError> {
    let mut ready = [PollFd::new(&*report, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut ready, Some(&SETUP_WAIT)) {
            Ok(0) => {
                let source = io::ErrorKind::TimedOut.into();
                return Err(JailError::Host { action: "wait for process 1 to set itself up", source });
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => break,
        }
    }
    let mut record = [0u8; REPORT_BYTES];
    report.read_exact(&mut record).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => JailError::Vanished,
        _ => JailError::Host { action: "hear from the child", source },
    })?;
    let [a, b, c, d, e, f, g, h] = record;
    let number = u32::from_le_bytes([a, b, c, d]);
    let errno = i32::from_le_bytes([e, f, g, h]);
    if number == PLACE_ME {
        return Ok(None);
    }
    let step = Step::from_number(number).ok_or(JailError::Vanished)?;
    Ok(Some(JailError::Setup { step, source: io::Error::from_raw_os_error(errno) }))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Opens `/dev/null` for the guest's first three descriptors.
fn open_null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty())?)
}
