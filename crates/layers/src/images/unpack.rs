//! Putting the entries of a tar archive into a directory, when the archive is hostile.
//!
//! Every path is resolved by the kernel inside the directory (`openat2` with `RESOLVE_IN_ROOT`): a link in it leads to what
//! it would lead to if the directory were the root, and nothing outside is ever touched. What is there already is
//! replaced, as a later layer of an image does. Kept: content, numbers of owners, modes, times, hard links, devices,
//! capabilities and `user.` attributes; attributes that an overlay or a security module would believe are not taken over.

use super::{ImageError, sparse};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, BufWriter, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use tar::{Archive, EntryType};

/// Entries of one archive: four times what the largest images have.
const ENTRIES_MAX: u64 = 4_000_000;
/// Components of a path.
const DEPTH_MAX: usize = 1024;
/// Ids that a sandbox has.
const ID_MAX: u64 = 65_535;
/// One extended attribute.
const ATTRIBUTE_BYTES_MAX: usize = 64 * 1024;
const COPY_BYTES: usize = 256 * 1024;
/// A name that says: the rest of it is deleted (OCI image specification, "Whiteouts").
const WHITEOUT: &str = ".wh.";
/// A name that says: what lower layers have in this directory is deleted.
const OPAQUE: &str = ".wh..wh..opq";

/// What names that begin with `.wh.` are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whiteouts {
    /// Deletions.
    Apply,
    /// Names like others.
    Ignore,
}

/// What was unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unpacked {
    /// Entries.
    pub entries: u64,
    /// Bytes of regular files.
    pub bytes: u64,
}

/// Unpacks everything that `archive` holds into `root`. `room` is called with each number of bytes before they are written.
pub(super) fn unpack(
    archive: impl Read,
    root: &Path,
    whiteouts: Whiteouts,
    room: &mut dyn FnMut(u64) -> Result<(), ImageError>,
) -> Result<Unpacked, ImageError> {
    let bad = |problem: String| ImageError::Archive { problem };
    let unreadable = |error: io::Error| bad(error.to_string());
    let directory = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, root, directory, Mode::empty());
    let root = opened.map_err(|errno| ImageError::file(root)(errno.into()))?;
    let mut target =
        Target { root, parent: None, made: HashSet::new(), times: Vec::new(), whiteouts, doomed: doomed_name() };
    let mut archive = Archive::new(archive);
    let mut done = Unpacked::default();
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        done.entries += 1;
        if done.entries > ENTRIES_MAX {
            return Err(bad(format!("it has more than {ENTRIES_MAX} entries")));
        }
        let extended = Extended::of(&mut entry).map_err(unreadable)?;
        let path = clean(extended.name.as_deref().unwrap_or(&entry.path_bytes())).map_err(bad)?;
        let shown = path.display().to_string();
        if entry.header().entry_type().is_file() {
            room(entry.size())?;
            done.bytes += entry.size();
        }
        target.put(&mut entry, &extended, &path).map_err(|source| ImageError::Entry { path: shown, source })?;
    }
    target.finish().map_err(|source| ImageError::Entry { path: "/".into(), source })?;
    Ok(done)
}

fn doomed_name() -> String {
    let random = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), 0);
    format!(".removed-{random:016x}")
}

/// The path as one inside the root; empty for the root itself.
fn clean(bytes: &[u8]) -> Result<PathBuf, String> {
    let mut path = PathBuf::new();
    for component in Path::new(OsStr::from_bytes(bytes)).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir => {
                return Err(format!("the path {} climbs", String::from_utf8_lossy(bytes).escape_debug()));
            }
            Component::Prefix(_) => {}
        }
    }
    if path.components().count() > DEPTH_MAX || bytes.contains(&0) {
        return Err(format!("a path of {} bytes is deeper than {DEPTH_MAX} or holds a NUL", bytes.len()));
    }
    Ok(path)
}

