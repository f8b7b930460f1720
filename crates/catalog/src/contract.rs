//! The contract of a [`Catalog`], as one set of checks for every implementation.
//!
//! Called by tests with an empty catalog; a broken promise panics with what was broken. Never called by the product.

use crate::{
    AuditDetail, AuditFilter, AuditRecord, Catalog, CatalogError, Charge, EventFilter, KeptAnswer, Rules,
    SandboxDetail, SandboxFilter, SandboxRecord, SnapshotDetail, SnapshotFilter, SnapshotRecord, Usage,
};
use branchbox_model::{
    Limits, PoolDriver, RootSpec, SandboxId, SandboxState, SnapshotId, SnapshotMode, SnapshotState, Timestamp, User,
};
use std::collections::BTreeMap;

/// Checks everything.
///
/// # Panics
/// When the catalog breaks a promise.
pub async fn check(catalog: &dyn Catalog) {
    names_are_unique_until_the_end(catalog).await;
    slots_are_unique_and_reused(catalog).await;
    lists_filter_and_page(catalog).await;
    snapshots_compare_labels(catalog).await;
    the_first_answer_stays(catalog).await;
    usage_adds_up(catalog).await;
    charges_add_up(catalog).await;
    the_audit_log_is_searched_by_group(catalog).await;
    events_are_told_once_and_bounded(catalog).await;
    settings_are_kept(catalog).await;
}

fn root() -> RootSpec {
    RootSpec {
        image: "host".into(),
        upper: "/u".into(),
        driver: PoolDriver::Plain,
        trees: Vec::new(),
        binds: Vec::new(),
        defaults: branchbox_model::ImageDefaults::default(),
    }
}

/// A running sandbox with this name.
#[must_use]
pub fn sandbox(name: Option<&str>, labels: &[(&str, &str)]) -> SandboxRecord {
    let now = Timestamp::now();
    SandboxRecord {
        id: SandboxId::generate(),
        name: name.map(str::to_owned),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        state: SandboxState::Running,
        created: now,
        ended: None,
        deleted: None,
        detail: SandboxDetail {
            limits: Limits::default(),
            env: BTreeMap::new(),
            user: User::Sandbox,
            root: root(),
            snapshot: None,
            forked_from: None,
            stop_reason: None,
            ready: Some(now),
            stopped: None,
            last_active: now,
            rules: Rules { version: 1, updated: now },
            previews: BTreeMap::new(),
            settings: BTreeMap::new(),
            paused: None,
            session: None,
            memory_restored: None,
        },
    }
}

/// A ready snapshot of this sandbox.
#[must_use]
pub fn snapshot(source: &SandboxId, temporary: bool) -> SnapshotRecord {
    SnapshotRecord {
        id: SnapshotId::generate(),
        name: None,
        labels: BTreeMap::new(),
        state: SnapshotState::Ready,
        source: source.clone(),
        created: Timestamp::now(),
        temporary,
        detail: SnapshotDetail {
            mode: SnapshotMode::Memory,
            limits: Limits::default(),
            root: root(),
            user: User::Sandbox,
            env: BTreeMap::new(),
            settings: BTreeMap::new(),
            ready: None,
            retention_days: Some(3),
            stored_bytes: None,
            error: None,
            boot_id: "b".into(),
            synced: false,
        },
    }
}

async fn names_are_unique_until_the_end(catalog: &dyn Catalog) {
    let mut first = sandbox(Some("web"), &[]);
    catalog.insert_sandbox(&first, 9).await.expect("a free name");
    let second = sandbox(Some("web"), &[]);
    let error = catalog.insert_sandbox(&second, 9).await.expect_err("the name is taken");
    assert!(matches!(&error, CatalogError::NameTaken { holder, .. } if *holder == first.id), "{error}");
    assert_eq!(catalog.sandbox(&second.id).await.expect("read"), None, "a refused sandbox leaves nothing");
    let mut other = sandbox(Some("db"), &[]);
    catalog.insert_sandbox(&other, 9).await.expect("a free name");
    other.name = Some("web".into());
    assert!(matches!(catalog.update_sandbox(&other).await, Err(CatalogError::NameTaken { .. })));
    assert_eq!(catalog.sandbox_by_name("web").await.expect("read").as_ref(), Some(&first));
    first.deleted = Some(Timestamp::now());
    catalog.update_sandbox(&first).await.expect("a tombstone");
    assert_eq!(catalog.sandbox_by_name("web").await.expect("read"), None);
    catalog.update_sandbox(&other).await.expect("the name is free again");
    assert_eq!(catalog.sandbox(&first.id).await.expect("read"), Some(first.clone()), "tombstones are readable");
    catalog.forget_sandbox(&first.id).await.expect("forget");
    catalog.forget_sandbox(&other.id).await.expect("forget");
    assert!(matches!(catalog.update_sandbox(&first).await, Err(CatalogError::Missing { .. })));
}

