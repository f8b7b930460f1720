//! Process 1 of a sandbox: starts commands, holds their pipes, serves files, reaps.
//!
//! One thread, one poll loop, no async runtime: it forks, and it should cost little memory when idle. It is never traced
//! or frozen; a capture takes its table through [`protocol::guest::Call::Hold`](branchbox_protocol::guest::Call::Hold) and
//! a restore gives the table to a fresh guest. Whoever is inside the sandbox may attack it: it believes no length, follows
//! no promise of a peer that comes from inside, and every buffer has a bound.
//!
//! Two phases: *building* (all capabilities, only the keeper is served, nothing is reaped) and, after
//! [`Call::Seal`](branchbox_protocol::guest::Call::Seal), *serving*.
//!
//! Not here: namespaces, mounts and filters (crate `jail`), what a snapshot holds (crate `engine`), and any rule about
//! who may run what: inside the sandbox there is none.

mod calls;
mod commands;
mod connection;
mod dial;
mod environment;
mod files;
mod programs;
mod rebuild;
mod seal;
mod server;
mod start;
mod text;
pub mod tools;
mod users;
mod waiting;
mod watch;

pub use server::{ServeError, Setup, serve};
pub use start::main;
