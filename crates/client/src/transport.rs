//! One call on one connection.

use crate::error::ClientError;
use crate::wire::Wire;
use branchbox_api::{ErrorBody, ErrorInfo};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// Most bytes of one answer.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of a foreign error's text that are shown.
const FOREIGN_BYTES_SHOWN: usize = 500;
/// Longest wait for the head of an answer: the server bounds its own waits below this.
const HEAD_WAIT: Duration = Duration::from_secs(650);
/// A call that broke is sent again this often, with the same key.
const TRIES: u32 = 4;
/// First wait before sending again; doubles.
const BACKOFF: Duration = Duration::from_millis(250);

#[derive(Debug)]
enum Address {
    Tcp { authority: String },
    Unix { path: PathBuf },
}

/// A node, as seen by a client.
#[derive(Debug, Clone)]
pub struct Client {
    address: Arc<Address>,
    key: Option<Arc<str>>,
}

/// A call to send.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub method: Method,
    pub path: String,
    pub body: Bytes,
    pub content_type: &'static str,
    pub accept: &'static str,
    pub wait_seconds: Option<u32>,
    pub key: Option<String>,
}

impl Client {
    /// The node that listens on this socket; it needs no key.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self { address: Arc::new(Address::Unix { path: path.into() }), key: None }
    }

    /// The node at this origin, `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`ClientError::Address`] for anything else.
    pub fn tcp(origin: &str, key: Option<String>) -> Result<Self, ClientError> {
        let bad = |problem| ClientError::Address { address: origin.to_owned(), problem };
        let rest = origin.strip_prefix("http://").ok_or(bad("it must begin with http://"))?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.is_empty() || authority.contains(['/', '?', '#', '@']) {
            return Err(bad("it must be http://HOST:PORT and nothing behind"));
        }
        if key.as_ref().is_some_and(|key| !key.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(bad("the key beside it holds characters that no key has"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { address: Arc::new(Address::Tcp { authority }), key: key.map(Into::into) })
    }

    fn shown_address(&self) -> String {
        match &*self.address {
            Address::Tcp { authority } => format!("http://{authority}"),
            Address::Unix { path } => path.display().to_string(),
        }
    }

    /// Sends a call and reads its JSON answer; sent again while the failure is one that passes.
    pub(crate) async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let bytes = self.bytes(call).await?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Malformed {
            problem: format!("JSON that this version does not understand: {error}"),
        })
    }

    /// As [`Client::json`], for raw answers.
    pub(crate) async fn bytes(&self, call: Call) -> Result<Bytes, ClientError> {
        let mut wait = BACKOFF;
        for _ in 1..TRIES {
            match self.once(&call).await {
                Err(error) if error.is_passing() => tokio::time::sleep(wait).await,
                other => return other,
            }
            wait *= 2;
        }
        self.once(&call).await
    }

    async fn once(&self, call: &Call) -> Result<Bytes, ClientError> {
        let response = self.open(call).await?;
        read_all(response).await
    }

    /// Sends a call and writes its answer, of any size, as it comes. Sent again only while nothing has been written: an
    /// error behind that means that a part is there.
    pub(crate) async fn save(&self, call: Call, to: &mut (dyn std::io::Write + Send)) -> Result<(), ClientError> {
        let mut wait = BACKOFF;
        let mut tries = 1;
        let mut body = loop {
            match self.open(&call).await {
                Err(error) if error.is_passing() && tries < TRIES => tokio::time::sleep(wait).await,
                other => break other?.into_body(),
            }
            tries += 1;
            wait *= 2;
        };
        while let Some(frame) = body.frame().await {
            if let Some(bytes) = frame.map_err(ClientError::Transport)?.data_ref() {
                to.write_all(bytes).map_err(ClientError::Write)?;
            }
        }
        to.flush().map_err(ClientError::Write)
    }

    /// Sends a call and hands its answer over as soon as its head is there; failures are read to the end.
    pub(crate) async fn open(&self, call: &Call) -> Result<Response<Incoming>, ClientError> {
        let send = async {
            let wire = self.wire().await?;
            self.send_on(wire, call).await
        };
        let response = tokio::time::timeout(HEAD_WAIT, send)
            .await
            .map_err(|_| ClientError::Timeout { seconds: HEAD_WAIT.as_secs() })??;
        if response.status().is_success() { Ok(response) } else { Err(failure(response).await) }
    }

    fn connect_error(&self, source: std::io::Error) -> ClientError {
        ClientError::Connect { address: self.shown_address(), source }
    }

    async fn send_on<S>(&self, stream: S, call: &Call) -> Result<Response<Incoming>, ClientError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::Transport)?;
        // Ends with the answer's body, or when that is dropped.
        tokio::spawn(connection);
        sender.send_request(self.request(call)?).await.map_err(ClientError::Transport)
    }

    /// The `host` of a request.
    pub(crate) fn host(&self) -> &str {
        match &*self.address {
            Address::Tcp { authority } => authority,
            Address::Unix { .. } => "localhost",
        }
    }

    /// The `authorization` of a request, if there is a key.
    pub(crate) fn authorization(&self) -> Option<String> {
        self.key.as_ref().map(|key| format!("Bearer {key}"))
    }

    /// A connection to the node, to be used for something else than one call.
    pub(crate) async fn wire(&self) -> Result<Box<dyn Wire>, ClientError> {
        Ok(match &*self.address {
            Address::Tcp { authority } => {
                let stream = TcpStream::connect(authority.as_str()).await.map_err(|e| self.connect_error(e))?;
                stream.set_nodelay(true).map_err(|e| self.connect_error(e))?;
                Box::new(stream)
            }
            Address::Unix { path } => Box::new(UnixStream::connect(path).await.map_err(|e| self.connect_error(e))?),
        })
    }

    fn request(&self, call: &Call) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(&call.path)
            .header("host", self.host())
            .header("user-agent", concat!("branchbox/", env!("CARGO_PKG_VERSION")))
            .header("accept", call.accept)
            .header("connection", "close");
        if let Some(value) = self.authorization() {
            request = request.header("authorization", value);
        }
        if let Some(key) = &call.key {
            request = request.header("idempotency-key", key);
        }
        if let Some(seconds) = call.wait_seconds {
            request = request.header("prefer", format!("wait={seconds}"));
        }
        if call.method != Method::GET {
            request = request.header("content-type", call.content_type);
        }
        request.body(Full::new(call.body.clone())).map_err(|error| ClientError::Malformed {
            problem: format!("nothing: the request cannot be written: {error}"),
        })
    }
}

