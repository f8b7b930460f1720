//! What this executable is inside the sandbox: process 1, `sudo`, or an intruder.

use branchbox_guest::{Setup, serve};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::ffi::OsString;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Where the setuid copy lies.
pub const SUDO: &str = "/opt/tools/sudo";

/// Runs as something else than the test runner, if that is asked for.
pub fn run_mode() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = args.next()?;
    let name = Path::new(&name).file_name()?.to_str()?.to_owned();
    let args: Vec<OsString> = args.collect();
    if let Some(code) = branchbox_guest::tools::run(&name, &args) {
        return Some(code);
    }
    match args.first()?.to_str()? {
        "process-1" => {
            Some(process_1(Path::new(&args[1]), Path::new(&args[2]), Path::new(&args[3]), args.get(4).is_some()))
        }
        "hello-from-inside" => Some(intruder(Path::new(&args[1]))),
        _ => None,
    }
}

fn process_1(root: &Path, socket: &Path, cgroup: &Path, with_saved: bool) -> ExitCode {
    branchbox_sys::heap::stay_small();
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    let cgroup = rustix::fs::open(cgroup, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    make_tree(root);
    rustix::process::chroot(root).unwrap();
    rustix::process::chdir("/").unwrap();
    if with_saved {
        leave_a_command_behind();
    }
    let Err(error) = serve(Setup { listener, cgroup, last_pid: None });
    eprintln!("{error}: {:?}", std::error::Error::source(&error));
    ExitCode::FAILURE
}

fn make_tree(root: &Path) {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
    mount("tmpfs", root, "tmpfs", MountFlags::empty(), c"mode=755,size=64m").unwrap();
    for name in ["bin", "sbin", "lib", "lib64", "usr", "dev"] {
        let (host, here) = (Path::new("/").join(name), root.join(name));
        match std::fs::read_link(&host) {
            Ok(target) => symlink(target, here).unwrap(),
            Err(_) if host.is_dir() => {
                std::fs::create_dir(&here).unwrap();
                mount_bind_recursive(&host, &here).unwrap();
            }
            Err(_) => {}
        }
    }
    for name in ["proc", "etc", "tmp", "run", "root", "opt/tools"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    std::fs::set_permissions(root.join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    std::fs::set_permissions(root.join("root"), PermissionsExt::from_mode(0o700)).unwrap();
    mount("proc", root.join("proc"), "proc", MountFlags::empty(), None::<&std::ffi::CStr>).unwrap();
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/bash\nruntime:x:1000:1000::/workspace:/bin/bash\n")
        .unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\nextra:x:2345:runtime\nruntime:x:1000:\n").unwrap();
    let sudo = root.join(SUDO.trim_start_matches('/'));
    std::fs::copy("/proc/self/exe", &sudo).unwrap();
    rustix::fs::chmodat(CWD, &sudo, Mode::from_raw_mode(0o4755), rustix::fs::AtFlags::empty()).unwrap();
}

/// As a rebuild would: a child with its pipes open in this process, and a note of their numbers.
#[expect(clippy::zombie_processes, reason = "process 1 reaps it, as it does what a rebuild made")]
fn leave_a_command_behind() {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "cat; echo over >&2; exit 7"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = std::os::fd::OwnedFd::from(child.stdin.take().unwrap()).into_raw_fd();
    let stdout = std::os::fd::OwnedFd::from(child.stdout.take().unwrap()).into_raw_fd();
    let stderr = std::os::fd::OwnedFd::from(child.stderr.take().unwrap()).into_raw_fd();
    std::fs::write("/tmp/saved", format!("{} {stdin} {stdout} {stderr}", child.id())).unwrap();
}

/// Says hello from inside the pid namespace: succeeds if it gets no answer.
fn intruder(socket: &Path) -> ExitCode {
    let refused = crate::harness::Peer::connect(socket)
        .and_then(|mut peer| peer.hello(branchbox_protocol::guest::Role::Keeper))
        .is_none();
    if refused { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
