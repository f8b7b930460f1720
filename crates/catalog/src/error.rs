//! How the catalog fails.

use branchbox_model::{Code, Coded, Retry, SandboxId};

/// A failure of the catalog.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// Another sandbox holds the name.
    #[error("the name `{name}` belongs to sandbox {holder}")]
    NameTaken {
        /// The name.
        name: String,
        /// Who holds it.
        holder: SandboxId,
    },
    /// Every id range is in use.
    #[error("all {slots} id ranges of this node are in use")]
    NoSlot {
        /// How many there are.
        slots: u32,
    },
    /// The record to update is not there.
    #[error("no record {id}")]
    Missing {
        /// Its id.
        id: String,
    },
    /// Labels are not the expected ones any more.
    #[error("the labels of snapshot {id} have been changed meanwhile")]
    LabelsChanged {
        /// The snapshot.
        id: String,
    },
    /// The database was written by a newer version.
    #[error("the catalog has version {found}, this program knows up to {known}")]
    Newer {
        /// What the file says.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// A record that cannot be understood.
    #[error("record {id} cannot be read")]
    Damaged {
        /// Its id.
        id: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The database failed.
    #[error("the catalog could not {action}")]
    Database {
        /// What was asked.
        action: &'static str,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
}

/// SQLite's extended results for a full disk begin with this primary code.
const SQLITE_FULL: &str = "13";

impl Coded for CatalogError {
    fn code(&self) -> Code {
        match self {
            Self::NameTaken { .. } => Code::NameTaken,
            Self::NoSlot { .. } => Code::NoCapacity,
            Self::Missing { .. } => Code::NotFound,
            Self::LabelsChanged { .. } => Code::SnapshotMetadataChanged,
            Self::Database { source, .. } if is_full(source) => Code::DiskFull,
            Self::Newer { .. } | Self::Damaged { .. } | Self::Database { .. } => Code::InternalError,
        }
    }

    fn retry(&self) -> Retry {
        match self {
            Self::LabelsChanged { .. } => Retry::Conflict,
            Self::NoSlot { .. } => Retry::Retry,
            _ => Retry::Permanent,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NameTaken { holder, .. } => {
                format!("choose another name, or delete the holder: branchbox rm {holder}")
            }
            Self::NoSlot { .. } => "delete sandboxes that are not needed: branchbox ls".into(),
            Self::LabelsChanged { .. } => "read the snapshot again and repeat the update with its labels".into(),
            Self::Newer { .. } => {
                "start the newer branchbox that made this state directory, or use another --state-dir".into()
            }
            Self::Database { source, .. } if is_full(source) => "free space on the state directory's disk".into(),
            _ => "look into the node's log".into(),
        })
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::NameTaken { holder, .. } => vec![("sandboxId", holder.to_string())],
            _ => Vec::new(),
        }
    }
}

fn is_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(|e| e.code()).is_some_and(|code| code == SQLITE_FULL)
}
