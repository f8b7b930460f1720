//! Images that sandboxes can start from: this machine's own files, and what was brought or built.
//!
//! The host image is built in, not made: it is ready when the node is. Its id follows from what it holds, so that it is
//! another image after the machine's packages have changed, as a snapshot that stands on it says too. All others are
//! records: few, so all of them are one row of the catalog's settings, read at the start and held in memory. A record names
//! its files by an *identity* (see `branchbox_layers::images`); sandboxes and snapshots keep that, not the record, so an
//! image can be deleted under them, and its layers go when nobody stands on them any more ([`collect`]).

mod build;
mod chunks;
mod collect;
mod log;
mod make;
mod pull;
mod start;
mod users;

pub(crate) use collect::{collect, collect_after, forget_builds, forget_incoming};
pub(crate) use start::ToStart;

use crate::error::NodeError;
use crate::node::{Inner, Node, blocking, storage};
use branchbox_api::image::{HOST, ImageLogs, ImageStart, LATEST};
use branchbox_api::{ImageInfo, ImageSource, ImageState, Page};
use branchbox_catalog::Catalog;
use branchbox_layers::ImageError;
use branchbox_layers::images as layers;
use branchbox_model::{Code, Coded, ImageDefaults, Retry, RootSpec, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The row of the settings.
const SETTING: &str = "images";
/// Images of one node.
const IMAGES_MAX: usize = 1000;
/// Images being made at once.
const MADE_AT_ONCE: usize = 2;
/// Where commands start when an image says nothing.
const WORKDIR: &str = "/workspace";
/// The user's own programs, which come first on every path.
const OWN_PROGRAMS: &str = "/workspace/.local/bin";

/// What an operation on images fails with.
#[derive(Debug, thiserror::Error)]
pub enum ImagesError {
    /// It is not made yet, or could not be.
    #[error("image {name} is {}", state_word(*state))]
    NotReady {
        /// As asked for.
        name: String,
        /// Where it is.
        state: ImageState,
    },
    /// The host image is no record.
    #[error("the host image cannot be {action}")]
    BuiltIn {
        /// What was asked for.
        action: &'static str,
    },
    /// An image without a name has no tags.
    #[error("image {id} has no name, so it cannot have a tag")]
    Nameless {
        /// Which.
        id: String,
    },
    /// More images than a node may have.
    #[error("this node has {max} images")]
    TooMany {
        /// How many it may have.
        max: usize,
    },
    /// A chunk whose digest is another, or an archive whose chunks are not all there.
    #[error("the archive cannot be put together: {problem}")]
    Chunks {
        /// What is wrong.
        problem: String,
    },
    /// A registry did not give the image.
    #[error("{problem}")]
    Registry {
        /// Which registry, and why.
        problem: String,
    },
    /// A build came to no end.
    #[error("{problem}")]
    Build {
        /// Which step, and why.
        problem: String,
    },
    /// The catalog's images make no sense.
    #[error("the images in the catalog cannot be read: {problem}")]
    Records {
        /// What about them.
        problem: String,
    },
}

fn state_word(state: ImageState) -> &'static str {
    match state {
        ImageState::Queued | ImageState::Building => "still being made",
        ImageState::Ready => "ready",
        ImageState::Failed => "not there: it could not be made",
        ImageState::Deleting | ImageState::Deleted => "deleted",
    }
}

impl Coded for ImagesError {
    fn code(&self) -> Code {
        match self {
            Self::NotReady { .. } => Code::ImageNotReady,
            Self::BuiltIn { .. } | Self::Nameless { .. } => Code::InvalidRequest,
            Self::TooMany { .. } => Code::QuotaExceeded,
            Self::Chunks { .. } => Code::UploadIncomplete,
            Self::Registry { .. } | Self::Build { .. } => Code::ImageBuildFailed,
            Self::Records { .. } => Code::InternalError,
        }
    }

    fn retry(&self) -> Retry {
        Retry::Permanent
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NotReady { .. } => "wait until its state is ready; a failed one says why in `error`",
            Self::BuiltIn { .. } => "it is this machine's own files, and always there",
            Self::Nameless { .. } => "make it again with a name",
            Self::TooMany { .. } => "delete some that are not needed",
            Self::Chunks { .. } => "ask images/context/missing what is not there, send it, and try again",
            Self::Registry { .. } => "check the reference, and that the registry can be reached from the node",
            Self::Build { .. } => "the image's log says what came before",
            Self::Records { .. } => "restore the catalog from a copy",
        };
        Some(text.into())
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::TooMany { .. } => vec![("limit", "image.count".into())],
            _ => Vec::new(),
        }
    }
}