async fn slots_are_unique_and_reused(catalog: &dyn Catalog) {
    let all = [sandbox(None, &[]), sandbox(None, &[]), sandbox(None, &[])];
    assert_eq!(catalog.insert_sandbox(&all[0], 2).await.expect("slot"), 0);
    assert_eq!(catalog.insert_sandbox(&all[1], 2).await.expect("slot"), 1);
    assert!(matches!(catalog.insert_sandbox(&all[2], 2).await, Err(CatalogError::NoSlot { slots: 2 })));
    catalog.release_slot(&all[0].id).await.expect("release");
    catalog.release_slot(&all[1].id).await.expect("release");
    let taken = catalog.take_slot(&all[1].id, 2).await.expect("take the lowest again");
    assert_eq!(catalog.take_slot(&all[1].id, 2).await.expect("take twice"), taken, "it has it already");
    assert_eq!(catalog.slot(&all[1].id).await.expect("slot"), Some(taken));
    assert_eq!(catalog.slot(&all[0].id).await.expect("read"), None);
    assert_eq!(taken, 0, "the lowest free slot");
    assert_eq!(catalog.insert_sandbox(&all[2], 2).await.expect("slot"), 1);
    assert_eq!(catalog.slot(&all[1].id).await.expect("read"), Some(0));
    for record in &all {
        catalog.forget_sandbox(&record.id).await.expect("forget");
    }
}

async fn lists_filter_and_page(catalog: &dyn Catalog) {
    let mut all =
        vec![sandbox(Some("a"), &[("k", "1"), ("role", "x")]), sandbox(None, &[("k", "1")]), sandbox(None, &[])];
    all[2].state = SandboxState::Stopped;
    for record in &all {
        catalog.insert_sandbox(record, 9).await.expect("insert");
    }
    let filter = SandboxFilter { limit: 10, ..SandboxFilter::default() };
    let ids = |list: &[SandboxRecord]| list.iter().map(|r| r.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&catalog.sandboxes(&filter).await.expect("list")), ids(&all), "oldest first");
    let labelled =
        SandboxFilter { labels: vec![("k".into(), "1".into()), ("role".into(), "x".into())], ..filter.clone() };
    assert_eq!(ids(&catalog.sandboxes(&labelled).await.expect("list")), ids(&all[..1]), "every label must match");
    let stopped = SandboxFilter { states: vec![SandboxState::Stopped], ..filter.clone() };
    assert_eq!(ids(&catalog.sandboxes(&stopped).await.expect("list")), ids(&all[2..]));
    let paged = SandboxFilter { after: Some(all[0].id.clone()), limit: 1, ..filter.clone() };
    assert_eq!(ids(&catalog.sandboxes(&paged).await.expect("list")), ids(&all[1..2]));
    all[1].ended = Some(Timestamp::now());
    catalog.update_sandbox(&all[1]).await.expect("update");
    assert_eq!(catalog.sandboxes(&filter).await.expect("list").len(), 2, "ended ones only when asked for");
    let with_ended = SandboxFilter { include_ended: true, ..filter };
    assert_eq!(catalog.sandboxes(&with_ended).await.expect("list"), all);
    for record in &all {
        catalog.forget_sandbox(&record.id).await.expect("forget");
    }
}

