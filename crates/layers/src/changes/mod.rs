//! What an upper changed of what lies below it, for people, models and writing back.
//!
//! It costs by change: only directories that the upper has are looked at, except below a directory that was moved or
//! replaced as a whole. Files are compared by content, so a rewritten file with the same bytes is no change; changed
//! times alone are none either. The list has a limit and says how many more there are.

mod text;
mod walk;

pub use text::{is_binary, text_stat};
pub(crate) use walk::{Item, Source, Trees, walk};

use std::io;
use std::path::{Path, PathBuf};

/// Most changes listed when nothing else is said.
pub const CHANGES_MAX_DEFAULT: usize = 2_000;
/// Largest file whose lines are counted.
pub const TEXT_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes read for counting lines in one list.
const TEXT_BYTES_TOTAL_MAX: u64 = 64 * 1024 * 1024;

/// What became of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there before.
    Added,
    /// Its content, target or kind is another.
    Changed,
    /// It is gone.
    Deleted,
    /// Only mode or owner are others.
    Meta,
}

/// What a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink.
    Symlink,
    /// A device, pipe or socket.
    Special,
}

/// One side of a change; ids as the sandbox sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What it is.
    pub kind: FileKind,
    /// Bytes; 0 for what has no content.
    pub size: u64,
    /// Permission bits with set-id and sticky bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// One changed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Relative to the tree.
    pub path: PathBuf,
    /// What became of it.
    pub kind: ChangeKind,
    /// As it was.
    pub before: Option<Facts>,
    /// As it is.
    pub after: Option<Facts>,
    /// For a deleted directory: entries below it that went with it.
    pub entries_below: u64,
    /// Lines added and removed, for small text files.
    pub lines: Option<(u64, u64)>,
    /// Whether the file looks like no text; unknown for what is no small file.
    pub is_binary: Option<bool>,
}

/// The changes of one tree, sorted by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// At most as many as asked for.
    pub list: Vec<Change>,
    /// How many more there are.
    pub more: u64,
}

/// Which ids on disk below stand for which inside: the same pairs as in `model::Tree`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Owners {
    /// Owner on disk.
    pub outside: (u32, u32),
    /// Owner inside.
    pub inside: (u32, u32),
}

impl Owners {
    /// As an id on disk below appears inside; the two ids are swapped, the rest are the same.
    #[must_use]
    pub fn shown(self, uid: u32, gid: u32) -> (u32, u32) {
        let swap = |id: u32, outside: u32, inside: u32| match id {
            id if id == outside => inside,
            id if id == inside => outside,
            id => id,
        };
        (swap(uid, self.outside.0, self.inside.0), swap(gid, self.outside.1, self.inside.1))
    }
}

/// Why changes could not be found out.
#[derive(Debug, thiserror::Error)]
#[error("cannot compare {}", path.display())]
pub struct ChangesError {
    /// Relative to the tree, or a layer's directory.
    pub path: PathBuf,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

/// Lists what the upper directory `up` (of one tree) changed of `lowers` (topmost first), at most `limit` paths.
///
/// # Errors
/// [`ChangesError`] for what cannot be read.
pub fn changes(up: &Path, lowers: &[PathBuf], owners: Owners, limit: usize) -> Result<Changes, ChangesError> {
    let trees = Trees::open(up, lowers, owners)?;
    let mut found = Changes::default();
    let mut budget = TEXT_BYTES_TOTAL_MAX;
    walk(&trees, &mut |item| {
        if found.list.len() < limit {
            found.list.push(describe(&trees, item, &mut budget));
        } else {
            found.more += 1;
        }
        Ok(())
    })?;
    found.list.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn describe(trees: &Trees, item: Item, budget: &mut u64) -> Change {
    let small = |facts: &Option<Facts>| facts.is_none_or(|f| f.kind == FileKind::File && f.size <= TEXT_BYTES_MAX);
    let size = |facts: &Option<Facts>| facts.map_or(0, |f| f.size);
    let bytes = size(&item.before) + size(&item.after);
    let content_differs = item.kind != ChangeKind::Meta;
    let (mut lines, mut binary) = (None, None);
    if content_differs && small(&item.before) && small(&item.after) && bytes <= *budget {
        *budget -= bytes;
        if let (Ok(before), Ok(after)) = (trees.content_before(&item), trees.content_after(&item)) {
            binary = Some(is_binary(&before) || is_binary(&after));
            lines = text_stat(&before, &after);
        }
    }
    Change {
        path: item.path,
        kind: item.kind,
        before: item.before,
        after: item.after,
        entries_below: item.entries_below,
        lines,
        is_binary: binary,
    }
}
