//! The walk over one upper and the directories below it.
//!
//! For a directory of the merged tree three things matter: what the upper has there, which lower directory its other
//! content comes from (`data`: none below an opaque directory, another place after a rename), and what was there before
//! (`base`: the same path below). Where `data` is `base`, only what the upper has can differ.
//! Overlay marks: a whiteout is a character device 0:0, `trusted.overlay.opaque` hides what lies below,
//! `trusted.overlay.redirect` says where a renamed directory was.

use super::{ChangeKind, ChangesError, Facts, FileKind, Owners};
use crate::beneath::Beneath;
use rustix::fs::{FileType, Stat};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const OPAQUE: &str = "trusted.overlay.opaque";
const REDIRECT: &str = "trusted.overlay.redirect";
/// Bytes compared at a time.
const COMPARE_BYTES: usize = 64 * 1024;
/// Where the count of what went with a deleted directory ends.
const BELOW_MAX: u64 = 1_000_000;

/// Where the content of a merged entry lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// In the upper, at this path.
    Upper(PathBuf),
    /// In a lower directory, at this path.
    Lower(PathBuf),
}

/// One difference.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    pub(crate) path: PathBuf,
    pub(crate) kind: ChangeKind,
    pub(crate) before: Option<Facts>,
    pub(crate) after: Option<Facts>,
    /// Of the content after; none for a deletion.
    pub(crate) source: Option<Source>,
    pub(crate) entries_below: u64,
}

/// An upper and what lies below it, open.
#[derive(Debug)]
pub(crate) struct Trees {
    pub(crate) upper: Beneath,
    pub(crate) lowers: Vec<Beneath>,
    owners: Owners,
}

/// A directory of the merged tree that may differ.
struct Place {
    path: PathBuf,
    in_upper: bool,
    data: Option<PathBuf>,
    base: bool,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ChangesError {
    let path = path.to_path_buf();
    move |source| ChangesError { path, source }
}

impl Trees {
    pub(crate) fn open(up: &Path, lowers: &[PathBuf], owners: Owners) -> Result<Self, ChangesError> {
        let upper = Beneath::open(up).map_err(at(up))?;
        let lowers = lowers.iter().map(|lower| Beneath::open(lower).map_err(at(lower))).collect::<Result<_, _>>()?;
        Ok(Self { upper, lowers, owners })
    }

    /// The topmost lower directory that has `path`, and what it has.
    pub(crate) fn lower(&self, path: &Path) -> io::Result<Option<(&Beneath, Stat)>> {
        for lower in &self.lowers {
            if let Some(stat) = lower.stat(path)? {
                return Ok(Some((lower, stat)));
            }
        }
        Ok(None)
    }

    fn lower_names(&self, path: &Path) -> io::Result<BTreeSet<OsString>> {
        let mut names = BTreeSet::new();
        for lower in &self.lowers {
            names.extend(lower.names(path)?);
        }
        Ok(names)
    }

    pub(crate) fn content_before(&self, item: &Item) -> io::Result<Vec<u8>> {
        match (item.before, self.lower(&item.path)?) {
            (Some(facts), Some((lower, _))) if facts.kind == FileKind::File => read(lower.file(&item.path)?),
            _ => Ok(Vec::new()),
        }
    }

    pub(crate) fn content_after(&self, item: &Item) -> io::Result<Vec<u8>> {
        match (&item.source, item.after.map(|facts| facts.kind)) {
            (Some(source), Some(FileKind::File)) => read(self.open_source(source)?),
            _ => Ok(Vec::new()),
        }
    }

    /// Opens a regular file's content.
    pub(crate) fn open_source(&self, source: &Source) -> io::Result<std::fs::File> {
        let (tree, path) = self.side(source)?;
        tree.file(path)
    }

    /// A symlink's target.
    pub(crate) fn link_target(&self, source: &Source) -> io::Result<PathBuf> {
        let (tree, path) = self.side(source)?;
        tree.read_link(path)
    }

