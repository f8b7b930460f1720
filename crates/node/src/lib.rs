//! The daemon of one host: the life of sandboxes and snapshots, and everything a client can ask about them.
//!
//! A [`Node`] holds a state directory, a catalog and a pool, and a keeper process per sandbox. It may die at any
//! instant: keepers and sandboxes run on, and the next [`Node::start`] finds them through their sockets. What is done for
//! a client is finished even when the client goes away. Files belong to a record before they are called ready, and are
//! removed after their record says so; what a crash leaves in between is collected by the next start.
//!
//! Deliberately not here: HTTP (`server`), how a sandbox is made or captured (`keeper`, `engine`), and any network.

mod archives;
mod audit;
mod capture;
mod clients;
mod clock;
mod config;
mod create;
mod error;
mod events;
mod exec;
mod files;
mod fork;
mod images;
mod info;
mod interpreter;
mod keeper_process;
mod keys;
mod lifecycle;
mod live;
mod meter;
mod metrics;
mod money;
mod node;
mod pause;
mod peer;
mod previews;
mod query;
mod reach;
mod recover;
mod settings;
mod snapshots;
mod spawn;
mod splitter;
mod state_dir;
mod terminal;
mod uploads;
mod watches;

pub use archives::{ARCHIVE_CHUNK_BYTES, Pack, Packing};
pub use config::{Ending, NodeConfig, RootExtras};
pub use error::NodeError;
pub use exec::{Follow, Process};
pub use files::{FileReader, LIST_DEPTH_MAX, LIST_ENTRIES_MAX, ListFiles};
pub use interpreter::Cell;
pub use keys::Caller;
pub use node::Node;
pub use peer::PeerError;
pub use previews::{Refused, Visit};
pub use reach::{Inside, Reach};
pub use settings::{KeyLimits, SettingsError};
pub use terminal::{Keyboard, Said, Screen};
pub use uploads::UPLOAD_CHUNK_BYTES;
