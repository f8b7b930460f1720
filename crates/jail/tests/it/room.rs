//! A room over a small tree: an empty tmpfs with the host's `/usr`, and a connection to its guest.

use branchbox_jail::cgroup::{Layout, SandboxCgroup};
use branchbox_jail::spawn::{Jail, JailError, JailSpec, spawn};
use branchbox_model::{IdRange, Limits, MemoryMib, SandboxId, Vcpus};
use rustix::fs::{CWD, Gid, Mode, OFlags, Uid};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, OpenTreeFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

pub const LIMITS: Limits =
    Limits { vcpus: Vcpus(1), memory: MemoryMib(256), disk: branchbox_model::DiskMib(64), pids: 64 };

pub fn ids() -> IdRange {
    IdRange::of_slot(29_000).unwrap()
}

pub struct Room {
    pub jail: Jail,
    pub cgroup: SandboxCgroup,
    socket: OwnedFd,
    staging: PathBuf,
}

pub fn tree() -> OwnedFd {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).unwrap();
    rustix::mount::fsconfig_create(&context).unwrap();
    let root = rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).unwrap();
    for name in ["usr", "tmp"] {
        rustix::fs::mkdirat(&root, name, Mode::from_raw_mode(0o777)).unwrap();
    }
    for name in ["bin", "sbin", "lib", "lib64"] {
        rustix::fs::symlinkat(format!("usr/{name}"), &root, name).unwrap();
    }
    let owner = (Uid::from_raw(ids().base), Gid::from_raw(ids().base));
    rustix::fs::chownat(&root, "", Some(owner.0), Some(owner.1), rustix::fs::AtFlags::EMPTY_PATH).unwrap();
    root
}

pub fn usr() -> OwnedFd {
    rustix::mount::open_tree(CWD, "/usr", OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC).unwrap()
}

impl Room {
    pub fn new() -> Self {
        Self::with(vec![(tree(), "/".into()), (usr(), "/usr".into())]).unwrap()
    }

    pub fn with(mounts: Vec<(OwnedFd, PathBuf)>) -> Result<Self, JailError> {
        let id = SandboxId::generate();
        let staging = std::env::temp_dir().join(format!("bbx-jail-{id}"));
        std::fs::create_dir(&staging).unwrap();
        let cgroup = SandboxCgroup::create(&Layout::detect().unwrap(), &id, ids(), &LIMITS).unwrap();
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(id.as_str().as_bytes()).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let guest_exe = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let spec = JailSpec {
            id,
            hostname: "box".into(),
            ids: ids(),
            cgroup: &cgroup,
            mounts,
            staging: staging.clone(),
            guest_exe,
            listener,
            clocks: None,
        };
        let jail = spawn(spec).inspect_err(|_| {
            cgroup.remove().unwrap();
            std::fs::remove_dir(&staging).unwrap();
        })?;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&socket, &address).unwrap();
        Ok(Self { jail, cgroup, socket, staging })
    }

    pub fn ask(&self, command: &str) -> String {
        rustix::net::send(&self.socket, command.as_bytes(), SendFlags::NOSIGNAL).unwrap();
        let mut buffer = vec![0u8; 65536];
        let (length, _) = rustix::net::recv(&self.socket, &mut buffer, RecvFlags::empty()).unwrap();
        String::from_utf8_lossy(&buffer[..length]).trim_end().to_owned()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.jail.kill_and_reap();
        self.cgroup.remove().unwrap();
        assert!(!self.cgroup.dir().exists());
        std::fs::remove_dir(&self.staging).unwrap();
    }
}
