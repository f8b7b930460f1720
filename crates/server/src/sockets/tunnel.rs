//! The tunnel: many TCP connections to ports of one sandbox over one WebSocket.
//!
//! A frame is a kind byte, a stream number as u32 big-endian, and a payload. The client opens (`o` with `tcp PORT`),
//! sends (`d`), ends its sending side (`e`) and closes (`c`). The server answers `o` or `c` with a reason, sends `d`,
//! `e` and `c`, and says with `a` on stream 0 how many data bytes it has passed on in all, as u64 big-endian. The client
//! keeps at most [`WINDOW`] bytes beyond that, so what waits here for slow programs is bounded without stopping the
//! connections that are not slow. Towards the client the WebSocket itself holds back.
//!
//! A stream is done when both sides have ended; the server then sends `c` with no reason, and the client lets go of it.
//! When the sandbox is paused or stopped each stream is closed with that reason; the next `o` wakes a paused one.

use super::{CLOSE_AWAY, CLOSE_FAILED, PING_EVERY, Place, Sink, fail, going_down, said};
use crate::answer::Answered;
use crate::app::{App, Asked};
use axum::extract::ws::{Message, WebSocket};
use branchbox_api::{ErrorInfo, SocketEvent};
use branchbox_model::Code;
use branchbox_node::{Inside, Node, Reach};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

/// Data bytes that a client may have under way, over all streams.
const WINDOW: u64 = 1024 * 1024;
/// Most data bytes in one frame of the server.
const CHUNK: usize = 64 * 1024;
/// Most payload that one frame of a client may have: a chunk, and room for clients that count another way.
const PAYLOAD_MAX: usize = 2 * CHUNK;
/// Passed-on bytes after which the client is told; well below the window, so that it never waits for good.
const CREDIT_STEP: u64 = 128 * 1024;
/// Streams at once.
const STREAMS_MAX: usize = 256;
/// Frames that wait for a slow client.
const QUEUE: usize = 16;
/// How long the first bytes of a program that speaks first are held back: clients take up a stream in a task of their own
/// when they hear that it is open, and lose what comes before that task runs. What the client sends shows that it has.
const TAKE_UP_WAIT: Duration = Duration::from_millis(25);
/// Tunnels to one sandbox.
pub(crate) const OF_SANDBOX_MAX: usize = 32;
/// Tunnels of a node.
pub(crate) const OF_NODE_MAX: usize = 256;

const OPEN: u8 = b'o';
const DATA: u8 = b'd';
const END: u8 = b'e';
const CLOSE: u8 = b'c';
const CREDIT: u8 = b'a';

/// Opens a tunnel.
pub(crate) fn open(app: &App, id: &str, asked: Asked) -> Answered {
    let place = app.tunnels.take(id)?;
    let (node, id) = (app.node.clone(), id.to_owned());
    super::serve(asked.upgrade, move |socket| run(node, id, socket, place))
}

/// What is passed on, counted.
#[derive(Debug, Default)]
struct Credit {
    done: AtomicU64,
    told: AtomicU64,
    news: Notify,
}

impl Credit {
    fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if done - self.told.load(Ordering::Relaxed) >= CREDIT_STEP {
            self.news.notify_one();
        }
    }

    /// Waits until the client is to be told.
    async fn due(&self) -> u64 {
        loop {
            let done = self.done.load(Ordering::Relaxed);
            if done - self.told.load(Ordering::Relaxed) >= CREDIT_STEP {
                self.told.store(done, Ordering::Relaxed);
                return done;
            }
            self.news.notified().await;
        }
    }
}

/// Data of the client. However it is dropped, it counts as passed on.
#[derive(Debug)]
struct Piece {
    bytes: Bytes,
    credit: Arc<Credit>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.credit.add(self.bytes.len() as u64);
    }
}

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(5 + payload.len());
    bytes.put_u8(kind);
    bytes.put_u32(stream);
    bytes.put_slice(payload);
    Message::Binary(bytes.freeze())
}