    fn side<'a>(&'a self, source: &'a Source) -> io::Result<(&'a Beneath, &'a Path)> {
        match source {
            Source::Upper(path) => Ok((&self.upper, path)),
            Source::Lower(path) => match self.lower(path)? {
                Some((lower, _)) => Ok((lower, path)),
                None => Err(io::ErrorKind::NotFound.into()),
            },
        }
    }

    fn facts(&self, stat: &Stat, from_lower: bool) -> Facts {
        let kind = kind(stat);
        let (uid, gid) =
            if from_lower { self.owners.shown(stat.st_uid, stat.st_gid) } else { (stat.st_uid, stat.st_gid) };
        let size = if kind == FileKind::File { stat.st_size.cast_unsigned() } else { 0 };
        Facts { kind, size, mode: stat.st_mode & 0o7777, uid, gid }
    }
}

fn read(file: std::fs::File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(super::TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn kind(stat: &Stat) -> FileKind {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Special,
    }
}

fn is_whiteout(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
}

/// Calls `found` for every difference, in no particular order.
pub(crate) fn walk(trees: &Trees, found: &mut dyn FnMut(Item) -> Result<(), ChangesError>) -> Result<(), ChangesError> {
    let mut pending = vec![Place { path: PathBuf::new(), in_upper: true, data: Some(PathBuf::new()), base: true }];
    while let Some(place) = pending.pop() {
        let path = place.path.clone();
        let mut visit = Visit { trees, place, pending: &mut pending, items: Vec::new() };
        visit.run().map_err(at(&path))?;
        for item in visit.items {
            found(item)?;
        }
    }
    Ok(())
}

struct Visit<'a> {
    trees: &'a Trees,
    place: Place,
    pending: &'a mut Vec<Place>,
    items: Vec<Item>,
}

