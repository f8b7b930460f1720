//! WebSockets of the API: a terminal, and a tunnel to one port.
//!
//! Both begin alike: the node answers the handshake, and then says as text that it is ready or why not. What is typed is
//! sent by a task of its own, since a client that sent and read in turn would stand still together with a program that
//! does. A tunnel carries one connection, so that a slow one holds up no other. Nothing is sent again here: what a broken
//! terminal showed last cannot be known, and its process can be sat down at again by its id.

use crate::calls::{encoded, sandbox};
use crate::error::ClientError;
use crate::transport::Client;
use crate::wire::LastWords;
use branchbox_api::{PtySize, SocketEvent};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use serde_json::json;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Largest message of a node that is read.
const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a node may take to be ready: it may have to wake a sandbox.
const READY_WAIT: Duration = Duration::from_secs(120);
/// How long a tunnel waits for a place: the node counts one that has just ended a little longer.
const PLACE_WAIT: Duration = Duration::from_secs(30);
/// Between two tries for a place.
const PLACE_PAUSE: Duration = Duration::from_millis(50);
/// Keystrokes that wait to be sent.
const KEYS_MAX: usize = 64;
/// Data bytes of a tunnel that may be under way: the contract's window.
const WINDOW: usize = 1024 * 1024;
/// Most data bytes in one frame.
const CHUNK: usize = 64 * 1024;
/// The one stream of a tunnel of ours.
const STREAM: u32 = 1;
/// Why a tunnel ended whose node did not say why.
const CUT: &str = "the node closed the tunnel";

type Socket = WebSocketStream<LastWords>;
type Source = SplitStream<Socket>;
type Sink = SplitSink<Socket, Message>;

/// Which terminal to open.
#[derive(Debug, Clone, Default)]
pub struct TerminalRequest {
    /// Its size.
    pub size: Option<PtySize>,
    /// A script to run instead of a login shell.
    pub command: Option<String>,
    /// The working directory.
    pub cwd: Option<String>,
    /// `sandbox` or `root`.
    pub user: Option<String>,
    /// A process to sit down at, instead of a new one.
    pub process: Option<String>,
}

/// A terminal that is open.
#[derive(Debug)]
pub struct Terminal {
    /// The process it belongs to.
    pub process_id: Option<String>,
    /// What it shows.
    pub screen: Screen,
    /// Where one types.
    pub keyboard: Keyboard,
}

/// What a terminal shows.
#[derive(Debug)]
pub struct Screen(Source);

/// Something that a terminal shows.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// Output.
    Bytes(Bytes),
    /// The process has ended, with its exit code as in a command's answer.
    Exit(Option<i32>),
}

/// Where one types. Dropping it leaves the process running.
#[derive(Debug, Clone)]
pub struct Keyboard(mpsc::Sender<Message>);

