//! What a sandbox needs and an image lacks: the user `runtime` and its home, `sudo`, mount points, a host name.
//!
//! Made once for each image, as the upper of an overlay over the image's own layers: so every path is looked at as a
//! sandbox would see it, and links of the image lead where they lead there. Nothing of the image itself is changed. The
//! image's own `/etc/passwd` and its like are kept, with our user put in before others of the same number.

use super::ImageError;
use crate::assemble::assemble;
use crate::host::{HostError, accounts, allow, build_once, tools};
use crate::pool::Pool;
use branchbox_model::{IdRange, RootSpec, Tree};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid};
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Grows when what is put on top of an image changes.
const FORMAT: u32 = 1;
/// Characters of a digest in a directory's name.
const NAME_CHARS: usize = 32;
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Directories that are made where they are missing: path, mode, owner.
const DIRECTORIES: &[(&str, u32, u32)] = &[
    ("dev", 0o755, 0),
    ("dev/pts", 0o755, 0),
    ("dev/shm", 0o1777, 0),
    ("dev/mqueue", 0o1777, 0),
    ("etc", 0o755, 0),
    ("proc", 0o555, 0),
    ("root", 0o700, 0),
    ("run", 0o755, 0),
    ("run/lock", 0o1777, 0),
    ("sys", 0o555, 0),
    ("tmp", 0o1777, 0),
    ("usr", 0o755, 0),
    ("usr/bin", 0o755, 0),
    ("var", 0o755, 0),
    ("var/tmp", 0o1777, 0),
    (WORKSPACE, 0o755, accounts::RUNTIME_ID),
    (".branchbox", 0o755, 0),
];
const WORKSPACE: &str = "workspace";
/// Files of ours that say what is true of every sandbox, whatever the image says.
const OURS: &[&str] = &["etc/hostname", "etc/hosts", "etc/resolv.conf"];

impl From<HostError> for ImageError {
    fn from(error: HostError) -> Self {
        let path = match &error {
            HostError::Look { path, .. } | HostError::Copy { path, .. } | HostError::TooMuch { path } => path.clone(),
        };
        Self::File { path, source: io::Error::other(error) }
    }
}

/// What the directories here begin with.
pub(super) const PREFIX: &str = "dress-";

/// The directory of what is put on top of an image.
pub(super) fn name(identity: &str) -> String {
    let key = blake3::hash(format!("{FORMAT} {identity}").as_bytes());
    format!("{PREFIX}{}", &key.to_hex()[..NAME_CHARS])
}

/// The layers to put on top, topmost first.
pub(super) fn dress(pool: &Pool, identity: &str, image: Tree, guest_exe: &Path) -> Result<[PathBuf; 2], ImageError> {
    let images = pool.images_dir();
    let tools = tools(&images, guest_exe)?;
    let dir = images.join(name(identity));
    build_once(&images, &dir, |dir| {
        let spec = RootSpec {
            image: identity.to_owned(),
            upper: dir.to_path_buf(),
            driver: pool.driver(),
            trees: vec![image],
            binds: Vec::new(),
            defaults: branchbox_model::ImageDefaults::default(),
        };
        let mounts = assemble(&spec, IdRange { base: 0 })?;
        let Some(mount) = mounts.into_iter().next() else {
            return Err(ImageError::Unfit { problem: "it has no root".into() });
        };
        put_on(&Root { fd: mount.fd })
    })?;
    // The tools come first: a directory that was made below would hide theirs.
    Ok([tools, dir.join("root").join("up")])
}

fn put_on(root: &Root) -> Result<(), ImageError> {
    let failed =
        |path: &'static str| move |source: io::Error| ImageError::Unfit { problem: format!("/{path}: {source}") };
    for (path, mode, owner) in DIRECTORIES {
        root.directory(path, *mode, *owner).map_err(failed(path))?;
    }
    if root.open_exact("usr/bin").is_err() {
        return Err(ImageError::Unfit { problem: "/usr/bin is a link".into() });
    }
    // The home of whoever works here.
    root.own(WORKSPACE, accounts::RUNTIME_ID).map_err(failed(WORKSPACE))?;
    for path in allow::EMPTY_FILES {
        root.missing(path, "", 0o644).map_err(failed(path))?;
    }
    for (path, target) in allow::SYMLINKS {
        root.missing_link(path, target).map_err(failed(path))?;
    }
    for (path, content) in allow::OUR_FILES {
        let written =
            if OURS.contains(path) { root.replace(path, content) } else { root.missing(path, content, 0o644) };
        written.map_err(failed(path))?;
    }
    let shell = if root.exists("bin/bash") { "/bin/bash" } else { "/bin/sh" };
    for (path, change) in accounts::ADDITIONS {
        let before = root.read(path).map_err(failed(path))?;
        if before.is_none() && path.ends_with("shadow") {
            continue;
        }
        root.replace(path, &change(&before.unwrap_or_default(), shell)).map_err(failed(path))?;
    }
    Ok(())
}

/// The merged tree, every path resolved in it.
struct Root {
    fd: OwnedFd,
}

impl Root {
    fn open(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&self.fd, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Through no link.
    fn open_exact(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), resolve)
    }

    fn exists(&self, path: &str) -> bool {
        self.open(path, OFlags::PATH).is_ok()
    }

    fn parent<'a>(&self, path: &'a str) -> io::Result<(OwnedFd, &'a str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or((".", path));
        Ok((self.open(parent, OFlags::DIRECTORY)?, name))
    }

    fn directory(&self, path: &str, mode: u32, owner: u32) -> io::Result<()> {
        if self.open(path, OFlags::DIRECTORY).is_ok() {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o700))?;
        let made = self.open(path, OFlags::DIRECTORY)?;
        rustix::fs::fchown(&made, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
        Ok(rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?)
    }

    fn own(&self, path: &str, owner: u32) -> io::Result<()> {
        let fd = self.open(path, OFlags::DIRECTORY)?;
        if rustix::fs::fstat(&fd)?.st_uid != owner {
            rustix::fs::fchown(&fd, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
        }
        Ok(())
    }

    fn is_there(&self, path: &str) -> io::Result<bool> {
        let (parent, name) = self.parent(path)?;
        match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn missing(&self, path: &str, content: &str, mode: u32) -> io::Result<()> {
        if self.is_there(path)? { Ok(()) } else { self.create(path, content, mode, (0, 0)) }
    }

    fn missing_link(&self, path: &str, target: &str) -> io::Result<()> {
        if self.is_there(path)? {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::symlinkat(target, &parent, name)?)
    }

    /// Puts a file where something else may be; owner and mode of a file stay.
    fn replace(&self, path: &str, content: &str) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let (mode, owner) = match rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() => {
                (stat.st_mode & 0o777, (stat.st_uid, stat.st_gid))
            }
            _ => (0o644, (0, 0)),
        };
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.create(path, content, mode, owner),
            Err(error) => Err(error.into()),
        }
    }

    fn create(&self, path: &str, content: &str, mode: u32, owner: (u32, u32)) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(0o600))?;
        let mut file = std::fs::File::from(fd);
        file.write_all(content.as_bytes())?;
        rustix::fs::fchown(&file, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)))?;
        Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?)
    }

    /// A small text, if the file is there.
    fn read(&self, path: &str) -> io::Result<Option<String>> {
        let fd = match self.open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let file = std::fs::File::from(fd);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::other("it is too large"));
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}
