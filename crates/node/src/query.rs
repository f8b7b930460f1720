//! Reading and changing records: get, list, wait, update, network, usage.

use crate::error::NodeError;
use crate::info::{self, settings};
use crate::keys::Caller;
use crate::money::PICO_OF_MICRO;
use crate::node::{Inner, Node};
use branchbox_api::{
    AccountLimit, DailyLimit, Limits, Me, NetworkRequest, NetworkRules, Page, SandboxInfo, UpdateRequest, Usage,
    UsageResource,
};
use branchbox_catalog::{Catalog, KeptAnswer, SandboxFilter, SandboxRecord, SnapshotFilter, SnapshotRecord};
use branchbox_model::{SandboxState, Timestamp, names};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// The wire contract's version that this node speaks.
const API_VERSION: &str = "0.2.0";
/// An extension reaches at most this far from now.
const EXTEND_SECONDS_MAX: u64 = 86_400;
/// Sandboxes in one usage answer.
const USAGE_MAX: u32 = 1000;
/// The one account of a node.
const ORGANISATION: &str = "local";

impl Node {
    /// Reads a sandbox; an ended one too.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn get(&self, id: &str) -> Result<SandboxInfo, NodeError> {
        match self.live(id) {
            Ok(live) => Ok(self.inner.shown(&live.record())),
            Err(missing) => {
                let Ok(parsed) = id.parse() else { return Err(missing) };
                let record = self.inner.catalog.sandbox(&parsed).await?;
                record.filter(|record| record.deleted.is_none()).map(|record| self.inner.shown(&record)).ok_or(missing)
            }
        }
    }

    /// Reads a sandbox when it has reached a state or cannot any more, or when time is up.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn wait_for(&self, id: &str, state: SandboxState, wait: Duration) -> Result<SandboxInfo, NodeError> {
        match self.live(id) {
            Ok(live) => Ok(self.inner.shown(&live.wait_for(state, wait).await)),
            Err(_) => self.get(id).await,
        }
    }

    /// One page of sandboxes, oldest first.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn list(&self, filter: SandboxFilter) -> Result<Page<SandboxInfo>, NodeError> {
        let limit = filter.limit;
        let mut records = self.inner.catalog.sandboxes(&SandboxFilter { limit: limit + 1, ..filter }).await?;
        let more = records.len() > limit as usize;
        records.truncate(limit as usize);
        let next_cursor = records.last().filter(|_| more).map(|record| record.id.to_string());
        Ok(Page { data: records.iter().map(|record| self.newest(record)).collect(), next_cursor })
    }

    /// What memory knows is never older than the catalog.
    fn newest(&self, record: &SandboxRecord) -> SandboxInfo {
        match self.inner.find(&record.id) {
            Some(live) => self.inner.shown(&live.record()),
            None => self.inner.shown(record),
        }
    }

    /// Changes name, labels, variables and settings.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn update(&self, id: &str, request: UpdateRequest) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let mut env = live.record().detail.env;
        for (name, value) in request.env.clone().unwrap_or_default() {
            match value {
                Some(value) => drop(env.insert(name, value)),
                None => drop(env.remove(&name)),
            }
        }
        names::check_env(&env)?;
        let second = self.inner.config.second;
        let record = live.update(self.inner.catalog(), |record| apply(record, request, env, second)).await?;
        live.touch();
        Ok(self.inner.shown(&record))
    }

    /// More time before the time limit ends, at most a day from now; without a limit nothing changes.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn extend(&self, id: &str, seconds: u32) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let second = self.inner.config.second;
        let later = |record: &mut SandboxRecord| {
            let Some(end) = info::ends_at(record) else { return };
            let latest = info::after(Timestamp::now(), EXTEND_SECONDS_MAX, second);
            let end = info::after(end, u64::from(seconds), second).0.min(latest.0).max(end.0);
            record.detail.settings.insert(settings::ENDS_AT.into(), end.into());
        };
        let record = live.update(self.inner.catalog(), later).await?;
        live.touch();
        Ok(self.inner.shown(&record))
    }

    /// How many days the sandbox is kept once it is paused; `None` is for ever.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn retention(&self, id: &str, days: Option<u32>) -> Result<SandboxInfo, NodeError> {
        let live = self.live(id)?;
        let keep = |record: &mut SandboxRecord| match days {
            Some(days) => drop(record.detail.settings.insert(settings::RETENTION.into(), days.into())),
            None => drop(record.detail.settings.remove(settings::RETENTION)),
        };
        Ok(self.inner.shown(&live.update(self.inner.catalog(), keep).await?))
    }

    /// The network rules in force.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn network(&self, id: &str) -> Result<NetworkRules, NodeError> {
        let live = self.live(id)?;
        let enforced = live.machine_now().is_none_or(|machine| machine.running.enforced.closed);
        Ok(info::network(&live.record(), enforced))
    }

    /// Replaces the network rules. Without a gateway only "nothing leaves" can be had, and that is in force already.
    ///
    /// # Errors
    /// [`NodeError::NoGateway`] for anything that lets something out.
    pub async fn set_network(&self, id: &str, request: &NetworkRequest) -> Result<NetworkRules, NodeError> {
        let live = self.live(id)?;
        if request.opens() {
            return Err(NodeError::NoGateway);
        }
        let changed = |record: &mut SandboxRecord| {
            record.detail.rules.version += 1;
            record.detail.rules.updated = Timestamp::now();
        };
        live.update(self.inner.catalog(), changed).await?;
        self.network(id).await
    }

    /// Who asks.
    #[must_use]
    pub fn me(&self, caller: &Caller) -> Me {
        let (principal, credential) = match caller {
            Caller::Owner | Caller::Admin => ("admin", None),
            Caller::Key { id, name } => (name.as_str(), Some(id.clone())),
        };
        Me {
            org_id: ORGANISATION.into(),
            principal_id: principal.into(),
            credential_id: credential,
            api_version: API_VERSION.into(),
            org_name: "branchbox".into(),
            role: if matches!(caller, Caller::Key { .. }) { "member" } else { "owner" }.into(),
        }
    }

    /// What there may be, and what there is.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn limits(&self, caller: &Caller) -> Result<Limits, NodeError> {
        let running = self.inner.all_live().iter().filter(|live| live.state() != SandboxState::Stopped).count();
        let (account, limits) = (caller.account(), self.inner.limits_of(caller.account()));
        let (limit_micros, used_micros) =
            (limits.daily.map(|pico| pico / PICO_OF_MICRO), self.inner.spent(account).await? / PICO_OF_MICRO);
        let row = |limit: &str, label: &str, max: u64, used: usize| AccountLimit {
            limit: limit.into(),
            label: label.into(),
            unit: "sandboxes".into(),
            max,
            used: used as u64,
        };
        let node_max = u64::from(self.inner.config.sandboxes_max);
        let mut rows = vec![row("sandbox.count", "Sandboxes at once", node_max, running)];
        if let Some(max) = limits.sandboxes {
            let used = self.inner.sandboxes_of(account);
            rows.push(row("key.sandbox.count", "Sandboxes of this key at once", max.into(), used));
        }
        Ok(Limits {
            access: "full".into(),
            daily: DailyLimit {
                limit_micros,
                used_micros,
                remaining_micros: limit_micros.map(|limit| limit.saturating_sub(used_micros)),
                window: "24h".into(),
            },
            trial: None,
            account: rows,
            credit: None,
        })
    }

    /// What sandboxes and snapshots have used, and what it cost.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn usage(&self) -> Result<Usage, NodeError> {
        let mut resources = Vec::new();
        for (id, used) in self.inner.catalog.usage(USAGE_MAX).await? {
            let Some(record) = self.inner.catalog.sandbox(&id).await? else { continue };
            resources.push(resource(&self.inner, &record, used));
        }
        let filter = SnapshotFilter { limit: USAGE_MAX, ..SnapshotFilter::default() };
        for record in self.inner.catalog.snapshots(&filter).await? {
            resources.push(snapshot_resource(&self.inner, &record));
        }
        let zero = || "0".to_owned();
        Ok(Usage {
            org_id: ORGANISATION.into(),
            unit: "microdollars".into(),
            credited: zero(),
            spent: self.inner.charged.all_micros().to_string(),
            held: zero(),
            expired: zero(),
            available: zero(),
            taken_back: zero(),
            resources,
        })
    }

    /// The answer kept for an idempotency key.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn kept_answer(&self, account: &str, key: &str) -> Result<Option<KeptAnswer>, NodeError> {
        Ok(self.inner.catalog.kept_answer(account, key).await?)
    }

    /// Keeps the answer of an idempotency key.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn keep_answer(&self, account: &str, key: &str, answer: &KeptAnswer) -> Result<(), NodeError> {
        Ok(self.inner.catalog.keep_answer(account, key, answer).await?)
    }
}

