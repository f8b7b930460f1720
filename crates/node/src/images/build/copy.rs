//! What `COPY` and `ADD` put into a sandbox: an archive with the chosen files under their new names.
//!
//! Archives go through as streams, entry by entry; nothing is unpacked on the host. Names come from whoever sent the
//! context or from a sandbox, so they are only ever written into another archive, which a sandbox's own `tar` unpacks.

use branchbox_dockerfile::glob::Glob;
use branchbox_dockerfile::ignore::Ignore;
use branchbox_layers::images::archive;
use std::ffi::OsStr;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use tar::{EntryType, Header};

/// Permission bits with set-id and sticky.
const MODE_MASK: u32 = 0o7777;

/// What to take, and what it becomes.
#[derive(Debug)]
pub(super) struct Selection {
    /// What is copied, each with the text it was read from.
    pub globs: Vec<(String, Glob)>,
    /// The folder that the archive's names are below.
    pub below: String,
    /// What of it is not there for this build.
    pub ignore: Ignore,
    /// Absolute.
    pub to: String,
    /// Files go into `to` under their own names.
    pub into_directory: bool,
    /// Uid and gid of all.
    pub owner: (u64, u64),
    /// Mode of all.
    pub mode: Option<u32>,
    /// Where archives are put to be unpacked; none: they stay as they are.
    pub unpack_in: Option<PathBuf>,
}

/// What became of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selected {
    /// For each glob, whether something was there.
    pub found: Vec<bool>,
    /// A folder's content was copied, so that `to` is one.
    pub is_directory: bool,
    /// Entries.
    pub entries: u64,
}

fn wrong(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.into())
}

/// A path as names, those that say nothing left out.
fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"." | b".."))
}

