//! Making images: one task for each, which says what it does in a log and ends in `ready` or `failed`.

use super::build::{self, Plan};
use super::pull::pull;
use super::{
    IMAGES_MAX, Image, ImagesError, chunks, collect, give_tags, image_error, log::Log, start, with_own_programs,
};
use crate::error::NodeError;
use crate::node::{Inner, Node, blocking};
use branchbox_api::image::{ArchiveRef, ImageFrom};
use branchbox_api::{ImageInfo, ImageRequest, ImageState};
use branchbox_layers::images::archive::{self, Found};
use branchbox_model::{Coded, ImageDefaults, SandboxId, Timestamp};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Characters of an image's error.
const ERROR_CHARS_MAX: usize = 2000;

/// The files of an image, and what it says about commands in it.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) identity: String,
    pub(super) links: Vec<String>,
    /// The `config` object of an OCI image configuration.
    pub(super) config: serde_json::Value,
    /// Of a build: see [`super::build`].
    pub(super) key: Option<String>,
}

/// What we read of it.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct OciConfig {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
}

/// Variables and working directory of an image's configuration.
pub(super) fn defaults(config: &serde_json::Value) -> ImageDefaults {
    let config: OciConfig = serde_json::from_value(config.clone()).unwrap_or_default();
    let pairs = config.env.unwrap_or_default();
    let mut env: BTreeMap<String, String> = pairs
        .iter()
        .filter_map(|pair| pair.split_once('='))
        .filter(|(name, value)| !name.is_empty() && !name.contains('\0') && !value.contains('\0'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    with_own_programs(&mut env);
    let workdir = config.working_dir.filter(|dir| dir.starts_with('/') && dir != "/" && !dir.contains('\0'));
    ImageDefaults { env, workdir }
}

/// The `config` object of a whole configuration.
pub(super) fn config_of(configuration: &[u8]) -> serde_json::Value {
    let whole: serde_json::Value = serde_json::from_slice(configuration).unwrap_or_default();
    whole.get("config").cloned().unwrap_or_default()
}

impl Node {
    /// Begins to make an image.
    ///
    /// # Errors
    /// [`ImagesError::TooMany`]; what cannot be built.
    pub async fn create_image(&self, request: ImageRequest) -> Result<ImageInfo, NodeError> {
        let plan = Plan::read(&request.from)?;
        let node = self.clone();
        self.owned(async move {
            let image = node
                .inner
                .write_images(|all| {
                    if all.len() >= IMAGES_MAX {
                        return Err(ImagesError::TooMany { max: IMAGES_MAX }.into());
                    }
                    let image = queued(all, &request);
                    all.push(image.clone());
                    Ok(image)
                })
                .await?;
            let log = node.inner.new_log(&image.id);
            let (task, id) = (node.clone(), image.id.clone());
            tokio::spawn(async move { make(&task, &id, request, plan, &log).await });
            Ok(node.inner.image_info(&image))
        })
        .await
    }
}

fn queued(all: &[Image], request: &ImageRequest) -> Image {
    let (kind, reference) = match &request.from {
        ImageFrom::Archive(_) => ("archive", None),
        ImageFrom::Reference(reference) => ("image", Some(reference.clone())),
        ImageFrom::Dockerfile(_) => ("dockerfile", None),
        ImageFrom::Recipe(_) => ("recipe", None),
    };
    let versions = all.iter().filter(|image| image.name.is_some() && image.name == request.name);
    Image {
        id: SandboxId::generate().to_string(),
        name: request.name.clone(),
        version: versions.map(|image| image.version).max().unwrap_or(0) + 1,
        tags: Vec::new(),
        labels: request.labels.clone(),
        state: ImageState::Queued,
        error: None,
        created: Timestamp::now(),
        ready: None,
        identity: None,
        links: Vec::new(),
        size_bytes: None,
        defaults: ImageDefaults::default(),
        start: None,
        start_user: None,
        kind: kind.into(),
        reference,
        key: None,
        config: serde_json::Value::Null,
    }
}

async fn make(node: &Node, id: &str, request: ImageRequest, plan: Option<Plan>, log: &Arc<Log>) {
    let inner = &node.inner;
    let dir = inner.incoming_dir(id);
    let made = async {
        let _turn = inner.images.turns.acquire().await.map_err(|_| NodeError::Closing)?;
        change(inner, id, |image| image.state = ImageState::Building).await?;
        // Until the record names them, nothing else says that the layers are in use.
        let _user = inner.images.users.read().await;
        let make_dir = dir.clone();
        blocking(move || {
            fs_err::create_dir_all(&make_dir).map_err(|source| NodeError::File {
                action: "make",
                path: make_dir,
                source,
            })
        })
        .await?;
        let made = match &plan {
            Some(plan) => build::build(node, id, &request, plan, &dir, log).await?,
            None => from(node, &request, &dir, log).await?,
        };
        finish(inner, id, &request, made).await
    }
    .await;
    if let Err(error) = made {
        let text: String = with_causes(&error).chars().take(ERROR_CHARS_MAX).collect();
        log.say("build", &format!("failed: {text}"));
        let failed = change(inner, id, |image| {
            image.state = ImageState::Failed;
            image.error = Some(text);
        });
        if let Err(error) = failed.await {
            tracing::error!(image = id, %error, "an image failed, and its record does not say so");
        }
    }
    let _ = tokio::fs::remove_dir_all(&dir).await;
    inner.sweep_chunks().await;
    // What a failure has left of layers; and sandboxes of a build that have gone meanwhile.
    if let Err(error) = collect(inner).await {
        tracing::warn!(%error, "layers of images stay until the next collection");
    }
    log.end();
}

fn with_causes(error: &NodeError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text.push_str(&format!(": {source}"));
        cause = source.source();
    }
    match error.hint() {
        Some(hint) if matches!(error, NodeError::Images(_)) => format!("{text}; {hint}"),
        _ => text,
    }
}

async fn change(inner: &Inner, id: &str, change: impl FnOnce(&mut Image)) -> Result<(), NodeError> {
    inner
        .write_images(|all| {
            if let Some(image) = all.iter_mut().find(|image| image.id == id) {
                change(image);
            }
            Ok(())
        })
        .await
}

async fn from(node: &Node, request: &ImageRequest, dir: &Path, log: &Arc<Log>) -> Result<Made, NodeError> {
    match &request.from {
        ImageFrom::Archive(archive) => import(node, archive, dir, log).await,
        ImageFrom::Reference(reference) => pull(node, reference, dir, log).await,
        ImageFrom::Dockerfile(_) | ImageFrom::Recipe(_) => {
            Err(ImagesError::Build { problem: "there is no plan".into() }.into())
        }
    }
}

/// Runs work that unpacks, and can be told to stop when the node goes down.
pub(super) async fn unpacking<T: Send + 'static>(
    node: &Node,
    work: impl FnOnce(&Inner, &dyn Fn() -> bool) -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    let inner = Arc::clone(&node.inner);
    blocking(move || work(&inner, &|| inner.is_closing())).await
}

