//! Previews: which ports of a sandbox are shared over HTTP, with whom, and the tokens of the private ones.
//!
//! A token is its time of expiry and a keyed hash of it. The key comes from the node's admin key, the sandbox, the port
//! and a random seed in the sandbox's record. So no token is kept anywhere, any number can be given out, each with a life
//! of its own, and another seed refuses all of them. What is shared belongs to the sandbox: a fork shares nothing.
//!
//! Not here: HTTP. How a visitor is served is the server's; this says whether, and gives the way to the port.

use crate::error::NodeError;
use crate::live::Live;
use crate::node::Node;
use crate::reach::Reach;
use branchbox_api::{DeletedPreview, Preview, PreviewList, PreviewRequest, TokenLife, Visibility, base64};
use branchbox_catalog::{PreviewRecord, SandboxRecord};
use branchbox_model::{SandboxId, SandboxState, SpecError, Timestamp};
use std::sync::Arc;

/// Shared ports of one sandbox.
const PREVIEWS_MAX: usize = 64;
/// Life of a token when the request does not say.
const TTL_SECONDS_DEFAULT: u32 = 86_400;
/// Begins every token, so that one is known for what it is.
const TOKEN_PREFIX: &str = "bbp_";
/// What keys of tokens are made for.
const KEY_CONTEXT: &str = "branchbox 2026-12 preview token";
const SEED_BYTES: usize = 16;
/// Hexadecimal digits of a token that say when it expires.
const EXPIRY_DIGITS: usize = 16;
const HINT: &str = "where *.localhost does not resolve, ask 127.0.0.1 with the Host header of this address";

/// Why a visitor is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no such sandbox.
    NoSandbox,
    /// The sandbox is deleted.
    Deleted,
    /// The port is not shared.
    NotShared,
    /// A token is needed.
    NoToken,
    /// The token is not one of this preview, or no more.
    BadToken,
}

/// A visitor who is let in.
#[derive(Debug)]
pub struct Visit {
    /// The way to the port.
    pub reach: Reach,
    /// Sites that may show it in a frame; empty is every site.
    pub embed_origins: Vec<String>,
    live: Arc<Live>,
    port: u16,
}

impl Visit {
    /// Returns when the port is shared no more, or no more with who came by this visit's token.
    pub fn unshared(&self) -> impl Future<Output = ()> + Send + use<> {
        let (port, mut records) = (self.port, self.live.records());
        let was = records.borrow().detail.previews.get(&port).cloned();
        async move {
            let still =
                |now: &PreviewRecord| now.public || was.as_ref().is_some_and(|was| !was.public && now.seed == was.seed);
            let is_over = |record: &SandboxRecord| !record.detail.previews.get(&port).is_some_and(still);
            // A sandbox that is let go of is over too.
            let _ = records.wait_for(is_over).await;
        }
    }
}

