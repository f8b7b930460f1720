//! A typed client of the API, over TCP or the node's own socket.
//!
//! One connection per call: calls are few, the node is on this machine, and a connection that was kept could be cut by
//! a restart of the node in between. Every write carries an idempotency key, so a call whose connection broke is sent
//! again without running twice. Answers are bounded. Deliberately not here: TLS (a node listens on loopback only) and
//! any waiting that the server can do.

mod calls;
mod error;
mod exec_stream;
mod history;
mod images;
mod life;
mod reach;
mod socket;
mod transport;
mod wire;

pub use calls::{SandboxQuery, SnapshotQuery, Wait};
pub use error::ClientError;
pub use exec_stream::ExecStream;
pub use history::EventQuery;
pub use reach::Cell;
pub use socket::{Keyboard, Screen, Shown, Terminal, TerminalRequest, Tunnel};
pub use transport::Client;