impl Selection {
    /// Where a path of the archive comes to lie, by which glob.
    fn place(&self, path: &[u8], is_directory: bool) -> Option<(usize, Vec<u8>, bool)> {
        let text = format!("{}/{}", self.below, String::from_utf8_lossy(path));
        let shown: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | "." | "..")).collect();
        let text = shown.join("/");
        if self.ignore.leaves_out(&text) {
            return None;
        }
        let (at, (rest, own)) =
            self.globs.iter().enumerate().find_map(|(at, (_, glob))| Some((at, glob.below(&text)?)))?;
        let mut to = self.to.as_bytes().to_vec();
        if rest.is_empty() && !is_directory && self.into_directory {
            join(&mut to, names(path).last().unwrap_or(own.as_bytes()));
        }
        // The bytes as they are, which the text may not show.
        let all: Vec<&[u8]> = names(path).collect();
        all[all.len().saturating_sub(rest.len())..].iter().for_each(|name| join(&mut to, name));
        Some((at, to, rest.is_empty()))
    }

    /// Writes what is chosen of an archive into another one.
    ///
    /// # Errors
    /// A reader or writer that fails; what cannot be said in the new archive.
    pub(super) fn copy(
        &self,
        from: impl Read,
        into: &mut tar::Builder<impl Write>,
        selected: &mut Selected,
    ) -> io::Result<()> {
        selected.found.resize(self.globs.len(), false);
        for entry in tar::Archive::new(from).entries()? {
            let mut entry = entry?;
            let path = entry.path_bytes().into_owned();
            let kind = entry.header().entry_type();
            let Some((at, to, is_whole)) = self.place(&path, kind.is_dir()) else { continue };
            selected.found[at] = true;
            if is_whole && kind.is_dir() {
                // `to` is made by whoever unpacks: one that is there keeps its mode.
                selected.is_directory = true;
                continue;
            }
            selected.is_directory |= !is_whole;
            selected.entries += 1;
            if let (true, true, Some(dir)) = (kind.is_file(), is_whole, &self.unpack_in) {
                self.add(&mut entry, &to, dir, into, selected)?;
                continue;
            }
            let mut header = self.header(entry.header())?;
            let link = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
            self.append(&mut header, &to, link.as_deref(), entry, into)?;
        }
        Ok(())
    }

    fn header(&self, from: &Header) -> io::Result<Header> {
        let mut header = Header::new_gnu();
        header.set_entry_type(match from.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => EntryType::Regular,
            other => other,
        });
        header.set_mode(self.mode.unwrap_or(from.mode()? & MODE_MASK));
        header.set_mtime(from.mtime()?);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        Ok(header)
    }

    fn append(
        &self,
        header: &mut Header,
        to: &[u8],
        link: Option<&[u8]>,
        mut entry: tar::Entry<'_, impl Read>,
        into: &mut tar::Builder<impl Write>,
    ) -> io::Result<()> {
        let path = relative(to);
        let path_text = || String::from_utf8_lossy(to).into_owned();
        match header.entry_type() {
            EntryType::Regular => {
                header.set_size(entry.size());
                into.append_data(header, path, &mut entry)
            }
            EntryType::Directory => {
                header.set_size(0);
                into.append_data(header, path, io::empty())
            }
            EntryType::Symlink => {
                header.set_size(0);
                let target = link.ok_or_else(|| wrong(format!("{} leads nowhere", path_text())))?;
                into.append_link(header, path, OsStr::from_bytes(target))
            }
            EntryType::Link => {
                header.set_size(0);
                let (_, target, _) = link
                    .and_then(|link| self.place(link, false))
                    .ok_or_else(|| wrong(format!("{} is a hard link to what is not copied", path_text())))?;
                into.append_link(header, path, relative(&target))
            }
            // Devices and pipes are no content.
            _ => Ok(()),
        }
    }

    /// A file that `ADD` names: unpacked if it is an archive.
    fn add(
        &self,
        entry: &mut tar::Entry<'_, impl Read>,
        to: &[u8],
        dir: &Path,
        into: &mut tar::Builder<impl Write>,
        selected: &mut Selected,
    ) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        io::copy(entry, &mut file)?;
        let unpacked = archive::open_tar(file.path()).map_err(|error| wrong(error.to_string()))?;
        let Some(unpacked) = unpacked else {
            let mut header = self.header(entry.header())?;
            let content = file.as_file_mut();
            content.rewind()?;
            header.set_size(content.metadata()?.len());
            return into.append_data(&mut header, relative(to), content);
        };
        selected.is_directory = true;
        for entry in tar::Archive::new(unpacked).entries()? {
            let entry = entry?;
            let mut below = self.to.as_bytes().to_vec();
            let path = entry.path_bytes().into_owned();
            if names(&path).next().is_none() {
                continue;
            }
            names(&path).for_each(|name| join(&mut below, name));
            let mut header = self.header(entry.header())?;
            // An archive's owners are its own.
            header.set_uid(entry.header().uid()?);
            header.set_gid(entry.header().gid()?);
            let link = entry.link_name_bytes().map(std::borrow::Cow::into_owned);
            if header.entry_type() == EntryType::Link {
                header.set_size(0);
                let mut target = self.to.as_bytes().to_vec();
                names(link.as_deref().unwrap_or_default()).for_each(|name| join(&mut target, name));
                into.append_link(&mut header, relative(&below), relative(&target))?;
            } else {
                self.append(&mut header, &below, link.as_deref(), entry, into)?;
            }
        }
        Ok(())
    }

    /// Writes one file of the request itself.
    ///
    /// # Errors
    /// A writer that fails.
    pub(super) fn copy_bytes(
        &self,
        file: (&str, u32, &[u8]),
        into: &mut tar::Builder<impl Write>,
        selected: &mut Selected,
    ) -> io::Result<()> {
        selected.found.resize(self.globs.len(), false);
        let (path, mode, content) = file;
        let Some((at, to, is_whole)) = self.place(path.as_bytes(), false) else { return Ok(()) };
        selected.found[at] = true;
        selected.is_directory |= !is_whole;
        selected.entries += 1;
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(self.mode.unwrap_or(mode));
        header.set_mtime(0);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_size(content.len() as u64);
        into.append_data(&mut header, relative(&to), content)
    }

    /// The first source that was not there.
    pub(super) fn missing(&self, selected: &Selected) -> Option<&str> {
        let found = |at: usize| selected.found.get(at).copied().unwrap_or(false);
        self.globs.iter().enumerate().find(|(at, _)| !found(*at)).map(|(_, (text, _))| text.as_str())
    }
}