fn apply(record: &mut SandboxRecord, request: UpdateRequest, env: BTreeMap<String, String>, second: Duration) {
    if let Some(name) = request.name {
        record.name = name;
    }
    if let Some(labels) = request.labels {
        record.labels = labels;
    }
    record.detail.env = env;
    if let Some(user) = request.user {
        record.detail.user = user;
    }
    let kept = &mut record.detail.settings;
    let mut keep = |key: &str, value: Option<serde_json::Value>| {
        if let Some(value) = value {
            kept.insert(key.to_owned(), value);
        }
    };
    keep(settings::AUTO_WAKE, request.auto_wake.map(Into::into));
    keep(settings::PERSISTENT, request.persistent.map(Into::into));
    keep(settings::IDLE, request.idle_pause_seconds.map(|seconds| info::idle_raised(seconds).into()));
    keep(settings::ON_TIMEOUT, request.on_timeout.map(|end| json!(end)));
    match request.timeout_seconds {
        None => {}
        Some(0) => {
            kept.remove(settings::TIMEOUT);
            kept.remove(settings::ENDS_AT);
        }
        Some(seconds) => {
            kept.insert(settings::TIMEOUT.into(), seconds.into());
            kept.insert(settings::ENDS_AT.into(), info::after(Timestamp::now(), u64::from(seconds), second).0.into());
        }
    }
}

