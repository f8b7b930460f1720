//! What a layer alone keeps of disk space.
//!
//! A btrfs snapshot keeps each inode's number and times, so a file that is the same inode, unchanged, at the same place in
//! another layer shares its blocks with it. Without btrfs every layer has inodes of its own, and all of it counts.
//!
//! Not here: blocks shared below the level of files. A file that changed counts whole, so the sum never says too little.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Size of the blocks that `stat` counts.
const BLOCK_BYTES: u64 = 512;

/// Bytes on disk of a tree's files that are in none of the others.
pub(super) fn bytes(tree: &Path, others: &[PathBuf]) -> io::Result<u64> {
    let (mut bytes, mut seen, mut pending) = (0_u64, HashSet::new(), vec![PathBuf::new()]);
    while let Some(directory) = pending.pop() {
        for entry in fs_err::read_dir(tree.join(&directory))? {
            let entry = entry?;
            let (metadata, place) = (entry.metadata()?, directory.join(entry.file_name()));
            if metadata.is_dir() {
                pending.push(place);
            } else if !others.iter().any(|other| is_kept(&other.join(&place), &metadata))
                && (metadata.nlink() < 2 || seen.insert(metadata.ino()))
            {
                bytes = bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK_BYTES));
            }
        }
    }
    Ok(bytes)
}

/// Whether there is the same file, unchanged. Another layer may go meanwhile; then it keeps nothing.
fn is_kept(path: &Path, metadata: &Metadata) -> bool {
    let identity = |m: &Metadata| (m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    std::fs::symlink_metadata(path).is_ok_and(|other| identity(&other) == identity(metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_counts_once_and_what_another_layer_keeps_does_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let (tree, other) = (directory.path().join("tree"), directory.path().join("other"));
        fs_err::create_dir_all(tree.join("below")).expect("tree");
        fs_err::create_dir_all(&other).expect("other");
        let blocks = |path: &Path| fs_err::metadata(path).expect("metadata").blocks() * BLOCK_BYTES;
        for (name, size) in [("below/mine", 100_000), ("shared", 50_000)] {
            fs_err::write(tree.join(name), vec![7; size]).expect("file");
            fs_err::File::open(tree.join(name)).and_then(|file| file.sync_all()).expect("sync");
        }
        fs_err::hard_link(tree.join("below/mine"), tree.join("again")).expect("link");
        fs_err::hard_link(tree.join("shared"), other.join("shared")).expect("link");
        let (mine, shared) = (blocks(&tree.join("below/mine")), blocks(&tree.join("shared")));
        assert_eq!(bytes(&tree, &[]).expect("all"), mine + shared);
        assert_eq!(bytes(&tree, &[directory.path().join("gone"), other]).expect("own"), mine);
    }
}