fn join(path: &mut Vec<u8>, name: &[u8]) {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// Archives have no absolute names; they are unpacked at the root.
fn relative(path: &[u8]) -> PathBuf {
    let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    std::ffi::OsString::from_vec(path[start..].to_vec()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selection(globs: &[&str], to: &str, into_directory: bool) -> Selection {
        Selection {
            globs: globs.iter().map(|text| ((*text).to_owned(), Glob::new(text).expect("a glob"))).collect(),
            below: String::new(),
            ignore: Ignore::parse("*.log").expect("rules"),
            to: to.into(),
            into_directory,
            owner: (7, 8),
            mode: None,
            unpack_in: Some(std::env::temp_dir()),
        }
    }

    fn archive(entries: &[(&str, EntryType, &str)]) -> Vec<u8> {
        let mut made = tar::Builder::new(Vec::new());
        for (path, kind, text) in entries {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            if matches!(kind, EntryType::Symlink | EntryType::Link) {
                header.set_size(0);
                made.append_link(&mut header, path, text).expect("a link");
            } else {
                header.set_size(text.len() as u64);
                made.append_data(&mut header, path, text.as_bytes()).expect("an entry");
            }
        }
        made.into_inner().expect("an archive")
    }

    fn copied(selection: &Selection, from: &[u8]) -> (Vec<String>, Selected) {
        let (mut made, mut selected) = (tar::Builder::new(Vec::new()), Selected::default());
        selection.copy(from, &mut made, &mut selected).expect("copied");
        let made = made.into_inner().expect("an archive");
        let mut shown = Vec::new();
        for entry in tar::Archive::new(&made[..]).entries().expect("entries") {
            let mut entry = entry.expect("an entry");
            let (path, link) =
                (entry.path().expect("a path").display().to_string(), entry.link_name().expect("a link"));
            let link = link.map_or(String::new(), |link| format!(">{}", link.display()));
            let owner = entry.header().uid().expect("a uid");
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("text");
            shown.push(format!("{path}{link} {owner} {text}"));
        }
        (shown, selected)
    }

    #[test]
    fn files_and_the_content_of_folders_come_where_they_belong() {
        let from = archive(&[
            ("./", EntryType::Directory, ""),
            ("./a.txt", EntryType::Regular, "A"),
            ("./b.log", EntryType::Regular, "B"),
            ("./src/", EntryType::Directory, ""),
            ("./src/x", EntryType::Regular, "X"),
            ("./src/y", EntryType::Link, "./src/x"),
            ("./src/z", EntryType::Symlink, "../a.txt"),
        ]);
        let (shown, selected) = copied(&selection(&["src"], "/app", false), &from);
        assert_eq!(shown, ["app/x 7 X", "app/y>app/x 7 ", "app/z>../a.txt 7 "]);
        assert_eq!(selected, Selected { found: vec![true], is_directory: true, entries: 3 });
        assert_eq!(copied(&selection(&["a.txt"], "/app/b", false), &from).0, ["app/b 7 A"]);
        assert_eq!(copied(&selection(&["*.*"], "/app", true), &from).0, ["app/a.txt 7 A"]);
        let all = copied(&selection(&["."], "/", false), &from).0;
        assert_eq!(all, ["a.txt 7 A", "src 7 ", "src/x 7 X", "src/y>src/x 7 ", "src/z>../a.txt 7 "]);
        let nothing = selection(&["src", "b.log"], "/app", true);
        let (_, selected) = copied(&nothing, &from);
        assert_eq!(nothing.missing(&selected), Some("b.log"), "what is left out is not there");
    }

    #[test]
    fn archives_are_unpacked_by_add_and_climb_nowhere() {
        let inner = archive(&[("d/e", EntryType::Regular, "E")]);
        let mut raw = tar::Builder::new(Vec::new());
        for (path, content) in [("in.tar", &inner[..]), ("plain", b"P")] {
            let mut header = Header::new_gnu();
            header.set_mode(0o600);
            header.set_size(content.len() as u64);
            raw.append_data(&mut header, path, content).expect("an entry");
        }
        let from = raw.into_inner().expect("an archive");
        let (shown, _) = copied(&selection(&["in.tar", "plain"], "/opt", true), &from);
        assert_eq!(shown, ["opt/d/e 0 E", "opt/plain 7 P"]);
        let place = selection(&["."], "/opt", true).place(b"../../etc/x", false).map(|(_, to, _)| to);
        assert_eq!(place.as_deref(), Some(&b"/opt/etc/x"[..]));
    }
}
