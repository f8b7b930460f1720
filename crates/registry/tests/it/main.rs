//! Pulling: from the real registry of Debian's `docker-registry`, and from servers that mean harm.
#![expect(clippy::unwrap_used, reason = "a failing step of a test is its failure")]

mod hostile;
mod image;
mod login;
mod real;
mod support;