impl Client {
    /// Opens a terminal.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn terminal(&self, id: &str, request: &TerminalRequest) -> Result<Terminal, ClientError> {
        let mut path = format!("{}/terminal?", sandbox(id));
        if let Some(size) = request.size {
            let _ = write!(path, "cols={}&rows={}&", size.cols, size.rows);
        }
        let texts = [
            ("command", &request.command),
            ("cwd", &request.cwd),
            ("user", &request.user),
            ("processId", &request.process),
        ];
        for (name, value) in texts {
            if let Some(value) = value {
                let _ = write!(path, "{name}={}&", encoded(value));
            }
        }
        let (process_id, sink, source) = self.socket(path.trim_end_matches(['&', '?'])).await?;
        let (keys, typed) = mpsc::channel(KEYS_MAX);
        tokio::spawn(send_all(sink, typed));
        Ok(Terminal { process_id, screen: Screen(source), keyboard: Keyboard(keys) })
    }

    /// Connects to a port of a sandbox.
    ///
    /// # Errors
    /// [`ClientError`], also when nothing listens there.
    pub async fn tunnel(&self, id: &str, port: u16) -> Result<Tunnel, ClientError> {
        let (_, mut sink, mut source) = self.tunnel_socket(id).await?;
        sink.send(frame(b'o', format!("tcp {port}").as_bytes())).await.map_err(broken)?;
        loop {
            match tunnel_frame(&mut source).await? {
                Some((b'o', _)) => return Ok(Tunnel { sink, source }),
                Some((b'c', reason)) => return Err(ClientError::Closed { reason: text(&reason) }),
                Some(_) => {}
                None => return Err(ClientError::Closed { reason: CUT.into() }),
            }
        }
    }

    /// A refusal for there being too many means that nothing ran, so it is tried again.
    async fn tunnel_socket(&self, id: &str) -> Result<(Option<String>, Sink, Source), ClientError> {
        let path = format!("{}/tunnel", sandbox(id));
        let until = Instant::now() + PLACE_WAIT;
        loop {
            match self.socket(&path).await {
                Err(ClientError::Api(info)) if info.code == "rate_limited" && Instant::now() < until => {
                    tokio::time::sleep(PLACE_PAUSE).await;
                }
                other => return other,
            }
        }
    }

    /// A socket whose node has said that it is ready.
    async fn socket(&self, path: &str) -> Result<(Option<String>, Sink, Source), ClientError> {
        let open = async {
            let request = self.upgrade(path)?;
            let config = WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX));
            let wire = LastWords::new(self.wire().await?);
            let (socket, _) = tokio_tungstenite::client_async_with_config(request, wire, Some(config))
                .await
                .map_err(Self::refused_upgrade)?;
            let (sink, mut source) = socket.split();
            match said(&mut source).await? {
                Some(Said::Event(SocketEvent::Ready { process_id })) => Ok((process_id, sink, source)),
                _ => Err(ClientError::Malformed { problem: "something else than that it is ready".into() }),
            }
        };
        let late = |_| ClientError::Timeout { seconds: READY_WAIT.as_secs() };
        tokio::time::timeout(READY_WAIT, open).await.map_err(late)?
    }

    fn upgrade(&self, path: &str) -> Result<hyper::Request<()>, ClientError> {
        let unsendable = |error: String| ClientError::Malformed {
            problem: format!("nothing: the request cannot be written: {error}"),
        };
        let mut request = format!("ws://{}{path}", self.host())
            .into_client_request()
            .map_err(|error| unsendable(error.to_string()))?;
        if let Some(value) = self.authorization() {
            let value = value.parse().map_err(|_| unsendable("the key".into()))?;
            request.headers_mut().insert("authorization", value);
        }
        Ok(request)
    }

    fn refused_upgrade(error: tokio_tungstenite::tungstenite::Error) -> ClientError {
        match error {
            tokio_tungstenite::tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                crate::transport::refusal(response.status().as_u16(), body)
            }
            other => broken(other),
        }
    }
}

impl Screen {
    /// What comes next; `None` when the node closed without saying how the process ended.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&mut self) -> Result<Option<Shown>, ClientError> {
        loop {
            match said(&mut self.0).await? {
                Some(Said::Bytes(bytes)) => return Ok(Some(Shown::Bytes(bytes))),
                Some(Said::Event(SocketEvent::Exit { exit_code })) => return Ok(Some(Shown::Exit(exit_code))),
                Some(Said::Event(_)) => {}
                None => return Ok(None),
            }
        }
    }
}

impl Keyboard {
    /// Types; `false` when nobody reads any more.
    pub async fn press(&self, keys: Bytes) -> bool {
        self.0.send(Message::Binary(keys)).await.is_ok()
    }

    /// Types from a thread; `false` when nobody reads any more.
    #[must_use]
    pub fn press_blocking(&self, keys: Bytes) -> bool {
        self.0.blocking_send(Message::Binary(keys)).is_ok()
    }

    /// Says the terminal's new size. One that finds no room is dropped: the next one counts.
    pub fn resize(&self, size: PtySize) {
        let text = json!({ "type": "resize", "cols": size.cols, "rows": size.rows }).to_string();
        let _ = self.0.try_send(Message::Text(text.into()));
    }
}