struct Target {
    root: OwnedFd,
    /// The last parent and its descriptor: neighbours come one after the other.
    parent: Option<(PathBuf, OwnedFd)>,
    /// What this archive has put here, for deletions of the rest.
    made: HashSet<PathBuf>,
    /// Of directories, set last: whatever comes into one changes its time.
    times: Vec<(PathBuf, Timestamps)>,
    whiteouts: Whiteouts,
    /// What is being removed is called this.
    doomed: String,
}

impl Target {
    fn open(&self, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        rustix::fs::openat2(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// The directory that `path` names, made if it is not there.
    fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.open(path, OFlags::DIRECTORY) {
            Err(Errno::NOENT) => {}
            opened => return Ok(opened?),
        }
        let mut known = self.open(Path::new(""), OFlags::DIRECTORY)?;
        let mut prefix = PathBuf::new();
        for component in path.components() {
            prefix.push(component);
            known = match self.open(&prefix, OFlags::DIRECTORY) {
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&known, component.as_os_str(), Mode::from_raw_mode(0o755))?;
                    self.open(&prefix, OFlags::DIRECTORY)?
                }
                opened => opened?,
            };
        }
        Ok(known)
    }

    fn parent_of(&mut self, path: &Path) -> io::Result<OwnedFd> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if let Some((known, fd)) = &self.parent
            && known == parent
        {
            return fd.try_clone();
        }
        let fd = self.directory(parent)?;
        self.parent = Some((parent.to_owned(), fd.try_clone()?));
        Ok(fd)
    }

    fn put<R: Read>(&mut self, entry: &mut tar::Entry<'_, R>, extended: &Extended, path: &Path) -> io::Result<()> {
        let kind = entry.header().entry_type();
        let Some(name) = path.file_name() else {
            // The root itself has attributes, and nothing else of it can be given.
            return if kind.is_dir() { self.dress_directory(entry, extended, path) } else { Ok(()) };
        };
        if self.whiteouts == Whiteouts::Apply
            && let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT.as_bytes())
        {
            return self.delete(path, name, OsStr::from_bytes(hidden));
        }
        let parent = self.parent_of(path)?;
        match kind {
            EntryType::Directory => {
                self.make_directory(&parent, name)?;
                self.dress_directory(entry, extended, path)?;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                self.clear(&parent, name)?;
                write_file(&parent, name, entry, extended)?;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().ok_or(Errno::INVAL)?;
                let target = clean(&target).map_err(io::Error::other)?;
                self.link(&target, &parent, name)?;
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or(Errno::INVAL)?.into_owned();
                self.clear(&parent, name)?;
                rustix::fs::symlinkat(&target[..], &parent, name)?;
                finish_by_name(&parent, name, entry, true)?;
            }
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                self.clear(&parent, name)?;
                make_node(&parent, name, entry, kind)?;
            }
            EntryType::XGlobalHeader => return Ok(()),
            other => {
                let problem = format!("an entry of the kind {:?} is not known", char::from(other.as_byte()));
                return Err(io::Error::other(problem));
            }
        }
        if self.whiteouts == Whiteouts::Apply {
            self.made.insert(path.to_owned());
        }
        Ok(())
    }

    fn make_directory(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => return Ok(()),
            Ok(_) => self.clear(parent, name)?,
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o700))?)
    }

    fn dress_directory<R: Read>(
        &mut self,
        entry: &tar::Entry<'_, R>,
        extended: &Extended,
        path: &Path,
    ) -> io::Result<()> {
        let fd = self.open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        finish(&fd, entry, extended)?;
        self.times.push((path.to_owned(), times(entry)));
        Ok(())
    }

    /// Removes what stands where something else is to be.
    fn clear(&mut self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
        // The parent that is kept open may lie in what goes.
        self.parent = None;
        self.remove_tree(parent, name)
    }

    /// Below a name that the archive cannot know: the removal moves what is deep beside it.
    fn remove_tree(&self, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        rustix::fs::renameat(parent, name, &self.root, self.doomed.as_str())?;
        crate::copy::remove_tree(&self.root, &self.doomed)
    }

    fn link(&mut self, target: &Path, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let file = self.open(target, OFlags::PATH | OFlags::NOFOLLOW)?;
        let (stat, there) = (rustix::fs::fstat(&file)?, rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW));
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (stat.st_dev, stat.st_ino)) {
            return Ok(());
        }
        self.clear(parent, name)?;
        Ok(rustix::fs::linkat(&file, c"", parent, name, AtFlags::EMPTY_PATH)?)
    }

    fn delete(&mut self, path: &Path, name: &OsStr, hidden: &OsStr) -> io::Result<()> {
        let parent = path.parent().unwrap_or(Path::new(""));
        let directory = match self.open(parent, OFlags::DIRECTORY) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            opened => opened?,
        };
        if name == OPAQUE {
            self.parent = None;
            return self.delete_older(parent, &directory);
        }
        // Others of this beginning are notes of one old driver about itself.
        if hidden.as_bytes().starts_with(WHITEOUT.as_bytes()) || hidden.is_empty() {
            return Ok(());
        }
        self.clear(&directory, hidden)
    }

    /// Deletes what this archive has not put here itself.
    fn delete_older(&self, path: &Path, directory: &OwnedFd) -> io::Result<()> {
        let mut pending = vec![(path.to_owned(), directory.try_clone()?)];
        while let Some((path, directory)) = pending.pop() {
            for name in crate::copy::names(&directory)? {
                let name = OsStr::from_bytes(name.to_bytes());
                let below = path.join(name);
                if !self.made.contains(&below) {
                    match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
                        Err(Errno::ISDIR | Errno::PERM) => self.remove_tree(&directory, name)?,
                        other => other?,
                    }
                    continue;
                }
                match self.open(&below, OFlags::DIRECTORY | OFlags::NOFOLLOW) {
                    Ok(fd) => pending.push((below, fd)),
                    Err(Errno::NOTDIR | Errno::LOOP) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn finish(self) -> io::Result<()> {
        for (path, times) in self.times.iter().rev() {
            match self.open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW) {
                Ok(fd) => rustix::fs::futimens(&fd, times)?,
                // Replaced by a later entry.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn write_file<R: Read>(
    parent: &OwnedFd,
    name: &OsStr,
    entry: &mut tar::Entry<'_, R>,
    extended: &Extended,
) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?;
    let mut file = std::fs::File::from(fd);
    match extended.sparse_bytes {
        Some(size) => sparse::write(entry, &mut file, size)?,
        None => drop(io::copy(entry, &mut BufWriter::with_capacity(COPY_BYTES, &mut file))?),
    }
    let fd = OwnedFd::from(file);
    finish(&fd, entry, extended)?;
    Ok(rustix::fs::futimens(&fd, &times(entry))?)
}

fn make_node<R: Read>(
    parent: &OwnedFd,
    name: &OsStr,
    entry: &mut tar::Entry<'_, R>,
    kind: EntryType,
) -> io::Result<()> {
    let number = |part: io::Result<Option<u32>>| part.map(Option::unwrap_or_default);
    let (major, minor) = match kind {
        EntryType::Fifo => (0, 0),
        _ => (number(entry.header().device_major())?, number(entry.header().device_minor())?),
    };
    let kind = match kind {
        EntryType::Char => FileType::CharacterDevice,
        EntryType::Block => FileType::BlockDevice,
        _ => FileType::Fifo,
    };
    // An overlay would take this one for a deletion.
    if kind == FileType::CharacterDevice && (major, minor) == (0, 0) {
        return Ok(());
    }
    let device = if kind == FileType::Fifo { 0 } else { rustix::fs::makedev(major, minor) };
    rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(0o600), device)?;
    finish_by_name(parent, name, entry, false)
}

fn owner<R: Read>(entry: &tar::Entry<'_, R>) -> io::Result<(Uid, Gid)> {
    let (uid, gid) = (entry.header().uid()?, entry.header().gid()?);
    match (u32::try_from(uid), u32::try_from(gid)) {
        (Ok(u), Ok(g)) if uid <= ID_MAX && gid <= ID_MAX => Ok((Uid::from_raw(u), Gid::from_raw(g))),
        _ => Err(io::Error::other(format!("it belongs to {uid}:{gid}, and a sandbox has ids up to {ID_MAX}"))),
    }
}

fn mode<R: Read>(entry: &tar::Entry<'_, R>) -> io::Result<Mode> {
    Ok(Mode::from_raw_mode(entry.header().mode()? & 0o7777))
}

fn times<R: Read>(entry: &tar::Entry<'_, R>) -> Timestamps {
    let seconds = entry.header().mtime().ok().and_then(|seconds| i64::try_from(seconds).ok()).unwrap_or(0);
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

/// Owner first: a change of owner takes capabilities and set-id bits away.
fn finish<R: Read>(fd: &OwnedFd, entry: &tar::Entry<'_, R>, extended: &Extended) -> io::Result<()> {
    let (uid, gid) = owner(entry)?;
    rustix::fs::fchown(fd, Some(uid), Some(gid))?;
    for (name, value) in &extended.attributes {
        rustix::fs::fsetxattr(fd, name.as_str(), value, XattrFlags::empty())?;
    }
    Ok(rustix::fs::fchmod(fd, mode(entry)?)?)
}

fn finish_by_name<R: Read>(parent: &OwnedFd, name: &OsStr, entry: &tar::Entry<'_, R>, is_link: bool) -> io::Result<()> {
    let (uid, gid) = owner(entry)?;
    rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    if !is_link {
        rustix::fs::chmodat(parent, name, mode(entry)?, AtFlags::empty())?;
    }
    Ok(rustix::fs::utimensat(parent, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// What the extended header of an entry says that we need.
#[derive(Default)]
struct Extended {
    /// The attributes that are taken over.
    attributes: Vec<(String, Vec<u8>)>,
    /// The name of a sparse file, whose own header bears another.
    name: Option<Vec<u8>>,
    /// A sparse file's size with its holes.
    sparse_bytes: Option<u64>,
}

impl Extended {
    fn of<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Self> {
        let mut found = Self::default();
        let Some(extensions) = entry.pax_extensions()? else { return Ok(found) };
        let (mut format, mut is_sparse) = ((None, None), false);
        for extension in extensions {
            let extension = extension?;
            let (key, value) = (extension.key_bytes(), extension.value_bytes());
            let number = || std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            match key {
                b"GNU.sparse.major" => format.0 = number(),
                b"GNU.sparse.minor" => format.1 = number(),
                b"GNU.sparse.name" => found.name = Some(value.to_owned()),
                b"GNU.sparse.realsize" => found.sparse_bytes = number(),
                _ => {}
            }
            is_sparse |= key.starts_with(b"GNU.sparse.");
            let name = key.strip_prefix(b"SCHILY.xattr.").and_then(|name| std::str::from_utf8(name).ok());
            if let Some(name) = name
                && (name == "security.capability" || name.starts_with("user."))
                && value.len() <= ATTRIBUTE_BYTES_MAX
            {
                found.attributes.push((name.to_owned(), value.to_owned()));
            }
        }
        if is_sparse && (format != (Some(1), Some(0)) || found.sparse_bytes.is_none()) {
            return Err(io::Error::other("a sparse file is stored in a form that is not known: use GNU's 1.0"));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_inside() {
        for (path, inside) in [("./", ""), ("/etc//passwd", "etc/passwd"), ("./a/./b/", "a/b"), (".", "")] {
            assert_eq!(clean(path.as_bytes()), Ok(PathBuf::from(inside)), "{path}");
        }
        for path in ["../x", "a/../../x", "/.."] {
            assert!(clean(path.as_bytes()).is_err(), "{path}");
        }
        assert!(clean("a/".repeat(2000).as_bytes()).is_err());
        assert!(clean(b"a\0b").is_err());
    }
}
