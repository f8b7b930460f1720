//! One connection to a keeper or a guest: calls go out with a number, answers come back in any order.
//!
//! A task of its own reads; callers write under a lock, so that a packet is whole. What a guest sends is hostile: an
//! answer nobody waits for is dropped, a packet that cannot be understood ends the connection, and every wait is
//! bounded. A caller that goes away leaves its number behind, and the late answer to it is dropped too.

use branchbox_protocol::{FrameError, Packet, recv_packet, send_packet};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

/// Unanswered calls on one connection.
const PENDING_MAX: usize = 4096;

/// Why a peer cannot be talked to.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// Nobody listens.
    #[error("connect")]
    Connect(#[source] std::io::Error),
    /// The other side went away.
    #[error("the connection is closed")]
    Closed,
    /// No answer in time.
    #[error("no answer within {seconds} s")]
    Timeout {
        /// How long was waited.
        seconds: u64,
    },
    /// A packet could not be sent or understood.
    #[error("message")]
    Frame(#[source] FrameError),
    /// An answer to something else.
    #[error("an answer that does not fit the question")]
    Unexpected,
    /// Another version of the protocol.
    #[error("it speaks version {theirs}, this node {ours}")]
    Version {
        /// The peer's.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// Too many calls wait already.
    #[error("{PENDING_MAX} calls are waiting already")]
    Crowded,
}

/// How one kind of peer is spoken to.
pub(crate) trait Wire: Send + Sync + 'static {
    /// A question.
    type Call: Send;
    /// An answer.
    type Reply: Send + 'static;
    /// A refusal.
    type Fault: Send + 'static;
    /// For errors.
    const WHO: &'static str;
    /// Makes a packet of a call.
    fn request(id: u64, call: Self::Call) -> Result<Packet, FrameError>;
    /// Reads an answer, and takes what descriptors it is to come with.
    fn response(packet: Packet) -> Result<Answer<Self>, FrameError>
    where
        Self: Sized;
}

/// A number and what came of it.
pub(crate) type Answer<W> = (u64, Result<<W as Wire>::Reply, <W as Wire>::Fault>);
type Outcome<W> = Result<<W as Wire>::Reply, <W as Wire>::Fault>;
type Waiting<W> = oneshot::Sender<Outcome<W>>;

struct Shared<W: Wire> {
    /// A packet socket, which the event loop treats as it does a stream: only its readiness is used.
    socket: UnixStream,
    write: tokio::sync::Mutex<()>,
    /// `None` once the connection is closed.
    pending: Mutex<Option<HashMap<u64, Waiting<W>>>>,
    next: AtomicU64,
    closed: watch::Sender<bool>,
}

/// A connection; dropping it closes it.
pub(crate) struct Peer<W: Wire> {
    shared: Arc<Shared<W>>,
    reader: tokio::task::AbortHandle,
}

impl<W: Wire> std::fmt::Debug for Peer<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peer({})", W::WHO)
    }
}

impl<W: Wire> Drop for Peer<W> {
    fn drop(&mut self) {
        self.reader.abort();
        let _ = rustix::net::shutdown(&self.shared.socket, rustix::net::Shutdown::Both);
    }
}

impl<W: Wire> Peer<W> {
    /// Connects to a listening socket.
    pub(crate) fn connect(path: &Path) -> Result<Self, PeerError> {
        let open = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok::<_, rustix::io::Errno>(socket)
        };
        Self::over(open().map_err(|errno| PeerError::Connect(errno.into()))?)
    }

    /// Speaks over a connected, non-blocking socket.
    pub(crate) fn over(socket: OwnedFd) -> Result<Self, PeerError> {
        let socket = UnixStream::from_std(socket.into()).map_err(PeerError::Connect)?;
        let shared = Arc::new(Shared {
            socket,
            write: tokio::sync::Mutex::new(()),
            pending: Mutex::new(Some(HashMap::new())),
            next: AtomicU64::new(1),
            closed: watch::Sender::new(false),
        });
        let reader = tokio::spawn(read_all(Arc::clone(&shared))).abort_handle();
        Ok(Self { shared, reader })
    }

    /// Asks and waits for the answer, at most `wait`.
    pub(crate) async fn call(&self, call: W::Call, wait: Duration) -> Result<Outcome<W>, PeerError> {
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let packet = W::request(id, call).map_err(PeerError::Frame)?;
        let answer = self.shared.expect(id)?;
        let asked = async {
            self.shared.send(&packet).await?;
            answer.await.map_err(|_| PeerError::Closed)
        };
        let answered = tokio::time::timeout(wait, asked).await;
        if !matches!(answered, Ok(Ok(_))) {
            self.shared.forget(id);
        }
        answered.map_err(|_| PeerError::Timeout { seconds: wait.as_secs() })?
    }

    /// Ends the process that listens, and with it the connection.
    pub(crate) fn kill(&self) {
        let kill = || {
            let pid = rustix::net::sockopt::socket_peercred(&self.shared.socket)?.pid;
            let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
            if !self.is_closed() {
                rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL)?;
            }
            Ok::<_, rustix::io::Errno>(())
        };
        if let Err(errno) = kill() {
            tracing::debug!(who = W::WHO, %errno, "nothing to kill");
        }
    }

    /// Whether the other side has gone.
    pub(crate) fn is_closed(&self) -> bool {
        *self.shared.closed.borrow()
    }

    /// Returns when the other side has gone.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + use<W> {
        let mut closed = self.shared.closed.subscribe();
        async move {
            let _ = closed.wait_for(|closed| *closed).await;
        }
    }
}