async fn send_all(mut sink: Sink, mut typed: mpsc::Receiver<Message>) {
    while let Some(message) = typed.recv().await {
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

/// A connection to a port of a sandbox.
#[derive(Debug)]
pub struct Tunnel {
    sink: Sink,
    source: Source,
}

/// How the sending side of a tunnel ended.
enum Sent {
    All,
    Gone,
}

impl Tunnel {
    /// Carries a connection until both sides have ended, or one of them is gone.
    ///
    /// # Errors
    /// [`ClientError`] when the tunnel breaks; an end that breaks is the ordinary end of a connection.
    pub async fn carry<S: AsyncRead + AsyncWrite>(self, local: S) -> Result<(), ClientError> {
        let (from, to) = tokio::io::split(local);
        let room = Arc::new(Semaphore::new(WINDOW));
        let mut up = Box::pin(send_up(from, self.sink, room.clone()));
        let mut down = Box::pin(send_down(self.source, to, room));
        tokio::select! {
            ended = &mut down => return ended,
            // The sink stays alive in its future's result while the answer is still on its way.
            sent = &mut up => match sent? {
                (Sent::Gone, _) => return Ok(()),
                (Sent::All, _sink) => down.await?,
            },
        }
        Ok(())
    }
}

async fn send_up(
    mut from: impl AsyncRead + Unpin,
    mut sink: Sink,
    room: Arc<Semaphore>,
) -> Result<(Sent, Sink), ClientError> {
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) => {
                sink.send(frame(b'e', &[])).await.map_err(broken)?;
                return Ok((Sent::All, sink));
            }
            Ok(count) => count,
            Err(_) => {
                sink.send(frame(b'c', &[])).await.map_err(broken)?;
                return Ok((Sent::Gone, sink));
            }
        };
        if let Ok(permits) = room.acquire_many(u32::try_from(count).unwrap_or(u32::MAX)).await {
            permits.forget();
        }
        sink.send(frame(b'd', &buffer[..count])).await.map_err(broken)?;
    }
}

async fn send_down(
    mut source: Source,
    mut to: impl AsyncWrite + Unpin,
    room: Arc<Semaphore>,
) -> Result<(), ClientError> {
    let mut passed_on = 0_u64;
    while let Some((kind, mut payload)) = tunnel_frame(&mut source).await? {
        let written = match kind {
            b'd' => to.write_all(&payload).await,
            b'e' => to.shutdown().await,
            b'c' if payload.is_empty() => return Ok(()),
            b'c' => return Err(ClientError::Closed { reason: text(&payload) }),
            b'a' if payload.len() >= 8 => {
                let total = payload.get_u64();
                // Never more than the window, whatever the node says.
                let fresh = usize::try_from(total.saturating_sub(passed_on)).unwrap_or(WINDOW);
                passed_on = passed_on.max(total);
                room.add_permits(fresh.min(WINDOW.saturating_sub(room.available_permits())));
                Ok(())
            }
            _ => Ok(()),
        };
        if written.is_err() {
            return Ok(());
        }
    }
    Err(ClientError::Closed { reason: CUT.into() })
}

fn frame(kind: u8, payload: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(5 + payload.len());
    bytes.put_u8(kind);
    bytes.put_u32(STREAM);
    bytes.put_slice(payload);
    Message::Binary(bytes.freeze())
}

/// The next frame of the node; `None` when it closed.
async fn tunnel_frame(source: &mut Source) -> Result<Option<(u8, Bytes)>, ClientError> {
    loop {
        match said(source).await? {
            Some(Said::Bytes(mut bytes)) if bytes.len() >= 5 => {
                let kind = bytes.get_u8();
                bytes.advance(4);
                return Ok(Some((kind, bytes)));
            }
            Some(_) => {}
            None => return Ok(None),
        }
    }
}

/// Something that a node says.
enum Said {
    Event(SocketEvent),
    Bytes(Bytes),
}

async fn said(source: &mut Source) -> Result<Option<Said>, ClientError> {
    loop {
        match source.next().await {
            None | Some(Ok(Message::Close(_))) => return Ok(None),
            Some(Err(error)) => return Err(broken(error)),
            Some(Ok(Message::Binary(bytes))) => return Ok(Some(Said::Bytes(bytes))),
            Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                Ok(SocketEvent::Error { error }) => return Err(ClientError::Api(Box::new(error))),
                Ok(event) => return Ok(Some(Said::Event(event))),
                Err(error) => {
                    return Err(ClientError::Malformed { problem: format!("a text that is no event: {error}") });
                }
            },
            Some(Ok(_)) => {}
        }
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn broken(error: tokio_tungstenite::tungstenite::Error) -> ClientError {
    ClientError::Socket(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_a_kind_a_stream_and_a_payload() {
        assert_eq!(frame(b'o', b"tcp 80").into_data().as_ref(), b"o\0\0\0\x01tcp 80");
    }
}
