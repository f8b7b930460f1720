//! This program as process 1: runs a shell command per packet and answers with its output.

use branchbox_jail::{caps, spawn};
use rustix::net::{RecvFlags, SendFlags, SocketFlags};
use std::os::fd::OwnedFd;
use std::process::Command;

/// Asks the guest to give up its building rights instead of running a command.
pub const SEAL: &str = "!seal";
/// Asks the guest to move itself to a new group below `work`, and to start one process right into it.
pub const MOVE: &str = "!move";

pub fn run() -> ! {
    let listener = branchbox_sys::inherited::take(spawn::LISTENER_FD).unwrap();
    let socket = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
    let mut buffer = vec![0u8; 65536];
    loop {
        let (length, _) = rustix::net::recv(&socket, &mut buffer, RecvFlags::empty()).unwrap();
        if length == 0 {
            std::process::exit(0);
        }
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        let answer = match text.as_str() {
            SEAL => caps::drop_to_runtime_set().map_or_else(|e| format!("{e}: {}", e.source), |()| "sealed".into()),
            MOVE => make_group().map_or_else(|e| format!("failed: {e}"), |pid| format!("moved {pid}")),
            command => shell(command),
        };
        rustix::net::send(&socket, answer.as_bytes(), SendFlags::NOSIGNAL).unwrap();
    }
}

fn shell(command: &str) -> String {
    match Command::new("/bin/sh").args(["-c", command]).env("PATH", "/usr/sbin:/usr/bin").output() {
        Ok(output) => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        Err(error) => format!("cannot start a shell: {error}"),
    }
}

/// Makes `work/e1`, starts a process and moves it there, as the guest does for a command.
fn make_group() -> std::io::Result<u32> {
    use rustix::fs::{Mode, OFlags};
    let work: OwnedFd = branchbox_sys::inherited::take(spawn::CGROUP_FD)?;
    rustix::fs::mkdirat(&work, "e1", Mode::RWXU)?;
    let procs = rustix::fs::openat(&work, "e1/cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    let child = Command::new("/bin/sleep").arg("1000").spawn()?;
    rustix::io::write(&procs, child.id().to_string().as_bytes())?;
    // The descriptor must lead nowhere else.
    let above = rustix::fs::openat(&work, "../../cgroup.procs", OFlags::RDONLY, Mode::empty())
        .and_then(|file| rustix::fs::fstat(&file));
    let own = rustix::fs::openat(&work, "cgroup.procs", OFlags::RDONLY, Mode::empty())
        .and_then(|file| rustix::fs::fstat(&file))?;
    match above {
        Ok(above) if above.st_ino != own.st_ino => Err(std::io::Error::other("`..` leaves the group")),
        _ => Ok(child.id()),
    }
}
