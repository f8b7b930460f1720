//! Captures: the pair of a layer and an image directory, made whole before anything names it ready.
//!
//! The keeper writes the image under a temporary name; the node renames it when it is whole. Records reach the disk
//! before a snapshot is ready; the pages of a kept one follow in the background, and until they have, the snapshot's
//! record holds the boot it was made in: after a power cut in between, recovery calls it failed.

use crate::error::NodeError;
use crate::live::Live;
use crate::node::{Inner, blocking, storage};
use branchbox_model::{SandboxState, SnapshotId, SnapshotMode};
use branchbox_protocol::keeper::CaptureReport;
use std::path::{Path, PathBuf};
use std::time::Instant;

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
    live.settle().await;
    live.touch();
    let layer = inner.pool()?.layer_path(id.as_str()).map_err(|error| storage("name a layer", &error))?;
    let image = (mode == SnapshotMode::Memory).then(|| inner.part_of(id));
    let captured = match (live.state(), mode) {
        (SandboxState::Paused, _) | (SandboxState::Stopped, SnapshotMode::Disk) => {
            at_rest(inner, live, image.clone(), layer).await
        }
        _ => {
            let machine = live.machine().await?;
            let memory = match mode {
                SnapshotMode::Memory => machine.keeper.usage().await?.memory_bytes,
                SnapshotMode::Disk => 0,
            };
            check_room(inner, memory)?;
            machine.keeper.capture(image.clone(), layer).await
        }
    };
    let whole = match (captured, image) {
        (Ok(report), Some(part)) => finish_image(part, inner.image_of(id)).await.map(|()| report),
        (captured, _) => captured,
    };
    if whole.is_err() {
        remove_files(inner, id).await;
    }
    whole
}

/// Captures a sandbox that does not run: its files lie still, and the image of its pause is copied.
async fn at_rest(
    inner: &Inner,
    live: &Live,
    image: Option<PathBuf>,
    layer: PathBuf,
) -> Result<CaptureReport, NodeError> {
    let (paused, root) = (inner.paused_image(live), live.record().detail.root);
    let bytes = directory_bytes(&paused).unwrap_or(0);
    check_room(inner, if image.is_some() { bytes } else { 0 })?;
    blocking(move || {
        let begun = Instant::now();
        let taken = branchbox_layers::capture_layer(&root.upper, &layer, root.driver);
        taken.map_err(|error| storage("take the sandbox's files", &error))?;
        let copied = image.is_some();
        if let Some(image) = image {
            let copy = || -> std::io::Result<()> {
                fs_err::create_dir(&image)?;
                for entry in fs_err::read_dir(&paused)? {
                    let entry = entry?;
                    // Both are never written again, so one file serves both.
                    fs_err::hard_link(entry.path(), image.join(entry.file_name()))?;
                }
                Ok(())
            };
            copy().map_err(|source| NodeError::File { action: "copy", path: paused, source })?;
        }
        let total_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let memory_bytes = if copied { bytes } else { 0 };
        Ok(CaptureReport {
            pause_us: 0,
            total_us,
            memory_bytes,
            record_bytes: 0,
            processes: 0,
            threads: 0,
            notes: Vec::new(),
        })
    })
    .await
}

fn directory_bytes(directory: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(directory)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}

/// Memory and records go into the state directory itself, whatever the pool is.
pub(crate) fn check_room(inner: &Inner, memory: u64) -> Result<(), NodeError> {
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
