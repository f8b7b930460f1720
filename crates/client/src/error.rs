//! How a call fails.

use branchbox_api::ErrorInfo;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// An address that cannot be used.
    #[error("`{address}` is not an address of a node: {problem}")]
    Address {
        /// As given.
        address: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Nobody answers there.
    #[error("no node answers at {address}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the connection to the node broke")]
    Transport(#[source] hyper::Error),
    /// The node did not answer in time.
    #[error("the node did not answer within {seconds} s")]
    Timeout {
        /// How long was waited.
        seconds: u64,
    },
    /// The node refused, and says why.
    #[error("{}", .0.message)]
    Api(Box<ErrorInfo>),
    /// A WebSocket broke, or could not be opened.
    #[error("the connection to the node broke")]
    Socket(#[source] Box<tokio_tungstenite::tungstenite::Error>),
    /// A connection into the sandbox was closed or could not be made.
    #[error("{reason}")]
    Closed {
        /// Why, in the node's words.
        reason: String,
    },
    /// What is to be sent could not be read here.
    #[error("cannot read what is to be sent")]
    Input {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What came could not be written here.
    #[error("cannot write what was received")]
    Write(#[source] std::io::Error),
    /// An answer that is none.
    #[error("the node answered {problem}")]
    Malformed {
        /// What came instead.
        problem: String,
    },
}

impl ClientError {
    /// The node's stable code, if it answered with one.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Api(info) => Some(&info.code),
            _ => None,
        }
    }

    /// The node's hint, or what is known here.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Api(info) => info.hint.clone(),
            Self::Connect { .. } => Some("start a node: branchbox serve".into()),
            Self::Address { .. } => Some("use an address such as http://127.0.0.1:7070".into()),
            _ => None,
        }
    }

    /// Whether sending the same call again, with the same key, can help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Transport(_) => true,
            Self::Api(info) => info.retryable == Some(true),
            _ => false,
        }
    }
}
