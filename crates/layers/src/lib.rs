//! Files of a sandbox: the pool of uppers and layers, overlay mounts, capture of a layer, what changed, writing back.
//!
//! A sandbox's tree is a list of overlays ([`assemble`]) over read-only host directories ([`host`] makes those of the
//! default image). Everything it writes lands in one directory, its *upper*, kept by the [`pool`]; a capture turns the
//! upper into an immutable *layer* ([`capture_layer`]), a fork starts from a writable copy of that. [`changes`] says
//! what an upper holds compared with what lies below, [`writeback`] carries chosen parts of it to the host.
//!
//! Not here: who may do it and when (`node`), the namespaces the mounts are attached in (`jail`).

pub mod assemble;
mod beneath;
mod capture;
pub mod changes;
mod coded;
mod copy;
pub mod host;
pub mod images;
pub mod pool;
pub mod writeback;

pub use assemble::{AssembleError, AssembledMount, assemble};
pub use capture::{LayerError, LayerReport, capture_layer, start_writeback};
pub use copy::{Copied, CopyError, copy_tree};
pub use host::{HostError, HostImage};
pub use images::ImageError;
pub use pool::{Pool, PoolError, PoolOptions};