/// One image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Image {
    id: String,
    name: Option<String>,
    version: u32,
    tags: Vec<String>,
    labels: BTreeMap<String, String>,
    state: ImageState,
    error: Option<String>,
    created: Timestamp,
    ready: Option<Timestamp>,
    /// Of its files; none until it is ready.
    identity: Option<String>,
    /// The directories its chain was made in, which a later image of the same layers begins with.
    links: Vec<String>,
    size_bytes: Option<u64>,
    defaults: ImageDefaults,
    start: Option<ImageStart>,
    /// Who runs it, where it is the image's own.
    #[serde(default)]
    start_user: Option<String>,
    kind: String,
    reference: Option<String>,
    /// Of what it was made from, for a later build of the same.
    key: Option<String>,
    /// The image's configuration, for builds upon it.
    config: serde_json::Value,
}

/// Every image, and the locks of changes.
#[derive(Debug)]
pub(crate) struct Images {
    all: Mutex<Vec<Image>>,
    write: tokio::sync::Mutex<()>,
    /// Held for reading while something may stand on layers that no record names yet, for writing while layers go.
    pub(crate) users: tokio::sync::RwLock<()>,
    /// Images being made at once; more wait.
    turns: tokio::sync::Semaphore,
    logs: Mutex<BTreeMap<String, Arc<log::Log>>>,
}

impl Images {
    fn all(&self) -> MutexGuard<'_, Vec<Image>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what the catalog has. What was being made when the node went down is not made any more.
    pub(crate) async fn read(catalog: &dyn Catalog) -> Result<Self, NodeError> {
        let text = catalog.setting(SETTING).await?.unwrap_or_else(|| "[]".into());
        let bad = |error: serde_json::Error| ImagesError::Records { problem: error.to_string() };
        let mut all: Vec<Image> = serde_json::from_str(&text).map_err(bad)?;
        for image in &mut all {
            if matches!(image.state, ImageState::Queued | ImageState::Building) {
                image.state = ImageState::Failed;
                image.error = Some("the node was restarted".into());
            }
        }
        Ok(Self {
            all: Mutex::new(all),
            write: tokio::sync::Mutex::default(),
            users: tokio::sync::RwLock::default(),
            turns: tokio::sync::Semaphore::new(MADE_AT_ONCE),
            logs: Mutex::default(),
        })
    }
}

/// A UUID that belongs to this text alone (RFC 9562, version 8: made by a rule of one's own).
fn id_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut bytes: Vec<u8> = digest.iter().take(16).copied().collect();
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn host(inner: &Inner) -> Image {
    Image {
        id: id_of(&inner.image.identity),
        name: Some(HOST.into()),
        version: 1,
        tags: vec![LATEST.into()],
        labels: BTreeMap::new(),
        state: ImageState::Ready,
        error: None,
        created: inner.started,
        ready: Some(inner.started),
        identity: Some(inner.image.identity.clone()),
        links: Vec::new(),
        // Nothing of it is a copy: it is the machine's own files.
        size_bytes: Some(0),
        defaults: ImageDefaults::default(),
        start: None,
        start_user: None,
        kind: HOST.into(),
        reference: None,
        key: None,
        config: serde_json::Value::Null,
    }
}

impl Image {
    /// Whether a text names it: its id, name, `name:tag`, `name@version`, or identity. A bare name is its tag `latest`.
    fn is_named(&self, text: &str) -> bool {
        let name = self.name.as_deref().unwrap_or_default();
        let has_tag = |tag: &str| self.tags.iter().any(|known| known == tag);
        let by_part = match (text.rsplit_once('@'), text.rsplit_once(':')) {
            (Some((of, version)), _) => of == name && version == self.version.to_string(),
            (None, Some((of, tag))) => of == name && has_tag(tag),
            (None, None) => text == name && has_tag(LATEST),
        };
        (by_part && !name.is_empty()) || text == self.id || self.identity.as_deref() == Some(text)
    }

    fn info(&self, logs: ImageLogs) -> ImageInfo {
        ImageInfo {
            id: self.id.clone(),
            kind: "image".into(),
            state: self.state,
            name: self.name.clone(),
            version: self.version,
            tags: self.tags.clone(),
            labels: self.labels.clone(),
            size_bytes: self.size_bytes,
            error: self.error.clone(),
            created_at: self.created,
            ready_at: self.ready,
            env: self.defaults.env.clone(),
            workdir: self.defaults.workdir.clone().unwrap_or_else(|| WORKDIR.into()),
            start: self.start.clone(),
            source: ImageSource {
                kind: self.kind.clone(),
                identity: self.identity.clone().unwrap_or_default(),
                reference: self.reference.clone(),
            },
            logs,
        }
    }

