//! Pulls an image from an OCI or Docker registry: manifest, config and layers, as files of one directory.
//!
//! [`pull`] blocks; a node calls it from a blocking task. Why a client of our own: what a node wants of a registry is
//! three kinds of GET and one way to log in, and each of them must have limits.
//!
//! Invariants:
//! * **Everything a registry says is hostile.** Sizes, counts, redirects and waits have maxima ([`limits`]); what is
//!   kept has the size and the SHA-256 that was named before it was asked for. Only a tag's manifest has no such name:
//!   whoever wants that too pulls by digest.
//! * **Credentials go to the registry itself and to the token server that it names, over HTTPS**, and never to where a
//!   redirect leads. Plain HTTP is spoken on the loopback only, and nothing but a loopback registry leads there.
//! * **A file under its final name is whole.** It is written under a temporary name and renamed, so two pulls into one
//!   directory do not harm each other. What is there already is hashed and not loaded again.
//!
//! Not here: unpacking (`layers`), what a pull is for and who may do it (`node`), pushing, Docker's schema 1, layers
//! that are somewhere else ("foreign" ones), hashes other than SHA-256, platforms other than linux/amd64.

mod auth;
mod blob;
mod digest;
mod error;
pub mod limits;
mod manifest;
mod pull;
mod reference;
mod session;

pub use auth::Credentials;
pub use blob::PARTIAL_PREFIX;
pub use error::RegistryError;
pub use pull::{Blob, Options, Progress, Pulled, pull};
pub use reference::{Reference, ReferenceError};
