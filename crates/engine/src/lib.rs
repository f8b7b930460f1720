//! Freeze, capture and restore of process trees.
//!
//! * [`capture`] saves the processes below a guest at one instant and leaves them as they were (laws 1 and 2: exact or
//!   refused; the source is unharmed).
//! * [`restore`] makes them again below a fresh guest in new namespaces, and [`rebuild`] is the part of that which runs inside
//!   that guest: it makes kernel objects under high descriptor numbers, which every restored process then inherits.
//! * [`recover`] puts right what a keeper that died in the middle of a capture left behind.
//!
//! All of it is synchronous and runs on one thread, because a tracer is a thread. Deliberately not here: namespaces, mounts
//! and cgroups (the jail), files and layers (a callback in the pause), and the guest's own table (opaque bytes).

pub mod capture;
mod clocks;
mod error;
pub mod fault;
mod leftovers;
mod live;
mod procfs;
pub mod rebuild;
pub mod restore;
mod stop;

pub use capture::{CallHistory, CaptureRequest, Captured, Held, capture, capture_and_hold};
pub use error::{CaptureError, Refusal, RestoreError};

pub use restore::{GuestLink, RestoreRequest, Restored, Saved, restore};
pub use stop::{recover, still};