async fn snapshots_compare_labels(catalog: &dyn Catalog) {
    let source = SandboxId::generate();
    let mut kept = snapshot(&source, false);
    let fork = snapshot(&source, true);
    catalog.insert_snapshot(&kept).await.expect("insert");
    catalog.insert_snapshot(&fork).await.expect("insert");
    let filter = SnapshotFilter { limit: 10, ..SnapshotFilter::default() };
    assert_eq!(catalog.snapshots(&filter).await.expect("list"), vec![kept.clone()], "a fork's own is not listed");
    let all = SnapshotFilter { include_temporary: true, source: Some(source), ..filter };
    assert_eq!(catalog.snapshots(&all).await.expect("list"), vec![fork.clone(), kept.clone()], "newest first");
    kept.labels.insert("a".into(), "b".into());
    let none = BTreeMap::new();
    catalog.update_snapshot(&kept, Some(&none)).await.expect("labels were as expected");
    assert!(matches!(catalog.update_snapshot(&kept, Some(&none)).await, Err(CatalogError::LabelsChanged { .. })));
    assert_eq!(catalog.snapshot(&kept.id).await.expect("read"), Some(kept.clone()));
    for id in [&kept.id, &fork.id, &kept.id] {
        catalog.remove_snapshot(id).await.expect("remove, twice too");
    }
    assert!(matches!(catalog.update_snapshot(&kept, None).await, Err(CatalogError::Missing { .. })));
}

async fn the_first_answer_stays(catalog: &dyn Catalog) {
    let answer =
        |body: &str| KeptAnswer { fingerprint: "f".into(), status: 201, body: body.into(), created: Timestamp(5_000) };
    catalog.keep_answer("admin", "k", &answer("1")).await.expect("keep");
    catalog.keep_answer("admin", "k", &answer("2")).await.expect("keep");
    assert_eq!(catalog.kept_answer("admin", "k").await.expect("read"), Some(answer("1")));
    assert_eq!(catalog.kept_answer("other", "k").await.expect("read"), None, "keys belong to an account");
    assert_eq!(catalog.forget_answers(Timestamp(5_000)).await.expect("forget"), 0);
    assert_eq!(catalog.forget_answers(Timestamp(5_001)).await.expect("forget"), 1);
}

async fn events_are_told_once_and_bounded(catalog: &dyn Catalog) {
    let mut record = sandbox(Some("told"), &[]);
    record.state = SandboxState::Starting;
    catalog.insert_sandbox(&record, 9).await.expect("insert");
    for state in [SandboxState::Running, SandboxState::Running, SandboxState::Pausing, SandboxState::Paused] {
        record.state = state;
        catalog.update_sandbox(&record).await.expect("update");
    }
    let mut kept = snapshot(&record.id, false);
    kept.state = SnapshotState::Capturing;
    for record in [&kept, &SnapshotRecord { id: SnapshotId::generate(), temporary: true, ..kept.clone() }] {
        catalog.insert_snapshot(record).await.expect("insert");
        let ready = SnapshotRecord { state: SnapshotState::Ready, ..record.clone() };
        catalog.update_snapshot(&ready, None).await.expect("update");
        catalog.remove_snapshot(&record.id).await.expect("remove");
    }
    let of = |resource: String| EventFilter { resource: Some(resource), limit: 10, ..EventFilter::default() };
    let told = catalog.events(&of(record.id.to_string())).await.expect("list");
    let kinds: Vec<_> = told.iter().map(|e| (e.kind.as_str(), e.detail.previous.as_deref())).collect();
    assert_eq!(
        kinds,
        [("sandbox.paused", Some("running")), ("sandbox.running", Some("starting")), ("sandbox.created", None)]
    );
    let newest = catalog.events(&EventFilter { limit: 3, ..EventFilter::default() }).await.expect("list");
    let kinds: Vec<_> = newest.iter().map(|e| e.kind.as_str()).collect();
    assert_eq!(kinds, ["snapshot.deleted", "snapshot.ready", "sandbox.paused"], "nothing of a fork's own");
    assert!(newest.iter().take(2).all(|e| e.resource == kept.id.to_string()));
    let older = EventFilter { before: Some(newest[2].seq), limit: 1, ..EventFilter::default() };
    assert_eq!(catalog.events(&older).await.expect("list")[0].kind, "sandbox.running");
    let of_kind = EventFilter { kind: Some("snapshot.ready".into()), limit: 1, ..EventFilter::default() };
    assert_eq!(catalog.events(&of_kind).await.expect("list"), vec![newest[1].clone()]);
    assert!(catalog.forget_events(Timestamp(0), 2).await.expect("forget") >= 3);
    let all = EventFilter { limit: 10, ..EventFilter::default() };
    assert_eq!(catalog.events(&all).await.expect("list"), newest[..2].to_vec(), "the newest stay");
    catalog.forget_events(Timestamp(i64::MAX), 2).await.expect("forget");
    record.state = SandboxState::Running;
    catalog.update_sandbox(&record).await.expect("update");
    assert_eq!(catalog.events(&all).await.expect("list")[0].kind, "sandbox.woken", "also when the last is forgotten");
    catalog.forget_sandbox(&record.id).await.expect("forget");
    assert_eq!(catalog.events(&all).await.expect("list"), vec![], "what never was has no events");
}

