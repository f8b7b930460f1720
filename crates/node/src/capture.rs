//! Captures: the pair of a layer and an image directory, made whole before anything names it ready.
//!
//! The keeper writes the image under a temporary name; the node renames it when it is whole. Records reach the disk
//! before a snapshot is ready; the pages of a kept one follow in the background, and until they have, the snapshot's
//! record holds the boot it was made in: after a power cut in between, recovery calls it failed.

use crate::error::NodeError;
use crate::live::Live;
use crate::node::{Inner, blocking, storage};
use branchbox_model::{SnapshotId, SnapshotMode};
use branchbox_protocol::keeper::CaptureReport;
use std::path::{Path, PathBuf};

/// Files up to this size are records and are synced before a snapshot is ready.
const RECORD_BYTES_MAX: u64 = 1024 * 1024;
/// Free space a capture needs beyond the memory it writes.
const ROOM_BYTES: u64 = 64 * 1024 * 1024;

impl Inner {
    /// A snapshot's memory and records.
    pub(crate) fn image_of(&self, id: &SnapshotId) -> PathBuf {
        self.state.extents().join(id.as_str())
    }

    fn part_of(&self, id: &SnapshotId) -> PathBuf {
        self.state.extents().join(format!("{id}.part"))
    }
}

/// Captures a running sandbox. What a failure leaves is removed.
pub(crate) async fn capture(
    inner: &Inner,
    live: &Live,
    id: &SnapshotId,
    mode: SnapshotMode,
) -> Result<CaptureReport, NodeError> {
    let _one = live.capture.lock().await;
    let machine = live.machine().await?;
    live.touch();
    let memory = match mode {
        SnapshotMode::Memory => machine.keeper.usage().await?.memory_bytes,
        SnapshotMode::Disk => 0,
    };
    check_room(inner, memory)?;
    let layer = inner.pool()?.layer_path(id.as_str()).map_err(|error| storage("name a layer", &error))?;
    let image = (mode == SnapshotMode::Memory).then(|| inner.part_of(id));
    let captured = machine.keeper.capture(image.clone(), layer).await;
    let whole = match (captured, image) {
        (Ok(report), Some(part)) => finish_image(part, inner.image_of(id)).await.map(|()| report),
        (captured, _) => captured,
    };
    if whole.is_err() {
        remove_files(inner, id).await;
    }
    whole
}

/// Memory and records go into the state directory itself, whatever the pool is.
fn check_room(inner: &Inner, memory: u64) -> Result<(), NodeError> {
    let path = inner.state.path().to_path_buf();
    let needed = memory.saturating_add(ROOM_BYTES);
    let usage = rustix::fs::statvfs(&path).map_err(|errno| NodeError::File {
        action: "look at",
        path: path.clone(),
        source: errno.into(),
    })?;
    let free = usage.f_bavail.saturating_mul(usage.f_frsize);
    if free >= needed {
        return Ok(());
    }
    Err(NodeError::LittleSpace { path, free_mib: free >> 20, needed_mib: needed >> 20 })
}

async fn finish_image(part: PathBuf, image: PathBuf) -> Result<(), NodeError> {
    blocking(move || {
        let finish = || {
            sync_tree(&part, RECORD_BYTES_MAX)?;
            fs_err::rename(&part, &image)?;
            std::fs::File::open(image.parent().unwrap_or(&image))?.sync_all()
        };
        finish().map_err(|source| NodeError::File { action: "finish", path: image.clone(), source })
    })
    .await
}

/// Syncs the files of a directory that are not larger than this, and the directory.
fn sync_tree(directory: &Path, bytes_max: u64) -> std::io::Result<()> {
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            sync_tree(&entry.path(), bytes_max)?;
        } else if metadata.is_file() && metadata.len() <= bytes_max {
            fs_err::File::open(entry.path())?.sync_all()?;
        }
    }
    fs_err::File::open(directory)?.sync_all()
}

/// Brings all of a kept snapshot to the disk.
pub(crate) async fn sync(inner: &Inner, id: &SnapshotId, mode: SnapshotMode) -> Result<(), NodeError> {
    let image = (mode == SnapshotMode::Memory).then(|| inner.image_of(id));
    let layer = inner.pool()?.layer_path(id.as_str()).map_err(|error| storage("name a layer", &error))?;
    blocking(move || {
        if let Some(image) = image {
            sync_tree(&image, u64::MAX).map_err(|source| NodeError::File { action: "sync", path: image, source })?;
        }
        let synced = fs_err::File::open(&layer).map_err(|source| NodeError::File {
            action: "open",
            path: layer.clone(),
            source,
        });
        rustix::fs::syncfs(synced?).map_err(|errno| NodeError::File {
            action: "sync",
            path: layer,
            source: errno.into(),
        })
    })
    .await
}

/// Removes a capture's files; leftovers of a failure are collected by the next start.
pub(crate) async fn remove_files(inner: &Inner, id: &SnapshotId) {
    let (image, part) = (inner.image_of(id), inner.part_of(id));
    let (pool, id) = (inner.pool(), id.clone());
    let removed = blocking(move || {
        for path in [image, part] {
            match fs_err::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(NodeError::File { action: "remove", path, source: error });
                }
                _ => {}
            }
        }
        pool?.remove_layer(id.as_str()).map_err(|error| storage("remove a layer", &error))
    });
    if let Err(error) = removed.await {
        tracing::error!(%error, "files of a snapshot stay until the next start");
    }
}