impl<W: Wire> Shared<W> {
    fn expect(&self, id: u64) -> Result<oneshot::Receiver<Outcome<W>>, PeerError> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = pending.as_mut().ok_or(PeerError::Closed)?;
        if calls.len() >= PENDING_MAX {
            return Err(PeerError::Crowded);
        }
        let (send, receive) = oneshot::channel();
        calls.insert(id, send);
        Ok(receive)
    }

    fn forget(&self, id: u64) {
        if let Some(calls) = self.pending.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            calls.remove(&id);
        }
    }

    async fn send(&self, packet: &Packet) -> Result<(), PeerError> {
        let _whole = self.write.lock().await;
        let fds: Vec<_> = packet.fds.iter().map(AsFd::as_fd).collect();
        self.socket
            .async_io(Interest::WRITABLE, || as_io(send_packet(&self.socket, &packet.bytes, &fds)))
            .await
            .map_err(from_io)
    }

    async fn receive(&self) -> Result<Answer<W>, PeerError> {
        let packet =
            self.socket.async_io(Interest::READABLE, || as_io(recv_packet(&self.socket))).await.map_err(from_io)?;
        W::response(packet.unfold().map_err(PeerError::Frame)?).map_err(PeerError::Frame)
    }

    /// Drops every waiting caller's sender, which tells them.
    fn close(&self) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.closed.send_replace(true);
    }
}

/// Only "not now" has a meaning for the event loop; everything else is carried through it as it is.
fn as_io<T>(result: Result<T, FrameError>) -> std::io::Result<T> {
    result.map_err(|error| match error {
        FrameError::Io { source, .. } if source.kind() == std::io::ErrorKind::WouldBlock => source,
        other => std::io::Error::other(other),
    })
}

fn from_io(error: std::io::Error) -> PeerError {
    match error.downcast::<FrameError>() {
        Ok(FrameError::Closed) => PeerError::Closed,
        Ok(frame) => PeerError::Frame(frame),
        Err(source) => PeerError::Frame(FrameError::Io { call: "poll", source }),
    }
}

async fn read_all<W: Wire>(shared: Arc<Shared<W>>) {
    loop {
        match shared.receive().await {
            Ok((id, result)) => {
                let waiting = shared
                    .pending
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .as_mut()
                    .and_then(|calls| calls.remove(&id));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(result);
                }
            }
            Err(error) => {
                if !matches!(error, PeerError::Closed) {
                    tracing::warn!(who = W::WHO, %error, "connection ended");
                }
                shared.close();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_protocol::keeper::{Call, KeeperError, Reply, Request, Response, Usage};
    use rustix::net::socketpair;

    struct Keeper;

    impl Wire for Keeper {
        type Call = Call;
        type Reply = Reply;
        type Fault = KeeperError;
        const WHO: &'static str = "keeper";
        fn request(id: u64, call: Call) -> Result<Packet, FrameError> {
            Packet::fold(&Request { id, call }, Vec::new())
        }
        fn response(packet: Packet) -> Result<Answer<Self>, FrameError> {
            branchbox_protocol::decode(&packet.bytes).map(|response: Response| (response.id, response.result))
        }
    }

    fn pair() -> (Peer<Keeper>, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("pair");
        rustix::io::ioctl_fionbio(&theirs, false).expect("blocking");
        (Peer::over(ours).expect("peer"), theirs)
    }

    fn answer(socket: &OwnedFd, id: u64, cpu_us: u64) {
        let usage = Usage { cpu_us, ..Usage::default() };
        let packet = Packet::fold(&Response { id, result: Ok(Reply::Usage(usage)) }, Vec::new()).expect("packet");
        send_packet(socket, &packet.bytes, &[]).expect("send");
    }

    const WAIT: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn answers_find_their_questions_in_any_order() {
        let (peer, theirs) = pair();
        let other = std::thread::spawn(move || {
            let ids: Vec<u64> = (0..2)
                .map(|_| {
                    let packet = recv_packet(&theirs).expect("packet");
                    branchbox_protocol::decode::<Request>(&packet.bytes).expect("request").id
                })
                .collect();
            answer(&theirs, 999, 0);
            answer(&theirs, ids[1], ids[1]);
            answer(&theirs, ids[0], ids[0]);
            theirs
        });
        let (first, second) = tokio::join!(peer.call(Call::Usage, WAIT), peer.call(Call::Usage, WAIT));
        let cpu = |reply: Result<Reply, KeeperError>| match reply {
            Ok(Reply::Usage(usage)) => usage.cpu_us,
            other => panic!("{other:?}"),
        };
        assert_eq!((cpu(first.expect("first")), cpu(second.expect("second"))), (1, 2));
        drop(other.join().expect("thread"));
        peer.closed().await;
        assert!(matches!(peer.call(Call::Usage, WAIT).await, Err(PeerError::Closed)));
    }

    #[tokio::test]
    async fn nonsense_ends_the_connection_and_every_waiting_call() {
        let (peer, theirs) = pair();
        let other = std::thread::spawn(move || {
            recv_packet(&theirs).expect("packet");
            send_packet(&theirs, &[0xff; 300], &[]).expect("send");
            theirs
        });
        assert!(matches!(peer.call(Call::Usage, WAIT).await, Err(PeerError::Closed)));
        assert!(peer.is_closed());
        drop(other.join());
    }

    #[tokio::test]
    async fn a_silent_peer_is_not_waited_for_longer_than_asked() {
        let (peer, theirs) = pair();
        let silent = peer.call(Call::Usage, Duration::from_millis(20)).await;
        assert!(matches!(silent, Err(PeerError::Timeout { .. })));
        assert_eq!(peer.shared.pending.lock().expect("lock").as_ref().map(HashMap::len), Some(0));
        drop(theirs);
    }
}