impl Node {
    /// Shares a port, or changes how it is shared.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn share(&self, id: &str, request: PreviewRequest, host: &str) -> Result<Preview, NodeError> {
        let live = self.live(id)?;
        let seed = seed()?;
        let (port, life) = (request.port, request.life());
        let known = live.record().detail.previews;
        if known.len() >= PREVIEWS_MAX && !known.contains_key(&port) {
            return Err(
                SpecError { field: "port", problem: format!("at most {PREVIEWS_MAX} are shared at once") }.into()
            );
        }
        let record = self
            .change_record(&live, move |record| {
                let fresh = PreviewRecord {
                    public: false,
                    embed_origins: Vec::new(),
                    created: Timestamp::now(),
                    seed: seed.clone(),
                };
                let preview = record.detail.previews.entry(request.port).or_insert(fresh);
                if let Some(visibility) = request.visibility {
                    preview.public = visibility == Visibility::Public;
                }
                if let Some(origins) = &request.embed_origins {
                    preview.embed_origins.clone_from(origins);
                }
            })
            .await?;
        self.shown(&record, port, life, host).ok_or_else(|| not_shared(port))
    }

    /// Every shared port.
    ///
    /// # Errors
    /// [`NodeError::NoSandbox`].
    pub fn previews(&self, id: &str, host: &str) -> Result<PreviewList, NodeError> {
        let record = self.live(id)?.record();
        let ports = record.detail.previews.keys();
        Ok(PreviewList {
            data: ports.filter_map(|port| self.shown(&record, *port, TokenLife::default(), host)).collect(),
        })
    }

    /// One shared port, with a token.
    ///
    /// # Errors
    /// [`NodeError`].
    pub fn preview(&self, id: &str, port: u16, life: TokenLife, host: &str) -> Result<Preview, NodeError> {
        let record = self.live(id)?.record();
        self.shown(&record, port, life, host).ok_or_else(|| not_shared(port))
    }

    /// Refuses every token of a port that was given out so far, and gives out a new one.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn rotate_preview(&self, id: &str, port: u16, host: &str) -> Result<Preview, NodeError> {
        let live = self.live(id)?;
        let seed = seed()?;
        let record = self
            .change_record(&live, move |record| {
                if let Some(preview) = record.detail.previews.get_mut(&port) {
                    preview.seed.clone_from(&seed);
                }
            })
            .await?;
        self.shown(&record, port, TokenLife::default(), host).ok_or_else(|| not_shared(port))
    }

    /// Shares a port no more. Asked again, it answers the same.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn unshare(&self, id: &str, port: u16) -> Result<DeletedPreview, NodeError> {
        let live = self.live(id)?;
        self.change_record(&live, move |record| drop(record.detail.previews.remove(&port))).await?;
        Ok(DeletedPreview { id: preview_id(&live.id, port), sandbox_id: live.id.to_string(), port, deleted: true })
    }

    /// Lets a visitor in, or says why not.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn visit(&self, id: &str, port: u16, token: Option<&str>) -> Result<Visit, Refused> {
        let Ok(live) = self.live(id) else {
            let parsed: SandboxId = id.parse().map_err(|_| Refused::NoSandbox)?;
            let known = self.inner.catalog().sandbox(&parsed).await.ok().flatten();
            return Err(if known.is_some() { Refused::Deleted } else { Refused::NoSandbox });
        };
        let preview = live.record().detail.previews.remove(&port).ok_or(Refused::NotShared)?;
        if !preview.public {
            let token = token.ok_or(Refused::NoToken)?;
            if !is_valid(&self.token_key(&live.id, port, &preview.seed), token, Timestamp::now()) {
                return Err(Refused::BadToken);
            }
        }
        let reach = self.reach(id).map_err(|_| Refused::Deleted)?;
        Ok(Visit { reach, embed_origins: preview.embed_origins, live, port })
    }

    async fn change_record(
        &self,
        live: &Arc<Live>,
        change: impl FnOnce(&mut SandboxRecord) + Send + 'static,
    ) -> Result<SandboxRecord, NodeError> {
        let (inner, live) = (Arc::clone(&self.inner), Arc::clone(live));
        self.owned(async move { live.update(inner.catalog(), change).await }).await
    }

    fn shown(&self, record: &SandboxRecord, port: u16, life: TokenLife, host: &str) -> Option<Preview> {
        let preview = record.detail.previews.get(&port)?;
        let url = format!("http://{}.{host}/", preview_id(&record.id, port));
        let expires = expiry(life, Timestamp::now());
        let key = self.token_key(&record.id, port, &preview.seed);
        let token = (!preview.public).then(|| make(&key, expires));
        Some(Preview {
            id: preview_id(&record.id, port),
            sandbox_id: record.id.to_string(),
            port,
            visibility: if preview.public { Visibility::Public } else { Visibility::Private },
            url_with_token: token.as_ref().map(|token| format!("{url}?runtime_preview_token={token}")),
            url,
            token_expires_at: token.as_ref().map(|_| expires),
            token,
            disabled: record.state == SandboxState::Stopped,
            embed_origins: (!preview.embed_origins.is_empty()).then(|| preview.embed_origins.clone()),
            created_at: preview.created,
            hint: Some(HINT.into()),
        })
    }

    fn token_key(&self, id: &SandboxId, port: u16, seed: &str) -> [u8; 32] {
        // Each part has one form and none holds a space, so no two previews share a key.
        blake3::derive_key(KEY_CONTEXT, format!("{} {id} {port} {seed}", self.admin_key()).as_bytes())
    }
}

