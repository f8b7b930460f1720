//! Events: what has become of sandboxes and snapshots, as a list that only grows at its end.
//!
//! An event is written in the transaction that writes the new state, so there is never one without the other. States
//! that pass by themselves are no events; the previous state of an event is the one that the event before it told.

use branchbox_model::{SandboxState, SnapshotState, StopReason, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Something that has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Counts events, never reused.
    pub seq: i64,
    /// When it was written.
    pub at: Timestamp,
    /// Its word, such as `sandbox.paused`.
    pub kind: String,
    /// The id of the sandbox or the snapshot.
    pub resource: String,
    /// The state it has reached.
    pub state: String,
    /// The rest.
    pub detail: EventDetail,
}

/// What is not searched of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventDetail {
    /// The thing's name at that time.
    pub name: Option<String>,
    /// Its labels at that time.
    pub labels: BTreeMap<String, String>,
    /// The state it came from.
    pub previous: Option<String>,
    /// Of a sandbox: why it does not run.
    pub reason: Option<StopReason>,
    /// Of a snapshot: the sandbox it was taken from.
    pub source: Option<String>,
    /// Of a snapshot: why it failed.
    pub error: Option<String>,
}

/// Which events to list.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Of this sandbox or snapshot.
    pub resource: Option<String>,
    /// Of this kind.
    pub kind: Option<String>,
    /// Only older than this.
    pub before: Option<i64>,
    /// At most this many.
    pub limit: u32,
}

/// The event of a sandbox that went from `old` to `new`; `told` is the state of the event before.
pub(crate) fn of_sandbox(told: SandboxState, old: SandboxState, new: SandboxState) -> Option<&'static str> {
    use SandboxState::{Paused, Resuming, Running, Starting, Stopped};
    match (old, new) {
        (old, new) if old == new => None,
        (Resuming, Paused) => Some("sandbox.wake_failed"),
        (Starting, Stopped) => Some("sandbox.start_failed"),
        (_, Running | Paused | Stopped) if told == new => None,
        (_, Running) if told == Paused => Some("sandbox.woken"),
        (_, Running) => Some("sandbox.running"),
        (_, Paused) => Some("sandbox.paused"),
        (_, Stopped) => Some("sandbox.stopped"),
        _ => None,
    }
}

/// The event of a snapshot that went from `old` to `new`; `None` is gone.
pub(crate) fn of_snapshot(old: SnapshotState, new: Option<SnapshotState>) -> Option<&'static str> {
    match (old, new) {
        (old, Some(new)) if old == new => None,
        (_, Some(SnapshotState::Ready)) => Some("snapshot.ready"),
        (_, Some(SnapshotState::Failed)) | (SnapshotState::Capturing, None) => Some("snapshot.failed"),
        (_, None) => Some("snapshot.deleted"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use SandboxState::{Paused, Pausing, Resuming, Running, Starting, Stopped, Stopping};

    #[test]
    fn only_states_that_last_are_events() {
        for (told, old, new, event) in [
            (Starting, Starting, Running, Some("sandbox.running")),
            (Running, Running, Pausing, None),
            (Running, Pausing, Running, None),
            (Running, Pausing, Paused, Some("sandbox.paused")),
            (Paused, Paused, Resuming, None),
            (Paused, Resuming, Running, Some("sandbox.woken")),
            (Paused, Resuming, Paused, Some("sandbox.wake_failed")),
            (Running, Running, Stopping, None),
            (Running, Stopping, Stopped, Some("sandbox.stopped")),
            (Stopped, Starting, Running, Some("sandbox.running")),
            (Stopped, Starting, Stopped, Some("sandbox.start_failed")),
            (Running, Running, Running, None),
        ] {
            assert_eq!(of_sandbox(told, old, new), event, "{told:?}: {old:?} to {new:?}");
        }
    }

    #[test]
    fn snapshots_become_ready_or_failed_and_go() {
        use SnapshotState::{Capturing, Deleting, Failed, Ready};
        for (old, new, event) in [
            (Capturing, Some(Ready), Some("snapshot.ready")),
            (Capturing, Some(Failed), Some("snapshot.failed")),
            (Capturing, None, Some("snapshot.failed")),
            (Ready, Some(Ready), None),
            (Ready, Some(Deleting), None),
            (Deleting, None, Some("snapshot.deleted")),
            (Ready, None, Some("snapshot.deleted")),
        ] {
            assert_eq!(of_snapshot(old, new), event, "{old:?} to {new:?}");
        }
    }
}