    /// What a sandbox's record says it started from.
    pub(crate) fn shown(&self) -> String {
        match &self.name {
            Some(name) if name == HOST => name.clone(),
            Some(name) => format!("{name}@{}", self.version),
            None => self.id.clone(),
        }
    }

    pub(crate) fn defaults(&self) -> &ImageDefaults {
        &self.defaults
    }

    /// Its files.
    ///
    /// # Errors
    /// [`ImagesError::NotReady`].
    pub(crate) fn identity(&self) -> Result<&str, ImagesError> {
        let missing = || ImagesError::NotReady { name: self.shown(), state: self.state };
        self.identity.as_deref().filter(|_| self.state == ImageState::Ready).ok_or_else(missing)
    }
}

/// The image's own path, with the user's programs before it.
fn with_own_programs(env: &mut BTreeMap<String, String>) {
    if let Some(path) = env.get_mut("PATH")
        && !path.split(':').any(|part| part == OWN_PROGRAMS)
    {
        path.insert_str(0, &format!("{OWN_PROGRAMS}:"));
    }
}

/// An error of the layers as one of the node.
pub(crate) fn image_error(action: &'static str, error: &ImageError) -> NodeError {
    storage(action, error)
}

impl Inner {
    fn logs_of(&self, image: &Image) -> ImageLogs {
        self.log_of(&image.id).map_or_else(ImageLogs::default, |log| log.totals())
    }

    fn image_info(&self, image: &Image) -> ImageInfo {
        image.info(self.logs_of(image))
    }

    async fn write_images<T>(
        &self,
        change: impl FnOnce(&mut Vec<Image>) -> Result<T, NodeError>,
    ) -> Result<T, NodeError> {
        let _one = self.images.write.lock().await;
        let mut all = self.images.all().clone();
        let changed = change(&mut all)?;
        let bad = |error: serde_json::Error| ImagesError::Records { problem: error.to_string() };
        let text = serde_json::to_string(&all).map_err(bad)?;
        self.catalog().set_setting(SETTING, &text).await?;
        *self.images.all() = all;
        Ok(changed)
    }

    /// The image that a text names.
    pub(crate) fn image_record(&self, text: &str) -> Result<Image, NodeError> {
        let host = host(self);
        if host.is_named(text) {
            return Ok(host);
        }
        let all = self.images.all();
        // An identity may be several images'.
        let found =
            all.iter().filter(|image| image.is_named(text)).max_by_key(|image| image.state == ImageState::Ready);
        found.cloned().ok_or_else(|| NodeError::NoImage { name: text.chars().take(128).collect() })
    }

    /// The root of a sandbox on these files, for an upper of its own. The identity may change with this machine.
    pub(crate) async fn root_on(
        &self,
        identity: &str,
        defaults: ImageDefaults,
        upper: PathBuf,
    ) -> Result<RootSpec, NodeError> {
        let (pool, exe, identity) = (self.pool()?, self.config.exe.clone(), identity.to_owned());
        let host = (self.image.identity.clone(), self.image.trees.clone());
        blocking(move || {
            let failed = |error: ImageError| image_error("put the image together", &error);
            let parts = layers::parts(&identity);
            let (image, trees) = match layers::chain_name(parts.base) {
                Some(_) => (identity.clone(), pool.chain_trees(&identity, &exe).map_err(failed)?),
                None => {
                    let built: String = parts.built.iter().map(|name| format!("+{name}")).collect();
                    (format!("{}{built}", host.0), pool.host_trees(&identity, &host.1).map_err(failed)?)
                }
            };
            Ok(RootSpec { image, upper, driver: pool.driver(), trees, binds: Vec::new(), defaults })
        })
        .await
    }

    /// That memory can be brought back here: programs map files of the image that they were captured on.
    pub(crate) fn check_base(&self, id: &str, was: &str) -> Result<(), NodeError> {
        let (parts, now) = (layers::parts(was), layers::parts(&self.image.identity));
        let changed =
            |now: &str| NodeError::BaseChanged { id: id.to_owned(), was: was.to_owned(), now: now.to_owned() };
        let chain = layers::chain_name(parts.base);
        if chain.is_none() && parts.base != now.base {
            return Err(changed(now.base));
        }
        let pool = self.pool()?;
        let is_there = |name: &str| pool.image_layer_path(name).is_ok_and(|path| path.is_dir());
        if chain.into_iter().chain(parts.built).all(is_there) { Ok(()) } else { Err(changed("not there any more")) }
    }
}

impl Node {
    /// The image that a text names.
    ///
    /// # Errors
    /// [`NodeError::NoImage`].
    pub fn image(&self, text: &str) -> Result<ImageInfo, NodeError> {
        Ok(self.inner.image_info(&self.inner.image_record(text)?))
    }