fn not_shared(port: u16) -> NodeError {
    NodeError::NoPreview { port }
}

/// Names a preview, in lists and as the first label of its address.
fn preview_id(id: &SandboxId, port: u16) -> String {
    format!("{port}-{id}")
}

fn seed() -> Result<String, NodeError> {
    Ok(base64::encode_url(&crate::state_dir::random::<SEED_BYTES>()?))
}

fn expiry(life: TokenLife, now: Timestamp) -> Timestamp {
    let longest = i64::from(*branchbox_api::PREVIEW_TTL_SECONDS.end());
    let asked = life.ttl_seconds.map(i64::from);
    // Who says only when it ends may use the longest life.
    let seconds = asked.unwrap_or(if life.expires_at.is_some() { longest } else { i64::from(TTL_SECONDS_DEFAULT) });
    let relative = now.plus_seconds(seconds.min(longest));
    life.expires_at.map_or(relative, |at| at.min(relative))
}

fn make(key: &[u8; 32], expires: Timestamp) -> String {
    let expiry = expires.0.to_be_bytes();
    format!("{TOKEN_PREFIX}{:016x}{}", expires.0, blake3::keyed_hash(key, &expiry).to_hex())
}

fn is_valid(key: &[u8; 32], token: &str, now: Timestamp) -> bool {
    let read = || -> Option<bool> {
        let (expiry, hash) = token.strip_prefix(TOKEN_PREFIX)?.split_at_checked(EXPIRY_DIGITS)?;
        let expires = Timestamp(u64::from_str_radix(expiry, 16).ok()?.cast_signed());
        // Hashes of this type are compared in constant time.
        let is_ours = blake3::keyed_hash(key, &expires.0.to_be_bytes()) == blake3::Hash::from_hex(hash).ok()?;
        Some(is_ours && expires > now)
    };
    read().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_key_until_it_expires() {
        let (key, now) = ([1u8; 32], Timestamp(1_000_000));
        let token = make(&key, now.plus_seconds(60));
        assert!(is_valid(&key, &token, now));
        assert!(is_valid(&key, &token, now.plus_seconds(59)));
        assert!(!is_valid(&key, &token, now.plus_seconds(60)));
        assert!(!is_valid(&[2u8; 32], &token, now));
        let mut later = token.clone();
        later.replace_range(4..8, "7fff");
        for bad in ["", "bbp_", "x", token.trim_start_matches("bbp_"), &token[..token.len() - 1], &later] {
            assert!(!is_valid(&key, bad, now), "{bad}");
        }
    }

    #[test]
    fn the_earlier_bound_counts() {
        let now = Timestamp(0);
        let life = |ttl_seconds, at: Option<i64>| {
            expiry(TokenLife { ttl_seconds, expires_at: at.map(Timestamp) }, now).0 / 1000
        };
        assert_eq!(life(None, None), 86_400);
        assert_eq!(life(Some(60), None), 60);
        assert_eq!(life(Some(60), Some(30_000)), 30);
        assert_eq!(life(Some(60), Some(90_000)), 60);
        assert_eq!(life(None, Some(500_000_000)), 500_000);
        assert_eq!(life(None, Some(i64::MAX)), 604_800);
    }
}