async fn import(node: &Node, archive: &ArchiveRef, dir: &Path, log: &Arc<Log>) -> Result<Made, NodeError> {
    let (archive, dir, log) = (archive.clone(), dir.to_path_buf(), Arc::clone(log));
    unpacking(node, move |inner, stop| {
        let file = dir.join("archive");
        log.say("build", &format!("putting together {} bytes", archive.size));
        chunks::put_together(inner, &archive, &file)?;
        let failed = |error| image_error("import the archive", &error);
        let found = archive::look_into(&file, &dir.join("layers")).map_err(failed)?;
        let pool = inner.pool()?;
        let (chain, config) = match found {
            Found::Root => {
                log.say("build", "unpacking a root file system");
                (pool.unpack_root(&file, stop).map_err(failed)?, serde_json::Value::Null)
            }
            Found::Layers { layers, config } => {
                log.say("build", &format!("unpacking {} layers", layers.len()));
                (pool.unpack_layers(&layers, stop).map_err(failed)?, config_of(&config))
            }
        };
        chunks::forget(inner, &archive);
        Ok(Made { identity: chain.identity, links: chain.links, config, key: None })
    })
    .await
}

/// Sees that a sandbox can stand on it, and writes down that it is ready.
async fn finish(inner: &Inner, id: &str, request: &ImageRequest, made: Made) -> Result<(), NodeError> {
    let Made { identity, links, config, key } = made;
    let mut defaults = defaults(&config);
    defaults.env.extend(request.env.clone());
    with_own_programs(&mut defaults.env);
    inner.root_on(&identity, defaults.clone(), PathBuf::new()).await?;
    let (pool, named) = (inner.pool()?, identity.clone());
    let size =
        blocking(move || pool.image_bytes(&named).map_err(|error| crate::node::storage("measure the image", &error)));
    let size = size.await?;
    if let Some(max) = request.build.max_image_mib.filter(|max| size > u64::from(*max) << 20) {
        let problem = format!("it has {} MiB, and may have {max}", size >> 20);
        return Err(branchbox_model::SpecError { field: "build.maxImageMiB", problem }.into());
    }
    inner
        .write_images(|all| {
            if let Some(image) = all.iter_mut().find(|image| image.id == id) {
                image.state = ImageState::Ready;
                image.ready = Some(Timestamp::now());
                image.identity = Some(identity);
                image.links = links;
                image.config = config;
                image.key = key;
                image.defaults = defaults;
                image.size_bytes = Some(size);
                (image.start, image.start_user) = match &request.start {
                    Some(start) => (start.clone(), None),
                    None => start::of_config(&image.config).unzip(),
                };
            }
            if let Some(name) = &request.name {
                give_tags(all, id, name, &request.tags);
            }
            Ok(())
        })
        .await
}
