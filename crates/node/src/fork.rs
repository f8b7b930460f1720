//! Fork: one capture, many copies started from it.
//!
//! Copies get their names and slots before the capture, so that a fork that cannot be is refused before the source has
//! stood still. The capture belongs to the fork and goes when the last copy has started from it: a restore copies
//! memory and clones the layer, so nothing of it is needed after.

use crate::create::{self, Origin};
use crate::error::NodeError;
use crate::info;
use crate::live::Live;
use crate::money;
use crate::node::{Inner, Node};
use crate::pause;
use crate::snapshots;
use branchbox_api::{ForkAnswer, ForkRequest};
use branchbox_catalog::{Catalog, SandboxRecord, SnapshotRecord};
use branchbox_model::{SandboxId, SandboxState, SnapshotMode, SpecError, Timestamp, names};
use branchbox_protocol::keeper::{CaptureReport, Note, Running};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// A copy with its slot.
type Copy = (Arc<Live>, u32);

impl Node {
    /// Forks a running sandbox; answers when every copy runs.
    ///
    /// # Errors
    /// [`NodeError`]; with [`NodeError::Partly`] some copies run.
    pub async fn fork(&self, id: &str, request: ForkRequest) -> Result<ForkAnswer, NodeError> {
        let begun = Instant::now();
        let live = self.live(id)?;
        let inner = Arc::clone(&self.inner);
        self.owned(async move { fork(&inner, &live, &request, begun).await }).await
    }
}

async fn fork(
    inner: &Arc<Inner>,
    live: &Arc<Live>,
    request: &ForkRequest,
    begun: Instant,
) -> Result<ForkAnswer, NodeError> {
    live.check_capturable(SnapshotMode::Memory).await?;
    let mut source = live.record();
    let account = request.account.clone().unwrap_or_else(|| money::account(&source.detail.settings).to_owned());
    inner.check_spending(&account).await?;
    inner.check_sandboxes(&account, request.count.unwrap_or(1) as usize)?;
    // Copies, and a snapshot that is kept, are whose they were made for.
    source.detail.settings.insert(info::settings::ACCOUNT.into(), account.into());
    let mut snapshot = snapshots::new_record(inner, &source, SnapshotMode::Memory, !request.keep_snapshot);
    let copies = reserve(inner, plan(&source, &snapshot, request, inner.config.second)?).await?;
    let report = match capture(inner, live, &mut snapshot).await {
        Ok(report) => report,
        Err(error) => {
            forget(inner, &copies).await;
            return Err(error);
        }
    };
    let started = start(inner, &copies, &Origin::Machine(snapshot.id.clone())).await;
    if snapshot.temporary {
        snapshots::remove(inner, &snapshot.id).await?;
    }
    Ok(answer(inner, &copies, started?, &snapshot, report, begun))
}

/// The copies' names: one gets the name, several get it with a number.
fn copy_names(request: &ForkRequest) -> Result<Vec<Option<String>>, NodeError> {
    let count = request.count.unwrap_or(1);
    let named: Vec<_> = match (&request.name, count) {
        (None, _) => return Ok(vec![None; count as usize]),
        (Some(name), 1) => vec![name.clone()],
        (Some(name), _) => (1..=count).map(|n| format!("{name}-{n}")).collect(),
    };
    for name in &named {
        let problem = |error: SpecError| SpecError { field: "name", problem: format!("`{name}` {}", error.problem) };
        names::check_name(name).map_err(problem)?;
    }
    Ok(named.into_iter().map(Some).collect())
}

fn plan(
    source: &SandboxRecord,
    snapshot: &SnapshotRecord,
    request: &ForkRequest,
    second: Duration,
) -> Result<Vec<SandboxRecord>, NodeError> {
    let now = Timestamp::now();
    let copy = |name| {
        let mut record = source.clone();
        record.id = SandboxId::generate();
        record.name = name;
        if let Some(labels) = &request.labels {
            record.labels.clone_from(labels);
        }
        record.state = SandboxState::Starting;
        record.created = now;
        record.detail.snapshot = request.keep_snapshot.then(|| snapshot.id.clone());
        record.detail.forked_from = Some(source.id.clone());
        record.detail.previews.clear();
        record.detail.ready = None;
        record.detail.paused = None;
        record.detail.session = None;
        record.detail.memory_restored = None;
        // As long as the source's, counted from now: the source's own may be over.
        pause::begin_time_limit(&mut record, None, second);
        record.detail.stop_reason = None;
        record.detail.stopped = None;
        record.detail.last_active = now;
        record
    };
    Ok(copy_names(request)?.into_iter().map(copy).collect())
}

