//! Keys beside the admin key: made by name, kept as hashes, taken away for every request that begins later.
//!
//! A key is 256 random bits, so a plain SHA-256 of it cannot be turned back, and looking a hash up tells nobody anything about
//! a key. Keys are few: all of them are one row of the catalog's settings, read at the start and held in memory.
//! What a key may do is everything but making and removing keys.

use crate::error::NodeError;
use crate::money::{ADMIN, PICO_OF_MICRO};
use crate::node::{Inner, Node};
use crate::settings::KeyLimits;
use branchbox_api::{KeyInfo, KeyRequest};
use branchbox_catalog::Catalog;
use branchbox_model::{SandboxId, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The row of the settings.
const SETTING: &str = "keys";
/// Keys of one node.
const KEYS_MAX: usize = 1000;
/// A use is written down when the last one written is this old.
const USED_EVERY_MS: i64 = 60_000;

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Key {
    id: String,
    name: String,
    hash: String,
    created: Timestamp,
    used: Option<Timestamp>,
    /// `None` is what the settings say.
    #[serde(default)]
    daily_limit_micros: Option<u64>,
    #[serde(default)]
    sandboxes_max: Option<u32>,
}

/// Every key, and the lock that lets one change of them be written at a time.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    all: Mutex<Vec<Key>>,
    write: tokio::sync::Mutex<()>,
}

impl Keys {
    fn all(&self) -> MutexGuard<'_, Vec<Key>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what the catalog has.
    pub(crate) async fn read(catalog: &dyn Catalog) -> Result<Self, NodeError> {
        let text = catalog.setting(SETTING).await?.unwrap_or_else(|| "[]".into());
        let all = serde_json::from_str(&text).map_err(|error| NodeError::Keys { problem: error.to_string() })?;
        Ok(Self { all: Mutex::new(all), write: tokio::sync::Mutex::default() })
    }
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Whoever could open the node's own socket.
    Owner,
    /// Who has the admin key.
    Admin,
    /// Who has another key.
    Key {
        /// Its id.
        id: String,
        /// Its name.
        name: String,
    },
}

impl Caller {
    /// The account that idempotency keys belong to.
    #[must_use]
    pub fn account(&self) -> &str {
        match self {
            Self::Owner | Self::Admin => ADMIN,
            Self::Key { id, .. } => id,
        }
    }
}

fn hash(key: &str) -> String {
    Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn describe(key: &Key) -> KeyInfo {
    KeyInfo {
        id: key.id.clone(),
        name: key.name.clone(),
        created_at: key.created,
        used_at: key.used,
        daily_limit_micros: key.daily_limit_micros,
        max_sandboxes: key.sandboxes_max,
        key: None,
    }
}

impl Inner {
    /// What an account may do. The admin and the owner may do everything; a key that was removed still pays for what it made.
    pub(crate) fn limits_of(&self, account: &str) -> KeyLimits {
        let defaults = self.settings.limits;
        if account == ADMIN {
            return KeyLimits { daily: None, sandboxes: None, ..defaults };
        }
        let all = self.keys.all();
        let key = all.iter().find(|key| key.id == account);
        let daily = key.and_then(|key| key.daily_limit_micros).map(|micros| micros.saturating_mul(PICO_OF_MICRO));
        let sandboxes = key.and_then(|key| key.sandboxes_max);
        KeyLimits { daily: daily.or(defaults.daily), sandboxes: sandboxes.or(defaults.sandboxes), ..defaults }
    }

    async fn write_keys(&self, change: impl FnOnce(&mut Vec<Key>) -> Result<(), NodeError>) -> Result<(), NodeError> {
        let _one = self.keys.write.lock().await;
        let mut all = self.keys.all().clone();
        change(&mut all)?;
        let text = serde_json::to_string(&all).map_err(|error| NodeError::Keys { problem: error.to_string() })?;
        self.catalog().set_setting(SETTING, &text).await?;
        *self.keys.all() = all;
        Ok(())
    }
}

impl Node {
    /// What a caller may do; `None` for those whose requests are not counted.
    #[must_use]
    pub fn key_limits(&self, caller: &Caller) -> Option<KeyLimits> {
        matches!(caller, Caller::Key { .. }).then(|| self.inner.limits_of(caller.account()))
    }

    /// Who a key belongs to; `None` for a key that is none.
    #[must_use]
    pub fn caller(&self, given: &str) -> Option<Caller> {
        // Hashes are compared, so that how much of them is right says nothing about the key.
        let given = hash(given);
        if given == hash(self.admin_key()) {
            return Some(Caller::Admin);
        }
        let mut all = self.inner.keys.all();
        let key = all.iter_mut().find(|key| key.hash == given)?;
        let now = Timestamp::now();
        let is_due = key.used.is_none_or(|used| now.0.saturating_sub(used.0) >= USED_EVERY_MS);
        let caller = Caller::Key { id: key.id.clone(), name: key.name.clone() };
        if is_due {
            key.used = Some(now);
            let (node, id) = (self.clone(), key.id.clone());
            tokio::spawn(async move {
                let note = |all: &mut Vec<Key>| {
                    all.iter_mut().filter(|key| key.id == id).for_each(|key| key.used = Some(now));
                    Ok(())
                };
                if let Err(error) = node.inner.write_keys(note).await {
                    tracing::warn!(%error, "the use of a key could not be written down");
                }
            });
        }
        Some(caller)
    }

    /// Makes a key; the answer alone holds it.
    ///
    /// # Errors
    /// [`NodeError`]: the name is taken, or there are too many.
    pub async fn create_key(&self, request: KeyRequest) -> Result<KeyInfo, NodeError> {
        let secret = crate::state_dir::random_key()?;
        let id = format!("key_{}", SandboxId::generate().as_str().replace('-', ""));
        let key = Key {
            id,
            name: request.name,
            hash: hash(&secret),
            created: Timestamp::now(),
            used: None,
            daily_limit_micros: request.daily_limit_micros,
            sandboxes_max: request.max_sandboxes,
        };
        let made = key.clone();
        self.inner
            .write_keys(|all| {
                if all.iter().any(|other| other.name == key.name) {
                    return Err(NodeError::KeyNameTaken { name: key.name.clone() });
                }
                if all.len() >= KEYS_MAX {
                    return Err(NodeError::TooManyKeys { max: KEYS_MAX });
                }
                all.push(key);
                Ok(())
            })
            .await?;
        Ok(KeyInfo { key: Some(secret), ..describe(&made) })
    }

    /// Every key but the admin key.
    #[must_use]
    pub fn keys(&self) -> Vec<KeyInfo> {
        self.inner.keys.all().iter().map(describe).collect()
    }

    /// Takes a key away, by id or name; from then on it is none.
    ///
    /// # Errors
    /// [`NodeError`]: no such key.
    pub async fn delete_key(&self, text: &str) -> Result<KeyInfo, NodeError> {
        let mut removed = None;
        self.inner
            .write_keys(|all| {
                let missing = || NodeError::NoKey { id: text.chars().take(64).collect() };
                let at = all.iter().position(|key| key.id == text || key.name == text).ok_or_else(missing)?;
                removed = Some(describe(&all.remove(at)));
                Ok(())
            })
            .await?;
        removed.ok_or(NodeError::CutOff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_not_the_key() {
        assert_eq!(hash("bbx_a").len(), 64);
        assert_ne!(hash("bbx_a"), hash("bbx_b"));
        assert_eq!(Caller::Key { id: "key_1".into(), name: "n".into() }.account(), "key_1");
        assert_eq!(Caller::Owner.account(), Caller::Admin.account());
    }
}