/// What a client's frame says.
#[derive(Debug, PartialEq, Eq)]
enum Asks {
    Open { stream: u32, target: Result<u16, &'static str> },
    Data { stream: u32, bytes: Bytes },
    End { stream: u32 },
    Close { stream: u32 },
}

fn read(message: &Bytes) -> Result<Asks, &'static str> {
    let Some((&[kind, a, b, c, d], payload)) = message.split_first_chunk::<5>() else {
        return Err("a frame begins with a kind and a stream number");
    };
    if payload.len() > PAYLOAD_MAX {
        return Err("a frame holds at most 65536 bytes");
    }
    let stream = u32::from_be_bytes([a, b, c, d]);
    match kind {
        OPEN => Ok(Asks::Open { stream, target: target(payload) }),
        DATA => Ok(Asks::Data { stream, bytes: message.slice(5..) }),
        END => Ok(Asks::End { stream }),
        CLOSE => Ok(Asks::Close { stream }),
        _ => Err("a frame of an unknown kind"),
    }
}

fn target(payload: &[u8]) -> Result<u16, &'static str> {
    let text = std::str::from_utf8(payload).unwrap_or_default();
    match text.split_once(' ') {
        Some(("tcp", port)) => port.parse().ok().filter(|port| *port != 0).ok_or("a port is a number from 1 to 65535"),
        Some(("ssh", _)) => Err("this node runs no SSH server in sandboxes: open a terminal, or forward a port"),
        _ => Err("a stream is opened with `tcp PORT`"),
    }
}

/// One stream, as the reading side sees it.
#[derive(Debug)]
struct Stream {
    /// `None` once the client has ended its side.
    input: Option<mpsc::UnboundedSender<Piece>>,
    task: AbortHandle,
}

/// One tunnel.
struct Tunnel {
    reach: Reach,
    out: mpsc::Sender<Message>,
    credit: Arc<Credit>,
    received: u64,
    streams: HashMap<u32, Stream>,
    done: mpsc::UnboundedSender<u32>,
}

async fn run(node: Node, id: String, socket: WebSocket, _place: Place) {
    let (mut sink, mut source) = socket.split();
    let reach = match ready(&node, &id).await {
        Ok(reach) => reach,
        Err(error) => return fail(&mut sink, error, CLOSE_FAILED).await,
    };
    if sink.send(said(&SocketEvent::Ready { process_id: None })).await.is_err() {
        return;
    }
    let closing = super::closing(&node);
    let gone = reach.stopped();
    let using = reach.clone();
    let (out, queue) = mpsc::channel(QUEUE);
    let (done, mut ended) = mpsc::unbounded_channel();
    let credit = Arc::new(Credit::default());
    let mut writer = tokio::spawn(write(sink, queue, Arc::clone(&credit)));
    let mut tunnel = Tunnel { reach, out, credit, received: 0, streams: HashMap::new(), done };
    tokio::pin!(gone, closing);
    let end = loop {
        tokio::select! {
            message = source.next() => match message {
                Some(Ok(Message::Binary(bytes))) => {
                    if let Err(problem) = tunnel.take(&bytes).await {
                        let hint = "see the frames of a tunnel in the API's documentation";
                        break Some((ErrorInfo::new(Code::InvalidRequest, problem, hint), CLOSE_FAILED));
                    }
                }
                Some(Ok(Message::Close(_)) | Err(_)) | None => break None,
                Some(Ok(_)) => {}
            },
            Some(stream) = ended.recv() => drop(tunnel.streams.remove(&stream)),
            _ = &mut writer => break None,
            () = &mut gone => {
                let error = ErrorInfo::new(Code::SandboxStopped, "the sandbox was stopped", "start another");
                break Some((error, CLOSE_FAILED));
            }
            () = &mut closing => break Some((going_down(), CLOSE_AWAY)),
        }
    };
    drop(using);
    let streams = tunnel.close();
    // With the last sender gone the writer ends and gives the sink back, unless the client does not read.
    let sink = tokio::time::timeout(super::LAST_WORD_WAIT, &mut writer).await;
    writer.abort();
    if let (Some((error, code)), Ok(Ok(Some(mut sink)))) = (end, sink) {
        for stream in streams {
            let ends = async {
                sink.feed(frame(END, stream, &[])).await?;
                sink.feed(frame(CLOSE, stream, error.message.as_bytes())).await
            };
            let _ = tokio::time::timeout(super::LAST_WORD_WAIT, ends).await;
        }
        fail(&mut sink, error, code).await;
    }
}

