//! Which files went with a removed directory.
//!
//! The upper of a step knows only that the directory is gone; what was in it lies, untouched, in the user's directory.
//! So this reads the user's own files, never the step's.

use super::report::{ChangeKind, Changed};
use branchbox_layers::changes::{CHANGES_MAX_DEFAULT, is_binary, text_stat};
use std::path::{Path, PathBuf};

/// Where counting ends.
const ENTRIES_MAX: u64 = 1_000_000;
/// Largest file whose lines are counted, and how many files' are: the list is for reading.
const TEXT_BYTES_MAX: u64 = 256 * 1024;
const TEXT_FILES_MAX: usize = 50;

/// The files below `removed` (relative to `top`), by name; all are counted in `total`, the first are returned.
pub fn below(top: &Path, removed: &Path, total: &mut u64) -> Vec<Changed> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut seen = 0;
    let mut left = vec![removed.to_path_buf()];
    while let Some(directory) = left.pop().filter(|_| seen < ENTRIES_MAX) {
        let entries: Vec<_> = fs_err::read_dir(top.join(&directory)).into_iter().flatten().flatten().collect();
        // An empty directory is itself what went.
        if entries.is_empty() {
            *total += 1;
            found.push(directory.join(""));
        }
        for entry in entries {
            seen += 1;
            let path = directory.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                left.push(path);
            } else {
                *total += 1;
                found.push(path);
            }
        }
    }
    found.sort();
    found.truncate(CHANGES_MAX_DEFAULT);
    found.iter().enumerate().map(|(index, path)| one(top, path, index < TEXT_FILES_MAX)).collect()
}

fn one(top: &Path, path: &Path, count_lines: bool) -> Changed {
    let facts = fs_err::symlink_metadata(top.join(path)).ok().filter(std::fs::Metadata::is_file);
    let size = facts.map(|facts| facts.len());
    let small = size.is_some_and(|size| count_lines && size <= TEXT_BYTES_MAX);
    let content = if small { fs_err::read(top.join(path)).ok() } else { None };
    let lines = content.filter(|content| !is_binary(content)).and_then(|content| text_stat(&content, b""));
    Changed {
        kind: ChangeKind::Deleted,
        path: path.display().to_string(),
        added: lines.map(|lines| lines.0),
        removed: lines.map(|lines| lines.1),
        size_before: size,
        size_after: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_below_counts_and_empty_directories_too() {
        let top = tempfile::tempdir().expect("temporary directory");
        fs_err::create_dir_all(top.path().join("a/b")).expect("directory");
        fs_err::create_dir_all(top.path().join("a/empty")).expect("directory");
        fs_err::write(top.path().join("a/b/c.txt"), "1\n2\n").expect("file");
        fs_err::write(top.path().join("a/d"), [0_u8, 1]).expect("file");
        let mut total = 0;
        let gone = below(top.path(), Path::new("a"), &mut total);
        let told: Vec<_> = gone.iter().map(|changed| (changed.path.as_str(), changed.removed)).collect();
        assert_eq!(told, [("a/b/c.txt", Some(2)), ("a/d", None), ("a/empty/", None)]);
        assert_eq!(total, 3);
    }
}
