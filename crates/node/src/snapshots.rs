//! Snapshots: taking, reading, changing, removing.

use crate::capture;
use crate::create::micros;
use crate::error::NodeError;
use crate::info;
use crate::live::Live;
use crate::money;
use crate::node::{Inner, Node, blocking, storage};
use branchbox_api::{Page, SnapshotInfo, SnapshotRequest, Timings, UpdateSnapshotRequest};
use branchbox_catalog::{Catalog, SandboxRecord, SnapshotDetail, SnapshotFilter, SnapshotRecord};
use branchbox_model::{Coded, SnapshotId, SnapshotMode, SnapshotState, Timestamp};
use branchbox_protocol::keeper::CaptureReport;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest error that a failed snapshot keeps.
const ERROR_BYTES_MAX: usize = 2000;

/// A new snapshot of a sandbox, not yet captured.
pub(crate) fn new_record(inner: &Inner, source: &SandboxRecord, mode: SnapshotMode, temporary: bool) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId::generate(),
        name: None,
        labels: BTreeMap::new(),
        state: SnapshotState::Capturing,
        source: source.id.clone(),
        created: Timestamp::now(),
        temporary,
        detail: SnapshotDetail {
            mode,
            limits: source.detail.limits,
            root: source.detail.root.clone(),
            user: source.detail.user,
            env: source.detail.env.clone(),
            settings: source.detail.settings.clone(),
            ready: None,
            retention_days: None,
            stored_bytes: None,
            error: None,
            boot_id: inner.boot_id.clone(),
            synced: false,
        },
    }
}

/// Captures into a record that is in the catalog, and makes it ready.
pub(crate) async fn take(
    inner: &Arc<Inner>,
    live: &Live,
    record: &mut SnapshotRecord,
) -> Result<CaptureReport, NodeError> {
    let report = capture::capture(inner, live, &record.id, record.detail.mode).await?;
    record.state = SnapshotState::Ready;
    record.detail.ready = Some(Timestamp::now());
    if let Err(error) = inner.catalog.update_snapshot(record, None).await {
        capture::remove_files(inner, &record.id).await;
        return Err(error.into());
    }
    if !record.temporary {
        let memory = report.memory_bytes.saturating_add(report.record_bytes);
        tokio::spawn(finish_later(Arc::clone(inner), record.clone(), memory, live.record().detail.snapshot));
    }
    Ok(report)
}

/// What a snapshot can be started without: it is counted, and brought to the disk.
async fn finish_later(inner: Arc<Inner>, record: SnapshotRecord, memory: u64, origin: Option<SnapshotId>) {
    let id = &record.id;
    let lock = inner.snapshot_lock(id);
    let _there = lock.read().await;
    match own_bytes(&inner, &record, origin).await {
        Ok(files) => {
            let stored = memory.saturating_add(files);
            note(&inner, id, |detail| detail.stored_bytes = Some(stored)).await;
        }
        Err(error) => tracing::warn!(snapshot = %id, %error, "what it keeps could not be counted"),
    }
    match capture::sync(&inner, id, record.detail.mode).await {
        Ok(()) => note(&inner, id, |detail| detail.synced = true).await,
        Err(error) => tracing::warn!(snapshot = %id, %error, "it may not survive a power cut"),
    }
}

/// Bytes of a snapshot's files that neither the source's last snapshot nor the one it started from keeps.
async fn own_bytes(inner: &Inner, record: &SnapshotRecord, origin: Option<SnapshotId>) -> Result<u64, NodeError> {
    let ready = SnapshotFilter {
        source: Some(record.source.clone()),
        state: Some(SnapshotState::Ready),
        after: Some(record.id.clone()),
        limit: 1,
        ..SnapshotFilter::default()
    };
    let last = inner.catalog.snapshots(&ready).await?.into_iter().map(|earlier| earlier.id);
    let others: Vec<String> = last.chain(origin).map(|id| id.to_string()).collect();
    let (pool, id) = (inner.pool()?, record.id.clone());
    blocking(move || pool.own_bytes(id.as_str(), &others).map_err(|error| storage("count a layer", &error))).await
}

/// Changes a snapshot's record, if it is still there.
async fn note(inner: &Inner, id: &SnapshotId, change: impl FnOnce(&mut SnapshotDetail)) {
    let _one = inner.snapshot_records.lock().await;
    let noted = async {
        let Some(mut record) = inner.catalog.snapshot(id).await? else { return Ok(()) };
        change(&mut record.detail);
        inner.catalog.update_snapshot(&record, None).await
    };
    if let Err(error) = noted.await {
        tracing::warn!(snapshot = %id, %error, "what became of it could not be noted");
    }
}

/// Removes a snapshot's files, then its record. Sandboxes that are starting from it are waited for.
pub(crate) async fn remove(inner: &Inner, id: &SnapshotId) -> Result<(), NodeError> {
    let lock = inner.snapshot_lock(id);
    let _alone = lock.write().await;
    if let Some(record) = inner.catalog.snapshot(id).await? {
        inner.charge_last(&record).await?;
    }
    capture::remove_files(inner, id).await;
    Ok(inner.catalog.remove_snapshot(id).await?)
}

