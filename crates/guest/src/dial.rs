//! Connections from outside to a port inside: this process makes the socket, because it lives in the sandbox's network
//! namespace, and hands it over.
//!
//! It never waits: the socket goes out while it is still connecting, and its copy here is closed with the reply. So no
//! number of connections makes this process slow, and what the node does with them costs it nothing.

use branchbox_protocol::guest::GuestError;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Begins a connection to a port on loopback.
///
/// # Errors
/// [`GuestError::BadCall`] for port 0, [`GuestError::Dial`] for what the kernel refuses at once.
pub fn dial(port: u16, v6: bool) -> Result<OwnedFd, GuestError> {
    if port == 0 {
        return Err(GuestError::BadCall("there is no port 0".into()));
    }
    let refused = |errno: Errno| GuestError::Dial { port, errno: errno.raw_os_error() };
    let (family, address) = if v6 {
        (AddressFamily::INET6, SocketAddr::from((Ipv6Addr::LOCALHOST, port)))
    } else {
        (AddressFamily::INET, SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP)).map_err(refused)?;
    match connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(refused(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_port_is_reached_on_both_loopbacks() {
        for (address, v6) in [("127.0.0.1:0", false), ("[::1]:0", true)] {
            let listener = std::net::TcpListener::bind(address).expect("listen");
            let port = listener.local_addr().expect("address").port();
            let socket = dial(port, v6).expect("dial");
            let (mut there, _) = listener.accept().expect("accept");
            there.write_all(b"hello").expect("write");
            drop(there);
            let mut here = std::net::TcpStream::from(socket);
            here.set_nonblocking(false).expect("blocking");
            let mut read = String::new();
            here.read_to_string(&mut read).expect("read");
            assert_eq!(read, "hello");
        }
        assert!(matches!(dial(0, false), Err(GuestError::BadCall(_))));
    }
}