    /// The images there are, newest first, of this name if one is given; the host's comes last.
    #[must_use]
    pub fn images(
        &self,
        name: Option<&str>,
        state: Option<ImageState>,
        limit: u32,
        after: Option<&str>,
    ) -> Page<ImageInfo> {
        let mut all: Vec<Image> = self.inner.images.all().iter().rev().cloned().collect();
        all.push(host(&self.inner));
        let is_wanted = |image: &&Image| {
            name.is_none_or(|name| image.name.as_deref() == Some(name))
                && state.is_none_or(|state| state == image.state)
        };
        let mut wanted: Vec<&Image> = all.iter().filter(is_wanted).collect();
        if let Some(after) = after {
            // A deleted one was the last of its page: what is older is not known any more, so it begins again.
            let position = wanted.iter().position(|image| image.id == after).map_or(0, |at| at + 1);
            wanted.drain(..position);
        }
        let more = wanted.len() > limit as usize;
        wanted.truncate(limit as usize);
        let next_cursor = wanted.last().filter(|_| more).map(|image| image.id.clone());
        Page { data: wanted.into_iter().map(|image| self.inner.image_info(image)).collect(), next_cursor }
    }

    /// Points a tag of the image's name at it.
    ///
    /// # Errors
    /// [`NodeError::NoImage`]; [`ImagesError`].
    pub async fn tag_image(&self, text: &str, tag: String) -> Result<ImageInfo, NodeError> {
        let image = self.own_image(text, "tagged")?;
        let Some(name) = image.name.clone() else { return Err(ImagesError::Nameless { id: image.id }.into()) };
        image.identity()?;
        self.inner
            .write_images(|all| {
                give_tags(all, &image.id, &name, &[tag]);
                Ok(())
            })
            .await?;
        self.image(&image.id)
    }

    /// Takes a tag away from an image.
    ///
    /// # Errors
    /// As [`Node::tag_image`]; one that it does not have is taken away already.
    pub async fn untag_image(&self, text: &str, tag: &str) -> Result<ImageInfo, NodeError> {
        let image = self.own_image(text, "untagged")?;
        self.inner
            .write_images(|all| {
                all.iter_mut()
                    .filter(|known| known.id == image.id)
                    .for_each(|known| known.tags.retain(|known| known != tag));
                Ok(())
            })
            .await?;
        self.image(&image.id)
    }

    /// Deletes an image; what stands on it keeps its files.
    ///
    /// # Errors
    /// [`NodeError::NoImage`]; [`ImagesError`].
    pub async fn delete_image(&self, text: &str) -> Result<ImageInfo, NodeError> {
        let image = self.own_image(text, "deleted")?;
        let info = self.inner.image_info(&image);
        if matches!(image.state, ImageState::Queued | ImageState::Building) {
            return Err(ImagesError::NotReady { name: image.shown(), state: image.state }.into());
        }
        let node = self.clone();
        self.owned(async move {
            node.inner
                .write_images(|all| {
                    all.retain(|known| known.id != image.id);
                    Ok(())
                })
                .await?;
            node.inner.forget_log(&image.id).await;
            collect(&node.inner).await
        })
        .await?;
        Ok(ImageInfo { state: ImageState::Deleted, tags: Vec::new(), ..info })
    }

    fn own_image(&self, text: &str, action: &'static str) -> Result<Image, NodeError> {
        let image = self.inner.image_record(text)?;
        if image.kind == HOST { Err(ImagesError::BuiltIn { action }.into()) } else { Ok(image) }
    }
}

/// Moves tags of a name to one image.
fn give_tags(all: &mut [Image], id: &str, name: &str, tags: &[String]) {
    for image in all.iter_mut().filter(|image| image.name.as_deref() == Some(name)) {
        image.tags.retain(|known| !tags.contains(known));
        if image.id == id {
            image.tags.extend(tags.iter().cloned());
            image.tags.sort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_that_follow_from_what_an_image_holds() {
        let id = id_of("host:abc");
        assert_eq!((id.len(), id.matches('-').count(), &id[14..15]), (36, 4, "8"));
        assert_eq!(id, id_of("host:abc"));
        assert_ne!(id, id_of("host:abd"));
    }

    #[test]
    fn the_users_programs_come_first() {
        let mut env = BTreeMap::from([("PATH".to_owned(), "/usr/local/bin:/bin".to_owned())]);
        with_own_programs(&mut env);
        with_own_programs(&mut env);
        assert_eq!(env["PATH"], "/workspace/.local/bin:/usr/local/bin:/bin");
    }
}