impl Node {
    /// Takes a snapshot; answers when it is ready, or after `wait` while it is being captured.
    ///
    /// # Errors
    /// [`NodeError`]; a capture that fails later leaves a failed snapshot that says why.
    pub async fn snapshot(
        &self,
        id: &str,
        request: SnapshotRequest,
        wait: Duration,
    ) -> Result<SnapshotInfo, NodeError> {
        let begun = Instant::now();
        let live = self.live(id)?;
        let mode = request.mode.unwrap_or(SnapshotMode::Memory);
        live.check_capturable(mode).await?;
        let account =
            request.account.clone().unwrap_or_else(|| money::account(&live.record().detail.settings).to_owned());
        self.inner.check_spending(&account).await?;
        let mut record = new_record(&self.inner, &live.record(), mode, false);
        record.name = request.name;
        record.detail.settings.insert(info::settings::ACCOUNT.into(), account.into());
        record.labels = request.labels.unwrap_or_default();
        record.detail.retention_days = request.retention_days;
        let inner = Arc::clone(&self.inner);
        let capturing = record.clone();
        let (answered_send, answered) = tokio::sync::oneshot::channel();
        let mut taken = Box::pin(self.owned(async move { take_or_fail(inner, live, record, answered).await }));
        let waited = tokio::time::timeout(wait, &mut taken).await;
        let (mut info, report) = match waited {
            Ok(Ok((record, report))) => (info::snapshot(&record), Some(report)),
            Ok(Err(error)) => return Err(error),
            Err(_) => {
                let _ = answered_send.send(());
                // What is spawned goes on by itself.
                drop(taken);
                (info::snapshot(&capturing), None)
            }
        };
        info.timings = Some(timings(begun, report.as_ref()));
        info.notes = info::notes(report.map(|report| report.notes).unwrap_or_default());
        Ok(info)
    }

    pub(crate) async fn snapshot_record(&self, id: &str) -> Result<SnapshotRecord, NodeError> {
        let missing = || NodeError::NoSnapshot { id: id.chars().take(64).collect() };
        let parsed: SnapshotId = id.parse().map_err(|_| missing())?;
        let record = self.inner.catalog.snapshot(&parsed).await?;
        record.filter(|record| !record.temporary).ok_or_else(missing)
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn get_snapshot(&self, id: &str) -> Result<SnapshotInfo, NodeError> {
        Ok(info::snapshot(&self.snapshot_record(id).await?))
    }

    /// One page of snapshots, newest first.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<Page<SnapshotInfo>, NodeError> {
        let limit = filter.limit;
        let mut records = self.inner.catalog.snapshots(&SnapshotFilter { limit: limit + 1, ..filter }).await?;
        let more = records.len() > limit as usize;
        records.truncate(limit as usize);
        let next_cursor = records.last().filter(|_| more).map(|record| record.id.to_string());
        Ok(Page { data: records.iter().map(info::snapshot).collect(), next_cursor })
    }

    /// Changes name and labels, if the labels are as expected.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn update_snapshot(&self, id: &str, request: UpdateSnapshotRequest) -> Result<SnapshotInfo, NodeError> {
        let _one = self.inner.snapshot_records.lock().await;
        let mut record = self.snapshot_record(id).await?;
        if let Some(name) = request.name {
            record.name = name;
        }
        if let Some(labels) = request.labels {
            record.labels = labels;
        }
        self.inner.catalog.update_snapshot(&record, request.if_labels.as_ref()).await?;
        Ok(info::snapshot(&record))
    }

    /// Keeps a snapshot for this many days from its creation.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn extend_snapshot(&self, id: &str, days: u32) -> Result<SnapshotInfo, NodeError> {
        let _one = self.inner.snapshot_records.lock().await;
        let mut record = self.snapshot_record(id).await?;
        record.detail.retention_days = Some(days);
        self.inner.catalog.update_snapshot(&record, None).await?;
        Ok(info::snapshot(&record))
    }

    /// Removes a snapshot; sandboxes that were started from it run on.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn delete_snapshot(&self, id: &str) -> Result<SnapshotInfo, NodeError> {
        let mut record = self.snapshot_record(id).await?;
        if record.state == SnapshotState::Capturing {
            return Err(NodeError::SnapshotNotReady { id: id.to_owned(), state: record.state });
        }
        record.state = SnapshotState::Deleting;
        let inner = Arc::clone(&self.inner);
        let removed = record.clone();
        self.owned(async move {
            let one = inner.snapshot_records.lock().await;
            inner.catalog.update_snapshot(&removed, None).await?;
            drop(one);
            remove(&inner, &removed.id).await?;
            crate::images::collect_after(&inner, &removed.detail.root.image);
            Ok(())
        })
        .await?;
        Ok(info::snapshot(&record))
    }
}

/// Where a capture's time went.
pub(crate) fn timings(begun: Instant, report: Option<&CaptureReport>) -> Timings {
    Timings {
        pause_us: report.map(|report| report.pause_us),
        capture_us: report.map(|report| report.total_us),
        restore_us: None,
        server_us: micros(begun),
        bytes: report.map(|report| report.memory_bytes.saturating_add(report.record_bytes)),
    }
}

/// A failure that the caller still hears leaves nothing; a later one is kept in the record.
async fn take_or_fail(
    inner: Arc<Inner>,
    live: Arc<Live>,
    mut record: SnapshotRecord,
    mut answered: tokio::sync::oneshot::Receiver<()>,
) -> Result<(SnapshotRecord, CaptureReport), NodeError> {
    inner.catalog.insert_snapshot(&record).await?;
    match take(&inner, &live, &mut record).await {
        Ok(report) => Ok((record, report)),
        Err(error) => {
            if answered.try_recv().is_ok() {
                let text = format!("{}: {error}", error.code().as_str());
                record.state = SnapshotState::Failed;
                record.detail.error = Some(text.chars().take(ERROR_BYTES_MAX).collect());
                inner.catalog.update_snapshot(&record, None).await?;
            } else {
                inner.catalog.remove_snapshot(&record.id).await?;
            }
            Err(error)
        }
    }
}
