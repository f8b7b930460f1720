//! Layers on a real kernel, as root: mounts, the host image, the pool, captures, changes and writing back.
#![expect(clippy::unwrap_used, reason = "a failing step of a test is its failure")]

mod assemble;
mod changes;
mod host;
mod pool;
mod support;
mod writeback;
