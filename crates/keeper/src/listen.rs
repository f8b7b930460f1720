//! The two sockets of a sandbox, in the node's run directory, for root alone.

use crate::failure::Failure;
use branchbox_model::Code;
use branchbox_protocol::keeper::KeeperConfig;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Where the node reaches the keeper.
pub fn keeper_path(config: &KeeperConfig) -> PathBuf {
    config.run_dir.join(format!("{}.keeper", config.id))
}

/// Where node and keeper reach the guest.
pub fn guest_path(config: &KeeperConfig) -> PathBuf {
    config.run_dir.join(format!("{}.guest", config.id))
}

/// Makes a listening socket; what an earlier keeper left at the path is replaced.
///
/// # Errors
/// [`Failure`] naming the path.
pub fn bind(path: &Path) -> Result<OwnedFd, Failure> {
    let failed =
        |action: &str, source: std::io::Error| Failure::io(format_args!("{action} {}", path.display()), source);
    remove(path);
    let address = SocketAddrUnix::new(path).map_err(|_| {
        Failure::new(Code::InternalError, format!("the path {} is too long for a socket", path.display()))
            .hint("use a state directory with a shorter path")
    })?;
    let socket = socket().map_err(|e| failed("make the socket", e))?;
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(before);
    bound.map_err(|e| failed("bind", e.into()))?;
    rustix::net::listen(&socket, BACKLOG).map_err(|e| failed("listen on", e.into()))?;
    Ok(socket)
}

/// Connects to a listening socket.
///
/// # Errors
/// [`Failure`] naming the path.
pub fn connect(path: &Path) -> Result<OwnedFd, Failure> {
    let failed = |source: std::io::Error| Failure::io(format_args!("connect to {}", path.display()), source);
    let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
    let socket = socket().map_err(failed)?;
    rustix::net::connect(&socket, &address).map_err(|e| failed(e.into()))?;
    Ok(socket)
}

fn socket() -> std::io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Removes a socket's file.
pub fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            tracing::warn!("cannot remove {}: {error}", path.display())
        }
        _ => {}
    }
}
