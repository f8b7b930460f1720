//! Removing layers of images that nothing stands on any more.

use super::{Image, build};
use crate::error::NodeError;
use crate::lifecycle;
use crate::node::{Inner, blocking, storage};
use crate::recover::ALL;
use branchbox_catalog::{SandboxFilter, SnapshotFilter};
use branchbox_layers::images as layers;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Removes what a node that went down has left of archives.
pub(crate) async fn forget_incoming(inner: &Inner) {
    // Not there, or with something that is not ours: then the next archive says so.
    let _ = tokio::fs::remove_dir_all(inner.incoming_dir("")).await;
    inner.sweep_chunks().await;
}

/// Deletes sandboxes of builds that a node which went down was at.
pub(crate) async fn forget_builds(inner: &Arc<Inner>) -> Result<(), NodeError> {
    let ids: Vec<String> = inner.images.all().iter().map(|image| image.id.clone()).collect();
    for record in inner.catalog().sandboxes(&SandboxFilter { limit: ALL, ..SandboxFilter::default() }).await? {
        let is_build = record.labels.get(build::LABEL).is_some_and(|image| ids.contains(image));
        if let (true, Some(live)) = (is_build, inner.find(&record.id)) {
            lifecycle::delete(inner, &live).await?;
        }
    }
    Ok(())
}

/// The same in the background, after something that stood on these files has gone.
pub(crate) fn collect_after(inner: &Arc<Inner>, identity: &str) {
    if layers::chain_name(identity).is_none() && layers::parts(identity).built.is_empty() {
        return;
    }
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let Some(inner) = inner.upgrade() else { return };
        if let Err(error) = collect(&inner).await {
            tracing::warn!(%error, "layers of images stay until the next collection");
        }
    });
}

/// Removes what no image, sandbox or snapshot names.
pub(crate) async fn collect(inner: &Inner) -> Result<(), NodeError> {
    // Whoever is about to stand on a layer holds this for reading; another collection comes after that.
    let Ok(_alone) = inner.images.users.try_write() else { return Ok(()) };
    let mut named = BTreeSet::new();
    let mut name = |identity: &str| {
        let parts = layers::parts(identity);
        named.extend(layers::chain_name(parts.base).into_iter().chain(parts.built).map(str::to_owned));
        named.insert(identity.to_owned());
    };
    let mut links: BTreeSet<String> = BTreeSet::new();
    for Image { identity, links: own, .. } in inner.images.all().iter() {
        identity.as_deref().map(&mut name);
        links.extend(own.iter().cloned());
    }
    for record in inner.catalog().sandboxes(&SandboxFilter { limit: ALL, ..SandboxFilter::default() }).await? {
        name(&record.detail.root.image);
    }
    for record in inner.catalog().snapshots(&SnapshotFilter { limit: ALL, ..SnapshotFilter::default() }).await? {
        name(&record.detail.root.image);
    }
    named.extend(links);
    let pool = inner.pool()?;
    blocking(move || {
        let failed = |error| storage("remove layers of images", &error);
        for layer in pool.image_layers().map_err(failed)?.iter().filter(|layer| !named.contains(*layer)) {
            pool.remove_image_layer(layer).map_err(failed)?;
        }
        let identities: Vec<&str> = named.iter().map(String::as_str).collect();
        pool.keep_dresses(&identities).map_err(failed)
    })
    .await
}