async fn the_audit_log_is_searched_by_group(catalog: &dyn Catalog) {
    let detail = AuditDetail {
        actor_kind: "key".into(),
        actor: Some("admin".into()),
        actor_name: None,
        target_kind: "sandbox".into(),
        target: "s".into(),
        sandbox: None,
        more: None,
        ip: None,
        request: "req_1".into(),
        via: None,
    };
    for action in ["sandbox.created", "network.changed", "sandbox.deleted", "sandboxes"] {
        let record = AuditRecord { seq: 0, at: Timestamp(7), action: action.into(), detail: detail.clone() };
        catalog.write_audit(&record).await.expect("write");
    }
    let all = catalog.audit(&AuditFilter { limit: 10, ..AuditFilter::default() }).await.expect("list");
    let actions = |lines: &[AuditRecord]| lines.iter().map(|line| line.action.clone()).collect::<Vec<_>>();
    assert_eq!(actions(&all), ["sandboxes", "sandbox.deleted", "network.changed", "sandbox.created"], "newest first");
    assert_eq!(all[0].detail, detail);
    let filter = |action: &str, before| AuditFilter { action: Some(action.into()), before, limit: 10 };
    let group = catalog.audit(&filter("sandbox.", None)).await.expect("list");
    assert_eq!(actions(&group), ["sandbox.deleted", "sandbox.created"]);
    let older = catalog.audit(&filter("sandbox.", Some(group[0].seq))).await.expect("list");
    assert_eq!(actions(&older), ["sandbox.created"]);
    assert_eq!(actions(&catalog.audit(&filter("sandbox", None)).await.expect("list")), Vec::<String>::new());
    assert_eq!(catalog.forget_audit(1).await.expect("forget"), 3);
    assert_eq!(actions(&catalog.audit(&filter("sandbox.", None)).await.expect("list")), Vec::<String>::new());
}

async fn usage_adds_up(catalog: &dyn Catalog) {
    let id = SandboxId::generate();
    let more = Usage { running_ms: 10, cpu_us: 20, memory_mib_ms: 30 };
    catalog.add_usage(&id, more).await.expect("add");
    catalog.add_usage(&id, more).await.expect("add");
    let sum = Usage { running_ms: 20, cpu_us: 40, memory_mib_ms: 60 };
    assert_eq!(catalog.usage_of(&id).await.expect("read"), sum);
    assert_eq!(catalog.usage_of(&SandboxId::generate()).await.expect("read"), Usage::default());
    assert_eq!(catalog.usage(5).await.expect("read"), vec![(id, sum)]);
}

async fn charges_add_up(catalog: &dyn Catalog) {
    let charge = |resource: &str, account: &str, hour, pico| Charge {
        resource: resource.into(),
        account: account.into(),
        hour,
        pico,
    };
    for added in [charge("a", "k", 10, 1), charge("a", "k", 10, 2), charge("a", "k", 11, 4), charge("b", "l", 11, 8)] {
        catalog.add_charge(&added).await.expect("add");
    }
    assert_eq!(catalog.charged_since("k", 10).await.expect("read"), 7);
    assert_eq!(catalog.charged_since("k", 11).await.expect("read"), 4);
    assert_eq!(catalog.charged_since("none", 0).await.expect("read"), 0);
    assert_eq!(catalog.charged().await.expect("read"), [("a".to_owned(), 7), ("b".to_owned(), 8)].into());
}

async fn settings_are_kept(catalog: &dyn Catalog) {
    catalog.set_setting("org", "1").await.expect("set");
    catalog.set_setting("org", "2").await.expect("set");
    assert_eq!(catalog.setting("org").await.expect("read").as_deref(), Some("2"));
    assert_eq!(catalog.setting("none").await.expect("read"), None);
}
