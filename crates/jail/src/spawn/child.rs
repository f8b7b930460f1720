//! The child's side: from the clone to the exec of the guest, one step after the other.
//!
//! Runs in a copy of the keeper's memory, alone, so ordinary code is fine. It only ever ends by exec or exit; nothing here
//! may return to the keeper's code with the child's state.

use super::furnish;
use super::step::{PLACE_ME, Step};
use super::{GUEST_NAME, GUEST_PATH, JailError, JailSpec, open_null};
use branchbox_sys::clone::{ExecPlan, exec, reset_signals};
use nix::libc;
use nix::sched::CloneFlags;
use rustix::fs::Mode;
use rustix::mount::OpenTreeFlags;
use rustix::thread::{Gid, Uid};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the clone makes; the cgroup namespace follows once the child is in its place.
pub(super) const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS)
    .cast_unsigned() as u64;

/// The guest's whole environment.
const GUEST_ENV: [&str; 1] = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"];

/// What is opened outside, with the keeper's rights.
pub(super) struct Prepared {
    /// The control group to hand in.
    work: OwnedFd,
    /// `/dev/null`.
    null: OwnedFd,
    /// The guest's executable as a detached read-only mount.
    guest: OwnedFd,
    exec: (CString, CString, Vec<CString>),
}

impl Prepared {
    pub(super) fn new(spec: &JailSpec<'_>) -> Result<Self, JailError> {
        let host = |action| move |source: io::Error| JailError::Host { action, source };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        let guest = rustix::mount::open_tree(&spec.guest_exe, c"", flags)
            .map_err(|errno| host("clone a mount of the guest's program")(errno.into()))?;
        furnish::make_read_only(guest.as_fd()).map_err(host("make the guest's program read-only"))?;
        let text = |s: &str| CString::new(s).map_err(io::Error::from);
        let exec = (|| {
            Ok((text(GUEST_PATH)?, text(GUEST_NAME)?, GUEST_ENV.iter().map(|e| text(e)).collect::<Result<_, _>>()?))
        })();
        Ok(Self {
            work: spec.cgroup.open_work().map_err(JailError::Cgroup)?,
            null: open_null().map_err(host("open /dev/null"))?,
            guest,
            exec: exec.map_err(host("name the guest's program"))?,
        })
    }
}

/// The child's whole life before the exec. Its answer is an exit code, given only after a failure was told.
pub(super) fn run(spec: &JailSpec<'_>, prepared: &Prepared, go: BorrowedFd<'_>, report: BorrowedFd<'_>) -> i32 {
    match set_up(spec, prepared, go, report) {
        Ok(last_pid) => {
            let null = prepared.null.as_fd();
            let (path, name, env) = prepared.exec.clone();
            exec(&ExecPlan {
                fds: vec![null, null, null, spec.listener.as_fd(), prepared.work.as_fd(), last_pid.as_fd()],
                report,
                report_kind: Step::Exec as u32,
                path,
                argv: vec![name],
                env,
            })
        }
        Err((step, error)) => {
            // Nobody to tell when this fails too; the parent sees the pipe close.
            let _ = tell(report, step as u32, error.raw_os_error().unwrap_or(libc::EIO));
            1
        }
    }
}

type Failure = (Step, io::Error);

fn set_up(
    spec: &JailSpec<'_>,
    prepared: &Prepared,
    go: BorrowedFd<'_>,
    report: BorrowedFd<'_>,
) -> Result<OwnedFd, Failure> {
    let at = |step: Step| move |error: io::Error| (step, error);
    wait(go).map_err(at(Step::Wait))?;
    nix::sched::unshare(CloneFlags::CLONE_NEWCGROUP).map_err(|e| (Step::CgroupNamespace, e.into()))?;
    tell(report, PLACE_ME, 0).and_then(|()| wait(go)).map_err(at(Step::Wait))?;
    let root = furnish::attach_root(spec)?;
    become_root().map_err(at(Step::Identity))?;
    rustix::process::setsid().map_err(|e| (Step::Session, e.into()))?;
    reset_signals().map_err(at(Step::Session))?;
    rustix::system::sethostname(spec.hostname.as_bytes()).map_err(|e| (Step::Hostname, e.into()))?;
    branchbox_sys::netif::loopback_up().map_err(at(Step::Loopback))?;
    let limits = namespace_limits().map_err(at(Step::NamespaceLimits))?;
    let last_pid = furnish::furnish(spec, root.as_fd(), prepared.guest.as_fd())?;
    forbid_namespaces(&limits).map_err(at(Step::NamespaceLimits))?;
    crate::filter::install().map_err(|error| (Step::Filter, os_error(&error)))?;
    Ok(last_pid)
}

fn os_error(error: &crate::filter::FilterError) -> io::Error {
    match error {
        crate::filter::FilterError::Install(source) => {
            io::Error::from_raw_os_error(source.raw_os_error().unwrap_or(libc::EIO))
        }
        crate::filter::FilterError::Compile(_) => io::Error::from_raw_os_error(libc::EINVAL),
    }
}

/// One byte from the parent; its death is an error.
fn wait(go: BorrowedFd<'_>) -> io::Result<()> {
    let mut byte = [0u8; 1];
    loop {
        match rustix::io::read(go, &mut byte) {
            Ok(1) => return Ok(()),
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::EPIPE)),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn tell(report: BorrowedFd<'_>, kind: u32, errno: i32) -> io::Result<()> {
    let mut record = [0u8; super::step::REPORT_BYTES];
    record[..4].copy_from_slice(&kind.to_le_bytes());
    record[4..].copy_from_slice(&errno.to_le_bytes());
    rustix::io::write(report, &record)?;
    Ok(())
}

/// Until now the ids are the keeper's, which the map does not have.
fn become_root() -> io::Result<()> {
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
    rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    Ok(())
}

/// Opens every `user.max_*_namespaces` of the new user namespace, while the host's `/proc` is still there. The files show
/// the limits of whoever opens them.
fn namespace_limits() -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir("/proc/sys/user")? {
        let entry = entry?;
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(b"max_") && name.as_encoded_bytes().ends_with(b"_namespaces") {
            files.push(OpenOptions::new().write(true).open(entry.path())?);
        }
    }
    Ok(files)
}

/// Sets them to 0, after the last mount was made: a detached mount counts as a mount namespace. Who could raise them again
/// needs `CAP_SYS_RESOURCE`, which the sandbox gives up.
fn forbid_namespaces(limits: &[File]) -> io::Result<()> {
    limits.iter().try_for_each(|mut file| file.write_all(b"0"))
}
