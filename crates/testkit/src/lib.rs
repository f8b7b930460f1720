//! What tests and benchmarks share: a node of their own, a look at what was left behind, and loud skips.
//!
//! Responsible for starting the real `branchbox` program and for cleaning up after it, whatever the test does. A node
//! here is a process with a state directory of its own, never a library call: a test that passes has used what a user
//! uses. Deliberately not here: product code, and any stand-in for it.

pub mod harness;
pub mod leaks;
pub mod needs;
pub mod node;
pub mod tools;

pub use leaks::Inventory;
pub use node::{NodeOptions, NodeProcess, binary};