async fn ready(node: &Node, id: &str) -> Result<Reach, ErrorInfo> {
    let reach = node.reach(id).map_err(|error| ErrorInfo::of(&error))?;
    reach.wake().await.map_err(|error| ErrorInfo::of(&error))?;
    Ok(reach)
}

/// Sends frames and credit; gives the sink back when no frame can come any more.
async fn write(mut sink: Sink, mut queue: mpsc::Receiver<Message>, credit: Arc<Credit>) -> Option<Sink> {
    loop {
        let message = tokio::select! {
            biased;
            done = credit.due() => frame(CREDIT, 0, &done.to_be_bytes()),
            message = queue.recv() => match message {
                Some(message) => message,
                None => return Some(sink),
            },
            () = tokio::time::sleep(PING_EVERY) => Message::Ping(Bytes::new()),
        };
        sink.send(message).await.ok()?;
    }
}

impl Tunnel {
    /// Does what a frame says; an error is the end of the tunnel.
    async fn take(&mut self, message: &Bytes) -> Result<(), &'static str> {
        match read(message)? {
            Asks::Open { stream, target } => self.open(stream, target).await,
            Asks::Data { stream, bytes } => self.data(stream, bytes),
            Asks::End { stream } => {
                if let Some(stream) = self.streams.get_mut(&stream) {
                    stream.input = None;
                }
                Ok(())
            }
            Asks::Close { stream } => {
                if let Some(stream) = self.streams.remove(&stream) {
                    stream.task.abort();
                }
                Ok(())
            }
        }
    }

    async fn open(&mut self, stream: u32, target: Result<u16, &'static str>) -> Result<(), &'static str> {
        if self.streams.contains_key(&stream) {
            return Err("a stream number that is in use");
        }
        let port = match target {
            Ok(port) if self.streams.len() < STREAMS_MAX => port,
            Ok(_) => return self.refuse(stream, "a tunnel carries at most 256 connections").await,
            Err(problem) => return self.refuse(stream, problem).await,
        };
        let (input, pieces) = mpsc::unbounded_channel();
        let (reach, out, done) = (self.reach.clone(), self.out.clone(), self.done.clone());
        let task = tokio::spawn(async move {
            let reason = match carry(&reach, port, stream, pieces, &out).await {
                Ok(()) => String::new(),
                Err(Cut::Unopened(reason)) => reason,
                Err(Cut::Open(reason)) => {
                    // A client that waits for its program's next bytes sees an end of stream, and not a close.
                    let _ = out.send(frame(END, stream, &[])).await;
                    reason
                }
            };
            let _ = out.send(frame(CLOSE, stream, reason.as_bytes())).await;
            let _ = done.send(stream);
        });
        self.streams.insert(stream, Stream { input: Some(input), task: task.abort_handle() });
        Ok(())
    }

    async fn refuse(&self, stream: u32, reason: &str) -> Result<(), &'static str> {
        // The writer's end is seen elsewhere.
        let _ = self.out.send(frame(CLOSE, stream, reason.as_bytes())).await;
        Ok(())
    }

    fn data(&mut self, stream: u32, bytes: Bytes) -> Result<(), &'static str> {
        self.received += bytes.len() as u64;
        if self.received - self.credit.done.load(Ordering::Relaxed) > WINDOW + PAYLOAD_MAX as u64 {
            return Err("more data than the credit allows");
        }
        let piece = Piece { bytes, credit: Arc::clone(&self.credit) };
        if let Some(Stream { input: Some(input), .. }) = self.streams.get(&stream) {
            // A stream that ended meanwhile drops it, and so it counts.
            let _ = input.send(piece);
        }
        Ok(())
    }

    /// Ends every stream, and tells which there were.
    fn close(self) -> Vec<u32> {
        let end = |(number, stream): (u32, Stream)| {
            stream.task.abort();
            number
        };
        self.streams.into_iter().map(end).collect()
    }
}