/// Writes the copies into the catalog, all or none.
async fn reserve(inner: &Arc<Inner>, records: Vec<SandboxRecord>) -> Result<Vec<Copy>, NodeError> {
    let mut copies = Vec::with_capacity(records.len());
    for mut record in records {
        record.detail.root.upper = inner.pool()?.upper_path(&record.id);
        match inner.add(record).await {
            Ok(copy) => copies.push(copy),
            Err(error) => {
                forget(inner, &copies).await;
                return Err(error);
            }
        }
    }
    Ok(copies)
}

/// Undoes [`reserve`].
async fn forget(inner: &Inner, copies: &[Copy]) {
    for (live, _) in copies {
        inner.let_go(&live.id);
        if let Err(error) = inner.catalog.forget_sandbox(&live.id).await {
            tracing::error!(sandbox = %live.id, %error, "the record of a copy that never was stays");
        }
    }
}

async fn capture(inner: &Arc<Inner>, live: &Live, snapshot: &mut SnapshotRecord) -> Result<CaptureReport, NodeError> {
    inner.catalog.insert_snapshot(snapshot).await?;
    let taken = snapshots::take(inner, live, snapshot).await;
    if taken.is_err() {
        inner.catalog.remove_snapshot(&snapshot.id).await?;
    }
    taken
}

/// Starts every copy side by side. Those that run stay when another fails.
async fn start(inner: &Arc<Inner>, copies: &[Copy], origin: &Origin) -> Result<Vec<Running>, NodeError> {
    let mut tasks = JoinSet::new();
    for (live, slot) in copies {
        let (inner, live, slot, origin) = (Arc::clone(inner), Arc::clone(live), *slot, origin.clone());
        tasks.spawn(async move { create::launch(&inner, &live, slot, &origin).await });
    }
    let (mut running, mut first_error) = (Vec::new(), None);
    while let Some(done) = tasks.join_next().await {
        match done.unwrap_or(Err(NodeError::CutOff)) {
            Ok(ran) => running.push(ran),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    match first_error {
        None => Ok(running),
        Some(source) => {
            let runs = |(live, _): &&Copy| live.state() == SandboxState::Running;
            let started = copies.iter().filter(runs).map(|(live, _)| live.id.clone()).collect();
            Err(NodeError::Partly { started, source: Box::new(source) })
        }
    }
}

fn answer(
    inner: &Inner,
    copies: &[Copy],
    running: Vec<Running>,
    snapshot: &SnapshotRecord,
    report: CaptureReport,
    begun: Instant,
) -> ForkAnswer {
    let mut timings = snapshots::timings(begun, Some(&report));
    timings.restore_us = running.iter().map(|running| running.start_us).max();
    let mut notes: Vec<Note> = report.notes;
    for note in running.into_iter().flat_map(|running| running.notes) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    ForkAnswer {
        sandboxes: copies.iter().map(|(live, _)| inner.shown(&live.record())).collect(),
        snapshot: (!snapshot.temporary).then(|| info::snapshot(snapshot)),
        timings,
        notes: info::notes(notes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_catalog::contract;
    use std::collections::BTreeMap;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn copies_are_named_after_the_request() {
        let request =
            |count, name: Option<&str>| ForkRequest { count, name: name.map(Into::into), ..ForkRequest::default() };
        let named =
            |request: &ForkRequest| copy_names(request).expect("names").into_iter().flatten().collect::<Vec<_>>();
        assert_eq!(copy_names(&request(None, None)).expect("one"), [None]);
        assert_eq!(named(&request(Some(1), Some("a"))), ["a"]);
        assert_eq!(named(&request(Some(2), Some("a"))), ["a-1", "a-2"]);
        assert!(
            copy_names(&request(Some(2), Some(&"x".repeat(names::NAME_BYTES_MAX)))).is_err(),
            "the number makes it too long"
        );
    }

    #[test]
    fn a_copy_has_no_name_unless_given_and_keeps_labels_unless_given() {
        let source = contract::sandbox(Some("web"), &[("a", "b")]);
        let snapshot = contract::snapshot(&source.id, true);
        let copies =
            plan(&source, &snapshot, &ForkRequest { count: Some(2), ..ForkRequest::default() }, SECOND).expect("plan");
        assert_eq!(copies.len(), 2);
        assert_ne!(copies[0].id, copies[1].id);
        assert_eq!((copies[0].name.as_ref(), &copies[0].labels), (None, &source.labels));
        assert_eq!(copies[0].detail.forked_from.as_ref(), Some(&source.id));
        let request = ForkRequest { labels: Some(BTreeMap::new()), ..ForkRequest::default() };
        assert!(plan(&source, &snapshot, &request, SECOND).expect("plan")[0].labels.is_empty());
    }
}
