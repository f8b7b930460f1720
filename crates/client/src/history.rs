//! Calls about what has happened on a node.

use crate::calls::{encoded, get, sandbox};
use crate::error::ClientError;
use crate::transport::Client;
use branchbox_api::{AuditPage, Event, Metrics, Page};
use std::fmt::Write as _;

/// Which events to list.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Of this sandbox or snapshot.
    pub resource: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// How many.
    pub limit: u32,
}

impl Client {
    /// What has become of sandboxes and snapshots, newest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn events(&self, query: &EventQuery) -> Result<Page<Event>, ClientError> {
        let mut path = format!("/v1/events?limit={}", query.limit);
        for (name, value) in [("resourceId", &query.resource), ("type", &query.kind)] {
            if let Some(value) = value {
                let _ = write!(path, "&{name}={}", encoded(value));
            }
        }
        self.json(get(path)).await
    }

    /// What a sandbox uses over a range such as `1h`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn metrics(&self, id: &str, range: &str) -> Result<Metrics, ClientError> {
        self.json(get(format!("{}/metrics?range={}", sandbox(id), encoded(range)))).await
    }

    /// Who changed what, newest first.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn audit(&self, action: Option<&str>, limit: u32) -> Result<AuditPage, ClientError> {
        let action = action.map(|action| format!("&action={}", encoded(action))).unwrap_or_default();
        self.json(get(format!("/v1/audit?limit={limit}{action}"))).await
    }
}