fn rates(inner: &Inner, of: &str) -> BTreeMap<String, u64> {
    inner.settings.prices.rates().into_iter().filter(|(name, _)| name.starts_with(of)).collect()
}

fn snapshot_resource(inner: &Inner, record: &SnapshotRecord) -> UsageResource {
    UsageResource {
        resource_id: record.id.to_string(),
        name: record.name.clone(),
        kind: "snapshot".into(),
        state: json!(record.state).as_str().unwrap_or_default().to_owned(),
        created_at: record.created,
        vcpu: 0,
        memory_mib: 0,
        running_seconds: 0.0,
        active_cpu_seconds: 0.0,
        memory_gib_seconds: 0.0,
        stored_bytes: record.detail.stored_bytes,
        rates: rates(inner, "storage."),
        charged_micros: inner.charged.micros(record.id.as_str()),
        held_micros: 0,
    }
}

fn resource(inner: &Inner, record: &SandboxRecord, used: branchbox_catalog::Usage) -> UsageResource {
    #[expect(clippy::cast_precision_loss, reason = "shown with a few digits")]
    let ratio = |amount: u64, unit: f64| amount as f64 / unit;
    let state = if record.deleted.is_some() {
        "deleted".into()
    } else {
        json!(record.state).as_str().unwrap_or_default().to_owned()
    };
    UsageResource {
        resource_id: record.id.to_string(),
        name: record.name.clone(),
        kind: "sandbox".into(),
        state,
        created_at: record.created,
        vcpu: record.detail.limits.vcpus.0,
        memory_mib: record.detail.limits.memory.0,
        running_seconds: ratio(used.running_ms, 1e3),
        active_cpu_seconds: ratio(used.cpu_us, 1e6),
        // What is paid for: what it had reserved while it ran.
        memory_gib_seconds: ratio(used.running_ms, 1e3) * f64::from(record.detail.limits.memory.0) / 1024.0,
        stored_bytes: None,
        rates: rates(inner, "compute."),
        charged_micros: inner.charged.micros(record.id.as_str()),
        held_micros: 0,
    }
}
