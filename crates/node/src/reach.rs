//! Connections to ports inside a sandbox: what tunnels and previews stand on.
//!
//! The guest makes the socket in the sandbox's network namespace and passes it; bytes then flow between it and the client
//! without the guest. The descriptor comes from a hostile process: it is used only if the kernel says that it is a TCP
//! socket, and always with `MSG_DONTWAIT`, because whoever kept a copy of it can make it a blocking one at any time.
//!
//! A connection ends with the machine: when the sandbox is paused or stopped its process 1 goes, and [`Reach::ended`]
//! returns. A held socket would otherwise keep the network namespace alive.

use crate::clients::GuestClient;
use crate::error::NodeError;
use crate::live::Use;
use crate::node::Node;
use branchbox_protocol::guest::GuestError;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketType, ipproto, sockopt};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// How long a port may take to accept: its backlog may be full for a moment.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A way to the ports of one sandbox.
///
/// As long as it is held the sandbox is in use, and not paused for being idle.
#[derive(Debug, Clone)]
pub struct Reach {
    node: Node,
    id: String,
    using: Arc<Use>,
}

impl Node {
    /// A way to the ports of a sandbox.
    ///
    /// # Errors
    /// [`NodeError::NoSandbox`].
    pub fn reach(&self, id: &str) -> Result<Reach, NodeError> {
        Ok(Reach { node: self.clone(), id: id.to_owned(), using: Arc::new(self.live(id)?.using()) })
    }
}

impl Reach {
    /// Connects to a port on the sandbox's loopback, IPv4 first.
    ///
    /// # Errors
    /// [`NodeError`]: the sandbox cannot run, or nothing accepts.
    pub async fn dial(&self, port: u16) -> Result<Inside, NodeError> {
        let guest = self.guest().await?;
        match connect(&guest, port, false).await {
            Err(NodeError::Guest(GuestError::Dial { errno, .. })) if errno == Errno::CONNREFUSED.raw_os_error() => {
                connect(&guest, port, true).await
            }
            other => other,
        }
    }

    /// Returns when the sandbox was stopped or deleted; a pause is not the end.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        self.using.live().stopped()
    }

    /// Sees that the sandbox runs, waking it if need be.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn wake(&self) -> Result<(), NodeError> {
        self.guest().await.map(drop)
    }

    async fn guest(&self) -> Result<Arc<GuestClient>, NodeError> {
        let live = self.node.awake(&self.id).await?;
        Ok(live.guest(self.node.inner.state.run_dir()).await?.1)
    }
}

async fn connect(guest: &Arc<GuestClient>, port: u16, v6: bool) -> Result<Inside, NodeError> {
    let refused = |errno: i32| NodeError::Guest(GuestError::Dial { port, errno });
    let socket = guest.dial(port, v6).await?;
    check(&socket).map_err(|errno| refused(errno.raw_os_error()))?;
    let failed = |error: io::Error| refused(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()));
    let stream = TcpStream::from_std(socket.into()).map_err(failed)?;
    match tokio::time::timeout(CONNECT_WAIT, stream.ready(Interest::WRITABLE)).await {
        Ok(ready) => ready.map_err(failed)?,
        Err(_) => return Err(refused(Errno::TIMEDOUT.raw_os_error())),
    };
    match sockopt::socket_error(&stream) {
        Ok(Ok(())) => {}
        Ok(Err(errno)) | Err(errno) => return Err(refused(errno.raw_os_error())),
    }
    // Refused by a kernel only for a connection that has ended already.
    let _ = sockopt::set_tcp_nodelay(&stream, true);
    Ok(Inside { stream, guest: Arc::clone(guest) })
}

/// Whether it is a TCP socket, which the guest says it is.
fn check(socket: &OwnedFd) -> Result<(), Errno> {
    let is_stream = sockopt::socket_type(socket)? == SocketType::STREAM;
    let is_tcp = sockopt::socket_protocol(socket)? == Some(ipproto::TCP);
    if !is_stream || !is_tcp {
        return Err(Errno::NOTSOCK);
    }
    rustix::io::ioctl_fionbio(socket, true)
}

/// A connection to a port inside.
#[derive(Debug)]
pub struct Inside {
    stream: TcpStream,
    guest: Arc<GuestClient>,
}

impl Inside {
    /// Returns when the machine behind it has gone.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let guest = Arc::clone(&self.guest);
        async move {
            guest.closed().await;
        }
    }

    /// Takes in what has come, waiting for something; 0 is the end.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let receive = || Ok(rustix::net::recv(&self.stream, &mut *buffer, RecvFlags::DONTWAIT)?.0);
        self.stream.async_io(Interest::READABLE, receive).await
    }

    /// Sends all of it.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.stream.async_io(Interest::WRITABLE, || send(&self.stream, bytes)).await?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Says that no more will be sent.
    pub fn finish(&self) {
        // One that has ended already has nothing left to finish.
        let _ = rustix::net::shutdown(&self.stream, Shutdown::Write);
    }
}

fn send(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(stream, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
}

impl AsyncRead for Inside {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            let unfilled = buffer.initialize_unfilled();
            let receive = || Ok(rustix::net::recv(&self.stream, unfilled, RecvFlags::DONTWAIT)?.0);
            match self.stream.try_io(Interest::READABLE, receive) {
                Ok(read) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Inside {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(context))?;
            match self.stream.try_io(Interest::WRITABLE, || send(&self.stream, bytes)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.finish();
        Poll::Ready(Ok(()))
    }
}
