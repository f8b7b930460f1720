//! Stable error codes: one list for the API, the command line and the clients.

use serde::{Deserialize, Serialize};

/// Whether doing the same thing again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The same request fails the same way.
    Permanent,
    /// The same request may succeed later.
    Retry,
    /// Somebody else changed the thing; look again first.
    Conflict,
}

/// An error a user can meet: a stable code, a retry class and what to do next.
pub trait Coded: std::error::Error {
    /// The stable code.
    fn code(&self) -> Code;
    /// Whether the same request may succeed later.
    fn retry(&self) -> Retry;
    /// The next command or setting, as a sentence fragment.
    fn hint(&self) -> Option<String> {
        None
    }
    /// The sandbox-side object the error is about, as JSON pairs for `details`.
    fn details(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = ($text:literal, $status:literal),)*) => {
        /// A stable error code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Code {
            $($(#[$doc])* #[serde(rename = $text)] $variant,)*
        }

        impl Code {
            /// Every code there is.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)*];

            /// The code as on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Code::$variant => $text,)* }
            }

            /// The HTTP status that carries it.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(Code::$variant => $status,)* }
            }
        }
    };
}

codes! {
    /// A field of the request cannot be accepted; `details.issues` names each.
    InvalidRequest = ("invalid_request", 400),
    /// The disk asked for is smaller than the saved one.
    DiskTooSmall = ("disk_too_small", 400),
    /// The key has spent what it may in a day.
    SpendingLimitReached = ("spending_limit_reached", 402),
    /// The key may not do this.
    Forbidden = ("forbidden", 403),
    /// No key, or a wrong one.
    Unauthorized = ("unauthorized", 401),
    /// A file permission inside the sandbox.
    PermissionDenied = ("permission_denied", 403),
    /// No such sandbox, process or other thing.
    NotFound = ("not_found", 404),
    /// No such route.
    RouteNotFound = ("route_not_found", 404),
    /// No such file in the sandbox.
    FileNotFound = ("file_not_found", 404),
    /// No such image.
    ImageNotFound = ("image_not_found", 404),
    /// No such snapshot.
    SnapshotNotFound = ("snapshot_not_found", 404),
    /// The route exists, the method does not.
    MethodNotAllowed = ("method_not_allowed", 405),
    /// The sandbox was stopped.
    SandboxStopped = ("sandbox_stopped", 409),
    /// The sandbox is not stopped, so it cannot be restarted.
    SandboxNotStopped = ("sandbox_not_stopped", 409),
    /// The sandbox is paused, and requests do not wake it.
    SandboxPaused = ("sandbox_paused", 409),
    /// Pieces of the upload are missing, or its digest is another.
    UploadIncomplete = ("upload_incomplete", 409),
    /// The sandbox did not become ready in time.
    SandboxNotReady = ("sandbox_not_ready", 409),
    /// The sandbox is already awake.
    NotPaused = ("not_paused", 409),
    /// The name belongs to another sandbox or key.
    NameTaken = ("name_taken", 409),
    /// A directory where a file was expected.
    IsADirectory = ("is_a_directory", 409),
    /// A file where a directory was expected.
    NotADirectory = ("not_a_directory", 409),
    /// The host has no room for it now.
    NoCapacity = ("no_capacity", 409),
    /// A limit of this node; `details.limit` names it.
    QuotaExceeded = ("quota_exceeded", 409),
    /// The snapshot is being captured, has failed, or is being removed.
    SnapshotNotReady = ("snapshot_not_ready", 409),
    /// The image is being made, has failed, or is being removed.
    ImageNotReady = ("image_not_ready", 409),
    /// Labels or name were changed by somebody else meanwhile.
    SnapshotMetadataChanged = ("snapshot_metadata_changed", 409),
    /// Something in the sandbox cannot be captured; `details` names it.
    CaptureRefused = ("capture_refused", 409),
    /// The base image changed underneath a snapshot.
    BaseChanged = ("base_changed", 409),
    /// The body is larger than the route takes.
    TooLarge = ("too_large", 413),
    /// The key was used with another request.
    IdempotencyKeyReused = ("idempotency_key_reused", 422),
    /// The image could not be made; its log says why.
    ImageBuildFailed = ("image_build_failed", 422),
    /// Too many requests at once.
    RateLimited = ("rate_limited", 429),
    /// A failure of ours.
    InternalError = ("internal_error", 500),
    /// The sandbox's first process answered nonsense or not at all.
    GuestFailed = ("guest_failed", 500),
    /// The interpreter did not start, or ended without an answer.
    InterpreterFailed = ("interpreter_failed", 502),
    /// The port inside could not be reached.
    TunnelUnavailable = ("tunnel_unavailable", 502),
    /// A sandbox could not be started.
    StartFailed = ("start_failed", 500),
    /// A capture failed for a reason of ours; the source runs on.
    CaptureFailed = ("capture_failed", 500),
    /// A saved machine could not be brought back.
    RestoreFailed = ("restore_failed", 500),
    /// The route belongs to something this node does not have.
    Unavailable = ("unavailable", 501),
    /// The node listens on no port that previews could have.
    PreviewsUnavailable = ("previews_unavailable", 501),
    /// No gateway: a sandbox has no way out.
    NetworkRulesUnavailable = ("network_rules_unavailable", 501),
    /// The host lacks what forks need.
    ForkUnavailable = ("fork_unavailable", 501),
    /// The state directory's disk is full.
    DiskFull = ("disk_full", 507),
    /// The node is shutting down or overloaded.
    Busy = ("busy", 503),
    /// This machine lacks something that is needed; the message names it.
    HostUnsupported = ("host_unsupported", 500),
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn codes_are_unique_and_have_error_statuses() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL {
            assert!(seen.insert(code.as_str()), "{code:?} twice");
            assert!((400..600).contains(&code.status()), "{code:?}");
        }
    }
}
