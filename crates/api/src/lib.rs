//! The wire: every request and answer of the HTTP API, as types, and the checks of requests.
//!
//! Requests are read in two steps. The bytes become a JSON object; then each field is taken out of it by name, checked,
//! and what is left over is unknown. So one answer names *every* bad field, which serde alone cannot do.
//! Requests can be written too: the client sends the same types. Field names follow the public wire contract; what is
//! ours alone (`timings`, `notes`) is additional and ignored by other clients.
//!
//! Deliberately not here: HTTP itself, and any decision beyond the form of one request.

mod audit;
pub mod base64;
mod error;
mod event;
mod exec;
mod fields;
mod files;
pub mod image;
mod interpreter;
pub mod key;
mod metrics;
mod misc;
mod preview;
mod rules;
mod sandbox;
mod shape;
mod snapshot;
mod socket;
pub mod watch;

pub use audit::{AuditActor, AuditLine, AuditPage, AuditTarget};
pub use error::{ErrorBody, ErrorInfo};
pub use event::{Event, EventData, EventSandbox, EventSnapshot};
pub use exec::{
    ExecRequest, ExecResult, InputAccepted, InputRequest, OutOfMemory, OutputAnswer, OutputChunk, OutputEncoding,
    PTY_SIDE, ProcessInfo, ProcessList, ProcessState, PtySize, SignalRequest, StreamEvent, TIMEOUT_MS_DEFAULT,
    TIMEOUT_MS_MAX,
};
pub use fields::{Fields, Issue, Issues};
pub use files::{
    ArchiveBegun, ArchiveUploadRequest, FileEntry, FileEntryType, FileList, FileRequest, FileStat, FileWritten,
    Removed, UploadBegun, UploadRequest, mode_schema, parse_mode,
};
pub use image::{ImageInfo, ImageRequest, ImageSource, ImageState};
pub use interpreter::{
    CellError, CellEvent, CellResult, CellStatus, ContextInfo, ContextRequest, DeletedContext, Execution, Interrupted,
    RunRequest,
};
pub use key::{KeyInfo, KeyRequest};
pub use metrics::{Metrics, MetricsPoint, MetricsRange};
pub use misc::{
    AccountLimit, DailyLimit, Empty, Limits, List, Me, NetworkRequest, NetworkRules, Note, Page, Timings, Usage,
    UsageResource,
};
pub use preview::{
    DeletedPreview, EXPIRES_AT_RULE, PREVIEW_TTL_SECONDS, Preview, PreviewList, PreviewRequest, TokenLife, Visibility,
    future,
};
pub use rules::{name_schema, path_schema, relative_path_schema};
pub use sandbox::{
    CreateRequest, DeletedSandbox, ExtendRequest, ForkAnswer, ForkRequest, OnTimeout, RetentionRequest, SandboxInfo,
    StartState, Started, UpdateRequest, WakeRequest,
};
pub use snapshot::{Durability, ExtendSnapshotRequest, Shape, SnapshotInfo, SnapshotRequest, UpdateSnapshotRequest};
pub use socket::{SocketEvent, parse_resize};

/// Most bytes of a JSON body: 1 MiB of standard input in base64, and the rest of the request.
pub const JSON_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Most bytes of a raw file body.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Things in one page of a list, at most.
pub const PAGE_MAX: u32 = 100;
/// Things in one page when the request does not say.
pub const PAGE_DEFAULT: u32 = 50;
