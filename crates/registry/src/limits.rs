//! The maxima of everything that comes from a registry, each with its reason.

use std::time::Duration;

/// Registries refuse manifests above this; it also bounds how many entries an index has.
pub const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// A config is some kilobytes; its history makes it grow, never to this.
pub const CONFIG_BYTES_MAX: u64 = 8 << 20;
/// Docker's own limit is 127; an overlay mount holds 500.
pub const LAYERS_MAX: usize = 500;
/// A registry leads to its storage in one step, a mirror in two.
pub const REDIRECTS_MAX: usize = 5;
/// Tokens are some kilobytes of base64 with a little JSON around.
pub const TOKEN_BYTES_MAX: u64 = 256 << 10;
/// Of an error's body only the first message is told.
pub const ERROR_BYTES_MAX: u64 = 16 << 10;
/// How much of a registry's own words an error repeats.
pub const ERROR_CHARS_MAX: usize = 200;
/// A certificate file larger than this is not one; a system's whole bundle is a quarter of a megabyte.
pub const CA_FILE_BYTES_MAX: u64 = 4 << 20;

/// Name resolution.
pub const RESOLVE_TIMEOUT: Duration = Duration::from_secs(15);
/// A connection with its TLS handshake.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// From the request to the end of the answer's headers; a registry with slow storage needs some of it.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of a body.
pub const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// In each time span of this length ...
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// ... a body moves on by this much, or it counts as stalled. Half a kilobyte a second is less than any line gives
/// that can load an image at all.
pub const STALL_BYTES_MIN: u64 = 32 << 10;
/// How often a blob's loading begins, first time included; a later one goes on where the connection broke off.
pub const BLOB_TRIES: u32 = 4;
