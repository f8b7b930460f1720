//! Money: what use costs, who pays, and where it ends.
//!
//! A sandbox is charged for the processor time it used and the memory it had reserved while it ran; a snapshot for the
//! bytes that it alone keeps, but for one that a fork took for itself. Charges are added as they are metered, to the account that made the thing: a
//! key's id, or `admin`. The amounts are picodollars, so that no second is lost to rounding.
//!
//! A key with a daily limit that has spent it in the last 24 hours (by whole hours) makes and wakes nothing more, and its
//! running sandboxes are paused.

use crate::error::NodeError;
use crate::info::settings;
use crate::live::Live;
use crate::node::Inner;
use crate::pause;
use crate::settings::Prices;
use branchbox_catalog::{Catalog, Charge, SandboxRecord, SnapshotFilter, SnapshotRecord, Usage};
use branchbox_model::{SandboxState, SnapshotState, StopReason, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The account of the owner and the admin key.
pub(crate) const ADMIN: &str = "admin";
/// Picodollars of a microdollar.
pub(crate) const PICO_OF_MICRO: u64 = 1_000_000;
const HOUR_MS: i64 = 3_600_000;
const HOUR_US: u128 = 3_600_000_000;
/// Hours that a daily limit looks back, the running one included.
const HOURS: i64 = 24;
const GB_MONTH: u128 = 1_000_000_000 * 30 * 24 * 3_600_000;
/// The row of the settings that says until when snapshots are charged.
const CHARGED_UNTIL: &str = "snapshots charged until";
/// Snapshots charged in one round.
const SNAPSHOTS_MAX: u32 = 1_000_000;

/// What was charged for each thing in all.
#[derive(Debug, Default)]
pub(crate) struct Charged {
    pico: Mutex<BTreeMap<String, u64>>,
    /// Snapshots are charged by one at a time.
    snapshots: tokio::sync::Mutex<()>,
}

impl Charged {
    pub(crate) async fn read(catalog: &dyn Catalog) -> Result<Self, NodeError> {
        Ok(Self { pico: Mutex::new(catalog.charged().await?), snapshots: tokio::sync::Mutex::default() })
    }

    /// Microdollars for one thing.
    pub(crate) fn micros(&self, resource: &str) -> u64 {
        let all = self.pico.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(resource).copied().unwrap_or(0) / PICO_OF_MICRO
    }

    /// Microdollars for everything.
    pub(crate) fn all_micros(&self) -> u64 {
        let all = self.pico.lock().unwrap_or_else(PoisonError::into_inner);
        all.values().fold(0u64, |sum, pico| sum.saturating_add(*pico)) / PICO_OF_MICRO
    }

    fn add(&self, resource: &str, pico: u64) {
        let mut all = self.pico.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = all.entry(resource.to_owned()).or_default();
        *sum = sum.saturating_add(pico);
    }
}

fn whole(pico: u128) -> u64 {
    u64::try_from(pico).unwrap_or(u64::MAX)
}

impl Prices {
    /// What a sandbox's use costs.
    fn of_use(&self, more: Usage, memory_mib: u32) -> u64 {
        let cpu = u128::from(more.cpu_us).saturating_mul(self.cpu_hour.into()) / HOUR_US;
        let reserved = u128::from(more.running_ms).saturating_mul(memory_mib.into());
        let memory = reserved.saturating_mul(self.memory_gib_hour.into()) / (1024 * HOUR_US / 1000);
        whole(cpu.saturating_add(memory))
    }

    /// What a snapshot's bytes cost for a time.
    fn of_bytes(&self, bytes: u64, ms: u64) -> u64 {
        let kept = u128::from(bytes).saturating_mul(ms.into());
        whole(kept.saturating_mul(self.snapshot_gb_month.into()) / GB_MONTH)
    }

    /// As answers show them: microdollars of an hour.
    pub(crate) fn rates(&self) -> BTreeMap<String, u64> {
        // A GiB of a snapshot for an hour, from a GB for 30 days of 24 hours.
        let stored = u128::from(self.snapshot_gb_month) * (1 << 30) / 1_000_000_000 / (30 * 24);
        BTreeMap::from([
            ("compute.cpu".into(), self.cpu_hour / PICO_OF_MICRO),
            ("compute.memory".into(), self.memory_gib_hour / PICO_OF_MICRO),
            ("storage.stored".into(), whole(stored) / PICO_OF_MICRO),
        ])
    }
}

/// Who pays for a sandbox or a snapshot.
pub(crate) fn account(kept: &BTreeMap<String, serde_json::Value>) -> &str {
    kept.get(settings::ACCOUNT).and_then(serde_json::Value::as_str).unwrap_or(ADMIN)
}

fn hour(at: Timestamp) -> i64 {
    at.0.div_euclid(HOUR_MS)
}

impl Inner {
    async fn charge(&self, resource: &str, account: &str, pico: u64) {
        if pico == 0 {
            return;
        }
        let (resource, account) = (resource.to_owned(), account.to_owned());
        let charge = Charge { resource, account, hour: hour(Timestamp::now()), pico };
        match self.catalog.add_charge(&charge).await {
            Ok(()) => self.charged.add(&charge.resource, pico),
            Err(error) => tracing::error!(resource = charge.resource, %error, "a charge of {pico} picodollars is lost"),
        }
    }

    /// Charges a sandbox for use that was recorded.
    pub(crate) async fn charge_use(&self, record: &SandboxRecord, more: Usage) {
        let pico = self.settings.prices.of_use(more, record.detail.limits.memory.0);
        self.charge(record.id.as_str(), account(&record.detail.settings), pico).await;
    }

    /// Charges every snapshot for the time since the last round.
    pub(crate) async fn charge_snapshots(&self) -> Result<(), NodeError> {
        let _one = self.charged.snapshots.lock().await;
        let (since, now) = (self.charged_until().await?, Timestamp::now());
        let filter = SnapshotFilter { limit: SNAPSHOTS_MAX, ..SnapshotFilter::default() };
        for record in self.catalog.snapshots(&filter).await? {
            self.charge_snapshot(&record, since, now).await;
        }
        Ok(self.catalog.set_setting(CHARGED_UNTIL, &now.0.to_string()).await?)
    }

    /// Charges one snapshot, which is about to go, for the time since the last round.
    pub(crate) async fn charge_last(&self, record: &SnapshotRecord) -> Result<(), NodeError> {
        let _one = self.charged.snapshots.lock().await;
        let since = self.charged_until().await?;
        self.charge_snapshot(record, since, Timestamp::now()).await;
        Ok(())
    }

    async fn charged_until(&self) -> Result<Timestamp, NodeError> {
        let kept = self.catalog.setting(CHARGED_UNTIL).await?;
        Ok(Timestamp(kept.and_then(|text| text.parse().ok()).unwrap_or(0)))
    }

    async fn charge_snapshot(&self, record: &SnapshotRecord, since: Timestamp, now: Timestamp) {
        let (Some(ready), SnapshotState::Ready, false) = (record.detail.ready, record.state, record.temporary) else {
            return;
        };
        let ms = u64::try_from(now.0.saturating_sub(since.max(ready).0)).unwrap_or(0);
        let pico = self.settings.prices.of_bytes(record.detail.stored_bytes.unwrap_or(0), ms);
        self.charge(record.id.as_str(), account(&record.detail.settings), pico).await;
    }

    /// Picodollars that an account has spent in 24 hours.
    pub(crate) async fn spent(&self, account: &str) -> Result<u64, NodeError> {
        Ok(self.catalog.charged_since(account, hour(Timestamp::now()) - HOURS + 1).await?)
    }

    /// That an account may spend more.
    ///
    /// # Errors
    /// [`NodeError::SpendingLimit`].
    pub(crate) async fn check_spending(&self, account: &str) -> Result<(), NodeError> {
        let Some(limit) = self.limits_of(account).daily else { return Ok(()) };
        let spent = self.spent(account).await?;
        if spent < limit {
            return Ok(());
        }
        Err(NodeError::SpendingLimit { limit_micros: limit / PICO_OF_MICRO, used_micros: spent / PICO_OF_MICRO })
    }

    /// That an account may have so many sandboxes more.
    ///
    /// # Errors
    /// [`NodeError::KeySandboxes`].
    pub(crate) fn check_sandboxes(&self, account: &str, more: usize) -> Result<(), NodeError> {
        let Some(max) = self.limits_of(account).sandboxes else { return Ok(()) };
        if self.sandboxes_of(account) + more > max as usize {
            return Err(NodeError::KeySandboxes { max });
        }
        Ok(())
    }

    /// Sandboxes of an account that are not stopped.
    pub(crate) fn sandboxes_of(&self, account: &str) -> usize {
        let is_its = |live: &&Arc<Live>| {
            live.state() != SandboxState::Stopped && self::account(&live.record().detail.settings) == account
        };
        self.all_live().iter().filter(is_its).count()
    }

    /// Pauses what runs of accounts that have spent their limit.
    pub(crate) async fn end_spending(self: &Arc<Self>) {
        let running = self.all_live().into_iter().filter(|live| live.state() == SandboxState::Running);
        let mut of_accounts: BTreeMap<String, Vec<Arc<Live>>> = BTreeMap::new();
        for live in running {
            of_accounts.entry(account(&live.record().detail.settings).to_owned()).or_default().push(live);
        }
        for (account, sandboxes) in of_accounts {
            match self.check_spending(&account).await {
                Ok(()) => {}
                Err(NodeError::SpendingLimit { .. }) => {
                    for live in sandboxes {
                        if let Err(error) = pause::pause_or_stop(self, &live, StopReason::SpendingLimit).await {
                            tracing::warn!(sandbox = %live.id, %error, "it spends on beyond its limit");
                        }
                    }
                }
                Err(error) => tracing::warn!(account, %error, "what it has spent is not known now"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices =
        Prices { cpu_hour: 25_000_000_000, memory_gib_hour: 7_500_000_000, snapshot_gb_month: 80_000_000_000 };

    #[test]
    fn an_hour_costs_what_the_list_says() {
        let hour = Usage { running_ms: 3_600_000, cpu_us: 2 * 3_600_000_000, memory_mib_ms: 0 };
        assert_eq!(PRICES.of_use(hour, 4096), 2 * PRICES.cpu_hour + 4 * PRICES.memory_gib_hour);
        let mut sum = 0;
        for _ in 0..3600 {
            sum += PRICES.of_use(Usage { running_ms: 1000, cpu_us: 2_000_000, memory_mib_ms: 0 }, 4096);
        }
        let lost = PRICES.of_use(hour, 4096) - sum;
        assert!(lost < 2 * 3600, "less than two picodollars a round are lost: {lost}");
        assert_eq!(PRICES.of_bytes(1_000_000_000, 30 * 24 * 3_600_000), PRICES.snapshot_gb_month);
        assert_eq!(
            PRICES.of_use(Usage { cpu_us: u64::MAX, running_ms: u64::MAX, memory_mib_ms: 0 }, u32::MAX),
            u64::MAX
        );
        assert_eq!(PRICES.rates()["storage.stored"], 119);
    }

    #[test]
    fn an_account_is_the_admins_unless_it_is_a_keys() {
        assert_eq!(account(&BTreeMap::new()), ADMIN);
        assert_eq!(account(&BTreeMap::from([(settings::ACCOUNT.to_owned(), "key_1".into())])), "key_1");
    }
}