async fn read_all(response: Response<Incoming>) -> Result<Bytes, ClientError> {
    match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => match error.downcast::<hyper::Error>() {
            Ok(error) => Err(ClientError::Transport(*error)),
            Err(_) => Err(ClientError::Malformed { problem: format!("more than {ANSWER_BYTES_MAX} bytes") }),
        },
    }
}

async fn failure(response: Response<Incoming>) -> ClientError {
    let status = response.status().as_u16();
    let body = match read_all(response).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    ClientError::Api(Box::new(decode_failure(status, &body)))
}

/// What a node that refused a WebSocket said.
pub(crate) fn refusal(status: u16, body: &[u8]) -> ClientError {
    ClientError::Api(Box::new(decode_failure(status, body)))
}

/// The envelope, or what a stranger on that port said.
fn decode_failure(status: u16, body: &[u8]) -> ErrorInfo {
    match serde_json::from_slice::<ErrorBody>(body) {
        Ok(mut body) => {
            body.error.status = status;
            body.error
        }
        Err(_) => ErrorInfo {
            code: "request_failed".into(),
            status,
            message: String::from_utf8_lossy(&body[..body.len().min(FOREIGN_BYTES_SHOWN)]).into_owned(),
            hint: None,
            details: serde_json::Map::new(),
            request_id: None,
            retry_after_ms: None,
            retryable: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_checked() {
        for bad in ["127.0.0.1:70", "https://x", "http://", "http://a/b", "http://u@h:1", "http://h?x"] {
            assert!(Client::tcp(bad, None).is_err(), "{bad}");
        }
        assert!(Client::tcp("http://127.0.0.1:7070", Some("a b".into())).is_err());
        let client = Client::tcp("http://127.0.0.1:7070/", Some("bbx_x".into())).expect("good");
        assert_eq!(client.shown_address(), "http://127.0.0.1:7070");
        assert_eq!(Client::tcp("http://[::1]:7", None).expect("good").shown_address(), "http://[::1]:7");
    }

    #[test]
    fn failures_are_decoded_or_shown() {
        let info = decode_failure(
            409,
            br#"{"error":{"code":"name_taken","message":"m","hint":"h","details":{"sandboxId":"x"}}}"#,
        );
        assert_eq!((info.code.as_str(), info.status, info.hint.as_deref()), ("name_taken", 409, Some("h")));
        assert_eq!(decode_failure(502, b"<html>").message, "<html>");
    }
}
