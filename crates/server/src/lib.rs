//! HTTP on top of a node: routes, bodies, streams, keys. Nothing is decided here but the form of an answer.
//!
//! One function answers every request: it names it, checks the key, reads the body with a limit, finds the route in one
//! table, and turns what comes of it into an answer. What changes something runs in a task of its own, so a client that
//! hangs up cuts nothing off. Requests are HTTP/1.1 without compression; small answers leave in one write.
//!
//! Deliberately not here: TLS (a node listens on loopback and on its own socket only) and anything about sandboxes.

mod answer;
mod app;
mod audit;
mod exec;
mod files;
mod history;
mod idempotency;
mod images;
mod interpreter;
mod keys;
mod listen;
mod openapi;
mod previews;
mod query;
mod rates;
mod routes;
mod sandboxes;
mod snapshots;
mod sockets;
mod stream;
mod unavailable;
mod watches;

pub use listen::{Listening, Server, ServerError};
pub use openapi::text as openapi;
