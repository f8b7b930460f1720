//! The audit log: written for the server, which alone knows who asks, and read by clients.

use crate::error::NodeError;
use crate::node::{Inner, Node};
use branchbox_api::{AuditActor, AuditLine, AuditPage, AuditTarget};
use branchbox_catalog::{AuditFilter, AuditRecord, Catalog};

/// The newest lines that are kept.
const KEPT_MAX: u32 = 500_000;

impl Node {
    /// Writes a line into the audit log.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn write_audit(&self, record: &AuditRecord) -> Result<(), NodeError> {
        Ok(self.inner.catalog.write_audit(record).await?)
    }

    /// One page of the audit log, newest first.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn audit(&self, filter: AuditFilter) -> Result<AuditPage, NodeError> {
        let limit = filter.limit;
        let mut records = self.inner.catalog.audit(&AuditFilter { limit: limit + 1, ..filter }).await?;
        let more = records.len() > limit as usize;
        records.truncate(limit as usize);
        let next = records.last().filter(|_| more).map(|record| record.seq.to_string());
        Ok(AuditPage { events: records.into_iter().map(line).collect(), next })
    }
}

fn line(record: AuditRecord) -> AuditLine {
    let detail = record.detail;
    AuditLine {
        seq: record.seq,
        id: format!("aud_{}", record.seq),
        at: record.at,
        action: record.action,
        actor: AuditActor { kind: detail.actor_kind, id: detail.actor, name: detail.actor_name, person: None },
        target: AuditTarget { kind: detail.target_kind, id: detail.target },
        detail: detail.more,
        ip: detail.ip,
        request_id: detail.request,
        via: detail.via,
        sandbox: detail.sandbox,
    }
}

/// Keeps the log bounded.
pub(crate) async fn forget_old(inner: &Inner) -> Result<(), NodeError> {
    inner.catalog.forget_audit(KEPT_MAX).await?;
    Ok(())
}
