//! Entries below a directory.

use super::entries::entry;
use super::glob::Glob;
use branchbox_protocol::guest::{FileEntry, FileReply};
use std::io;
use std::path::{Path, PathBuf};

/// Deepest listing.
const DEPTH_MAX: u32 = 10;
/// Most entries of a listing.
const ENTRIES_MAX: usize = 2000;
/// Most entries looked at for one, matching or not.
const SEEN_MAX: usize = 200_000;

/// Which entries.
#[derive(Debug)]
pub struct Filter<'a> {
    /// Levels, from 1.
    pub depth: u32,
    /// Also those whose name, or a directory above, begins with a dot.
    pub hidden: bool,
    /// A pattern for the path below the listed directory, or without a slash for the name.
    pub glob: Option<&'a str>,
    /// At most so many.
    pub limit: u32,
}

struct Walk<'a> {
    base: &'a Path,
    hidden: bool,
    glob: Option<Glob>,
    limit: usize,
    seen: usize,
    entries: Vec<FileEntry>,
    truncated: bool,
}

/// Lists; in each directory by name, a directory before what is in it. A directory below that cannot be read, or went
/// away meanwhile, is shown and not entered.
pub fn list(path: &str, filter: &Filter<'_>) -> io::Result<FileReply> {
    let base = Path::new(path);
    let mut walk = Walk {
        base,
        hidden: filter.hidden,
        glob: filter.glob.map(Glob::new),
        limit: usize::try_from(filter.limit).unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX),
        seen: 0,
        entries: Vec::new(),
        truncated: false,
    };
    let names = walk.names(base)?;
    walk.enter(names, filter.depth.clamp(1, DEPTH_MAX));
    Ok(FileReply::Entries { entries: walk.entries, truncated: walk.truncated })
}

impl Walk<'_> {
    fn names(&mut self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let mut names = Vec::new();
        for found in std::fs::read_dir(directory)? {
            if self.seen == SEEN_MAX {
                self.truncated = true;
                break;
            }
            self.seen += 1;
            let Ok(found) = found else { continue };
            if self.hidden || !found.file_name().as_encoded_bytes().starts_with(b".") {
                names.push(found.path());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn enter(&mut self, paths: Vec<PathBuf>, depth: u32) {
        for path in paths {
            let Ok(facts) = std::fs::symlink_metadata(&path) else { continue };
            let below = path.strip_prefix(self.base).unwrap_or(&path).to_string_lossy();
            if self.glob.as_ref().is_none_or(|glob| glob.matches(&below)) {
                if self.entries.len() == self.limit {
                    self.truncated = true;
                    return;
                }
                self.entries.push(entry(&path, &facts));
            }
            if depth > 1
                && facts.is_dir()
                && let Ok(names) = self.names(&path)
            {
                self.enter(names, depth - 1);
                if self.truncated {
                    return;
                }
            }
        }
    }
}
