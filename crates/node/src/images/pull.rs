//! Images of registries.

use super::make::{Made, config_of, unpacking};
use super::{ImagesError, image_error, log::Log};
use crate::capture::check_room;
use crate::error::NodeError;
use crate::node::Node;
use branchbox_api::image::ARCHIVE_BYTES_MAX;
use branchbox_layers::images::archive;
use branchbox_registry::{Options, Progress, Reference, RegistryError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Certificates that are believed instead of the public ones, for a registry of one's own.
const CA_FILE: &str = "BRANCHBOX_REGISTRY_CA";

fn failed(error: &RegistryError) -> NodeError {
    let mut problem = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        problem.push_str(&format!(": {source}"));
        cause = source.source();
    }
    ImagesError::Registry { problem }.into()
}

/// Loads an image and unpacks it.
pub(super) async fn pull(node: &Node, text: &str, dir: &Path, log: &Arc<Log>) -> Result<Made, NodeError> {
    let reference: Reference = text.parse().map_err(|error: branchbox_registry::ReferenceError| {
        NodeError::from(ImagesError::Registry { problem: error.to_string() })
    })?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let (mut closing, cancel) = (node.closing(), Arc::clone(&cancelled));
    let watcher = tokio::spawn(async move {
        let _ = closing.wait_for(|closing| *closing).await;
        cancel.store(true, Ordering::Relaxed);
    });
    let (dir, log) = (dir.join("pulled"), Arc::clone(log));
    let made = unpacking(node, move |inner, stop| {
        log.say("build", &format!("pulling {reference}"));
        fs_err::create_dir(&dir).map_err(|source| NodeError::File { action: "make", path: dir.clone(), source })?;
        let ca_file = std::env::var_os(CA_FILE).map(std::path::PathBuf::from);
        let options = Options {
            credentials: None,
            bytes_max: ARCHIVE_BYTES_MAX,
            ca_file: ca_file.as_deref(),
            cancelled: Some(&cancelled),
        };
        let mut tell = |progress: Progress| match progress {
            Progress::Layer { digest, bytes, of } if bytes == of => log.say("build", &format!("{digest}: {of} bytes")),
            _ => {}
        };
        let pulled = branchbox_registry::pull(&reference, &dir, &options, &mut tell).map_err(|error| failed(&error))?;
        check_room(inner, 0)?;
        let unfit = |error| image_error("unpack the image", &error);
        let files = pulled.layers.into_iter().map(|layer| layer.path).collect();
        let layers = archive::pair(files, archive::diff_ids(&pulled.config).map_err(unfit)?).map_err(unfit)?;
        log.say("build", &format!("unpacking {} layers of {}", layers.len(), pulled.manifest_digest));
        let chain = inner.pool()?.unpack_layers(&layers, stop).map_err(unfit)?;
        Ok(Made { identity: chain.identity, links: chain.links, config: config_of(&pulled.config), key: None })
    })
    .await;
    watcher.abort();
    made
}