impl Visit<'_> {
    fn run(&mut self) -> io::Result<()> {
        let upper_names = if self.place.in_upper { self.trees.upper.names(&self.place.path)? } else { Vec::new() };
        let mut whiteouts = BTreeSet::new();
        let mut merged = BTreeSet::new();
        for name in upper_names {
            let path = self.place.path.join(&name);
            let Some(stat) = self.trees.upper.stat(&path)? else { continue };
            if is_whiteout(&stat) {
                whiteouts.insert(name);
            } else {
                self.entry(&name, &stat, Source::Upper(path))?;
                merged.insert(name);
            }
        }
        let moved = self.place.data.as_deref() != self.place.base.then_some(self.place.path.as_path());
        if !moved {
            return whiteouts.iter().try_for_each(|name| self.gone(name));
        }
        if let Some(data) = self.place.data.clone() {
            for name in self.trees.lower_names(&data)? {
                let path = data.join(&name);
                if merged.contains(&name) || whiteouts.contains(&name) {
                    continue;
                }
                if let Some((_, stat)) = self.trees.lower(&path)? {
                    self.entry(&name, &stat, Source::Lower(path))?;
                    merged.insert(name);
                }
            }
        }
        let before = if self.place.base { self.trees.lower_names(&self.place.path)? } else { BTreeSet::new() };
        before.difference(&merged).try_for_each(|name| self.gone(name))
    }

    /// Something that was there before and is not now.
    fn gone(&mut self, name: &OsStr) -> io::Result<()> {
        let path = self.place.path.join(name);
        let before = if self.place.base { self.trees.lower(&path)? } else { None };
        let Some((_, stat)) = before else { return Ok(()) };
        let facts = self.trees.facts(&stat, true);
        let entries_below = if facts.kind == FileKind::Directory { count_below(self.trees, &path)? } else { 0 };
        let (before, after, source) = (Some(facts), None, None);
        self.items.push(Item { path, kind: ChangeKind::Deleted, before, after, source, entries_below });
        Ok(())
    }

    fn entry(&mut self, name: &OsStr, stat: &Stat, source: Source) -> io::Result<()> {
        let path = self.place.path.join(name);
        let base = if self.place.base { self.trees.lower(&path)? } else { None };
        let before = base.map(|(_, stat)| self.trees.facts(&stat, true));
        let after = self.trees.facts(stat, matches!(source, Source::Lower(_)));
        let base_is_directory = before.is_some_and(|facts| facts.kind == FileKind::Directory);
        if after.kind == FileKind::Directory {
            self.descend(&path, name, &source, base_is_directory)?;
        }
        let Some(kind) = self.difference(&path, before, after, &source)? else { return Ok(()) };
        let replaced = base_is_directory && after.kind != FileKind::Directory;
        let entries_below = if replaced { count_below(self.trees, &path)? } else { 0 };
        self.items.push(Item { path, kind, before, after: Some(after), source: Some(source), entries_below });
        Ok(())
    }

    fn descend(&mut self, path: &Path, name: &OsStr, source: &Source, base: bool) -> io::Result<()> {
        let data = match source {
            Source::Lower(path) => Some(path.clone()),
            Source::Upper(upper) => self.data_of(upper, name)?,
        };
        self.pending.push(Place { path: path.to_path_buf(), in_upper: matches!(source, Source::Upper(_)), data, base });
        Ok(())
    }

    /// The lower directory that a directory of the upper is merged with.
    fn data_of(&self, upper: &Path, name: &OsStr) -> io::Result<Option<PathBuf>> {
        if self.trees.upper.directory_attribute(upper, OPAQUE)?.is_some_and(|value| value == b"y") {
            return Ok(None);
        }
        let redirect = self.trees.upper.directory_attribute(upper, REDIRECT)?;
        let candidate = match redirect.as_deref() {
            Some([b'/', rest @ ..]) => Some(PathBuf::from(OsStr::from_bytes(rest))),
            Some(other) => self.place.data.as_ref().map(|data| data.join(OsStr::from_bytes(other))),
            None => self.place.data.as_ref().map(|data| data.join(name)),
        };
        let Some(candidate) = candidate else { return Ok(None) };
        let found = self.trees.lower(&candidate)?;
        Ok(found.filter(|(_, stat)| kind(stat) == FileKind::Directory).map(|_| candidate))
    }

    fn difference(
        &self,
        path: &Path,
        before: Option<Facts>,
        after: Facts,
        source: &Source,
    ) -> io::Result<Option<ChangeKind>> {
        let Some(before) = before else { return Ok(Some(ChangeKind::Added)) };
        let same = before.kind == after.kind
            && before.size == after.size
            && match after.kind {
                FileKind::Directory => true,
                FileKind::File => self.same_content(path, source)?,
                FileKind::Symlink => {
                    self.trees.link_target(source)? == self.trees.link_target(&Source::Lower(path.into()))?
                }
                FileKind::Special => false,
            };
        if !same {
            return Ok(Some(ChangeKind::Changed));
        }
        let same_meta = (before.mode, before.uid, before.gid) == (after.mode, after.uid, after.gid);
        let has_mode = after.kind != FileKind::Symlink;
        Ok((has_mode && !same_meta).then_some(ChangeKind::Meta))
    }

    fn same_content(&self, path: &Path, source: &Source) -> io::Result<bool> {
        if *source == Source::Lower(path.to_path_buf()) {
            return Ok(true);
        }
        let (mut a, mut b) = (self.trees.open_source(source)?, self.trees.open_source(&Source::Lower(path.into()))?);
        let (mut left, mut right) = (vec![0; COMPARE_BYTES], vec![0; COMPARE_BYTES]);
        loop {
            let count = a.read(&mut left)?;
            if count == 0 {
                return Ok(b.read(&mut right)? == 0);
            }
            if b.read_exact(&mut right[..count]).is_err() || left[..count] != right[..count] {
                return Ok(false);
            }
        }
    }
}

/// How many entries lie below a lower directory, up to a limit.
fn count_below(trees: &Trees, path: &Path) -> io::Result<u64> {
    let mut count = 0;
    let mut pending = vec![path.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for name in trees.lower_names(&directory)? {
            count += 1;
            let below = directory.join(name);
            let is_directory = trees.lower(&below)?.is_some_and(|(_, stat)| kind(&stat) == FileKind::Directory);
            if is_directory && count < BELOW_MAX {
                pending.push(below);
            }
        }
    }
    Ok(count)
}
