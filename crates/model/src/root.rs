//! How a sandbox's file tree is put together: plain data, made by the node, carried out by the keeper.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How the pool keeps uppers and layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolDriver {
    /// Subvolumes and snapshots: inode numbers survive a capture.
    Btrfs,
    /// Copies: exact but for the inode numbers of files held open.
    Plain,
}

/// One overlay mount of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Names the pair `up`/`work` directories below the sandbox's upper: one path component, such as `root` or `usr`.
    pub name: String,
    /// Host directories, topmost first; mounted read-only.
    pub lower: Vec<PathBuf>,
    /// Absolute path inside the sandbox; `/` for the root tree, which comes first.
    pub target: PathBuf,
    /// Host owner shown as the sandbox's root inside; everything else keeps its number. 0 for system trees; for a
    /// user's directory, the owner's uid and gid, so that the sandbox's user owns it (mapped to uid/gid `owner_inside`).
    pub owner_outside: (u32, u32),
    /// The uid and gid inside that `owner_outside` appears as.
    pub owner_inside: (u32, u32),
}

/// One read-only or writable bind mount of the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Host path.
    pub source: PathBuf,
    /// Absolute path inside.
    pub target: PathBuf,
    /// No writes through this mount.
    pub read_only: bool,
    /// As in [`Tree::owner_outside`].
    pub owner_outside: (u32, u32),
    /// As in [`Tree::owner_inside`].
    pub owner_inside: (u32, u32),
}

/// Everything the file tree of one sandbox is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootSpec {
    /// Name of the image and its identity, compared before a restore.
    pub image: String,
    /// The sandbox's upper: holds `<tree>/up` and `<tree>/work` for each tree.
    pub upper: PathBuf,
    /// How `upper` is kept.
    pub driver: PoolDriver,
    /// Overlays, the root first.
    pub trees: Vec<Tree>,
    /// Bind mounts over them, in order.
    pub binds: Vec<Bind>,
    /// What the image says about the commands in it.
    #[serde(default)]
    pub defaults: ImageDefaults,
}

/// What an image says about the commands that run in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDefaults {
    /// Variables, under those of the sandbox.
    pub env: BTreeMap<String, String>,
    /// Where commands start; `None` is `/workspace`.
    pub workdir: Option<String>,
}