/// Why a connection was cut off: before or after the client was told that it is open.
enum Cut {
    Unopened(String),
    Open(String),
}

/// Carries one connection until both sides have ended; the error is the reason for the client.
async fn carry(
    reach: &Reach,
    port: u16,
    stream: u32,
    pieces: mpsc::UnboundedReceiver<Piece>,
    out: &mpsc::Sender<Message>,
) -> Result<(), Cut> {
    let inside = reach.dial(port).await.map_err(|error| Cut::Unopened(error.to_string()))?;
    let gone = || Cut::Open("the tunnel closed".to_owned());
    out.send(frame(OPEN, stream, &[])).await.map_err(|_| gone())?;
    let taken_up = Notify::new();
    let both = async {
        let upward = upward(&inside, pieces, &taken_up);
        let downward = async {
            let _ = tokio::time::timeout(TAKE_UP_WAIT, taken_up.notified()).await;
            downward(&inside, stream, out).await
        };
        tokio::try_join!(upward, downward)
    };
    tokio::select! {
        carried = both => carried.map(drop).map_err(Cut::Open),
        () = inside.ended() => Err(Cut::Open("the sandbox was paused or stopped".into())),
    }
}

async fn upward(inside: &Inside, mut pieces: mpsc::UnboundedReceiver<Piece>, taken_up: &Notify) -> Result<(), String> {
    while let Some(piece) = pieces.recv().await {
        taken_up.notify_one();
        inside.send_all(&piece.bytes).await.map_err(|error| error.to_string())?;
    }
    taken_up.notify_one();
    inside.finish();
    Ok(())
}

async fn downward(inside: &Inside, stream: u32, out: &mpsc::Sender<Message>) -> Result<(), String> {
    let gone = |_| "the tunnel closed".to_owned();
    let mut buffer = vec![0u8; CHUNK];
    loop {
        match inside.recv(&mut buffer).await.map_err(|error| error.to_string())? {
            0 => return out.send(frame(END, stream, &[])).await.map_err(gone),
            read => out.send(frame(DATA, stream, &buffer[..read])).await.map_err(gone)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(message: Message) -> Bytes {
        match message {
            Message::Binary(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn frames_are_read_or_refused() {
        let open = |payload: &[u8]| match read(&bytes(frame(OPEN, 7, payload))) {
            Ok(Asks::Open { stream: 7, target }) => target.ok(),
            other => panic!("{other:?}"),
        };
        assert_eq!(open(b"tcp 8000"), Some(8000));
        for bad in [&b"tcp 0"[..], b"tcp 65536", b"tcp", b"ssh ssh-ed25519 AAAA", b"\xff", b""] {
            assert_eq!(open(bad), None, "{bad:?}");
        }
        let data = read(&bytes(frame(DATA, u32::MAX, b"x")));
        assert_eq!(data, Ok(Asks::Data { stream: u32::MAX, bytes: Bytes::from_static(b"x") }));
        for bad in [&b""[..], b"d\0\0\0", b"?\0\0\0\0"] {
            assert!(read(&Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
        assert!(read(&bytes(frame(DATA, 1, &vec![0; PAYLOAD_MAX + 1]))).is_err());
    }

    #[tokio::test]
    async fn credit_is_told_in_steps_and_dropped_data_counts() {
        let credit = Arc::new(Credit::default());
        let piece = |length| Piece { bytes: Bytes::from(vec![0; length]), credit: Arc::clone(&credit) };
        drop(piece(CREDIT_STEP as usize - 1));
        assert!(tokio::time::timeout(std::time::Duration::from_millis(5), credit.due()).await.is_err());
        drop(piece(1));
        assert_eq!(credit.due().await, CREDIT_STEP);
    }
}
