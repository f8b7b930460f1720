//! Images made of other things than this machine: their files in the pool, shared by all sandboxes that stand on them.
//!
//! The files of an image are a *chain*: each layer of an archive unpacked over a copy of what is below it (with btrfs a
//! snapshot, which shares every block), under a name that follows from the digests of all of them (OCI image
//! specification, "Layer ChainID"). So equal layers over equal layers are there once, whoever brings them, and what has
//! its name is complete. Over a chain may lie *built* layers: uppers of sandboxes, kept by [`Pool::keep_built`]. What a
//! sandbox needs and an image lacks is a small layer above all ([`dress`]).
//!
//! An image's *identity* names all of it: `sha256:<chain>`, or the host image's, and a `+<built>` for each built layer.

pub mod archive;
mod dress;
mod sparse;
mod stream;
mod unpack;

use crate::capture::{self, LayerError, PARTIAL};
use crate::copy::{self, CopyError};
use crate::pool::{Pool, PoolError};
use branchbox_model::{PoolDriver, Tree};
use branchbox_sys::btrfs;
use sha2::{Digest, Sha256};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use stream::{Hashed, hex};
pub use unpack::Unpacked;
use unpack::Whiteouts;

/// Bytes that are unpacked between two looks at the room that is left.
const LOOK_BYTES: u64 = 64 << 20;
/// What an identity of a chain begins with.
const CHAIN: &str = "sha256:";

/// Why an image could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file of ours could not be used.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The archive is no image.
    #[error("the archive cannot be used: {problem}")]
    Archive {
        /// What is wrong with it.
        problem: String,
    },
    /// An entry of an archive could not be unpacked.
    #[error("cannot unpack {path}")]
    Entry {
        /// Inside the image.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was to stop before it had ended.
    #[error("it was stopped")]
    Stopped,
    /// A sandbox cannot run on it.
    #[error("a sandbox cannot run on this image: {problem}")]
    Unfit {
        /// Why.
        problem: String,
    },
    /// It could not be mounted to look at it.
    #[error("cannot look into the image")]
    Assemble(#[from] crate::AssembleError),
    /// The pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

impl ImageError {
    fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::File { path, source }
    }
}

/// A layer in a file: a tar archive, plain or compressed.
#[derive(Debug)]
pub struct LayerBlob {
    /// The file.
    pub path: PathBuf,
    /// What the digest of the uncompressed archive must be.
    pub diff_id: Option<String>,
}

/// An unpacked image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Names the whole of it.
    pub identity: String,
    /// Names of the directories it was made in, the last being the image's own.
    pub links: Vec<String>,
}

/// The parts an identity names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parts<'a> {
    /// `sha256:…` of a chain, or what the host image has.
    pub base: &'a str,
    /// Built layers, lowest first.
    pub built: Vec<&'a str>,
}

/// Takes an identity apart.
#[must_use]
pub fn parts(identity: &str) -> Parts<'_> {
    let mut all = identity.split('+');
    Parts { base: all.next().unwrap_or_default(), built: all.collect() }
}

/// The directory of a chain, if the identity of a base names one.
#[must_use]
pub fn chain_name(base: &str) -> Option<&str> {
    base.strip_prefix(CHAIN)
}

fn chain_id(below: Option<&str>, diff_id: &str) -> String {
    match below {
        None => diff_id.to_owned(),
        Some(below) => hex(&Sha256::digest(format!("{CHAIN}{below} {CHAIN}{diff_id}"))),
    }
}

impl Pool {
    /// Where layers of images lie.
    fn image_layers_dir(&self) -> PathBuf {
        self.images_dir().join("layers")
    }

    /// The directory of a chain or a built layer.
    ///
    /// # Errors
    /// [`LayerError::Name`] for what is no digest.
    pub fn image_layer_path(&self, name: &str) -> Result<PathBuf, PoolError> {
        if name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(self.image_layers_dir().join(name));
        }
        Err(LayerError::Name { name: name.chars().take(100).collect() }.into())
    }

    /// Names of all layers of images.
    ///
    /// # Errors
    /// [`PoolError::Directory`].
    pub fn image_layers(&self) -> Result<Vec<String>, PoolError> {
        if self.image_layers_dir().is_dir() { self.names_in("images/layers", |_| true) } else { Ok(Vec::new()) }
    }

    /// Removes a layer of an image, and what was made to run sandboxes on it.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn remove_image_layer(&self, name: &str) -> Result<(), PoolError> {
        self.remove(&self.image_layer_path(name)?, &format!("image-{name}"))
    }

    /// Bytes on disk of an image's own layers.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn image_bytes(&self, identity: &str) -> Result<u64, PoolError> {
        let parts = parts(identity);
        let names = chain_name(parts.base).into_iter().chain(parts.built);
        names.map(|name| self.layer_size(&self.image_layer_path(name)?)).sum()
    }

    /// Unpacks layers, bottom first, as far as they are not there yet, until `stop` says so.
    ///
    /// # Errors
    /// [`ImageError`]; nothing that is not whole has a name then.
    pub fn unpack_layers(&self, layers: &[LayerBlob], stop: &dyn Fn() -> bool) -> Result<Chain, ImageError> {
        self.make_image_layers_dir()?;
        let mut links: Vec<String> = Vec::new();
        for layer in layers {
            let below = links.last().map(String::as_str);
            let known = layer.diff_id.as_deref().map(|diff_id| chain_id(below, diff_id));
            let is_there = match &known {
                Some(name) => self.image_layer_path(name)?.is_dir(),
                None => false,
            };
            let name = match known {
                Some(name) if is_there => name,
                _ => self.unpack_layer(below, layer, Whiteouts::Apply, stop)?,
            };
            links.push(name);
        }
        let last = links.last().ok_or_else(|| ImageError::Archive { problem: "it has no layers".into() })?;
        Ok(Chain { identity: format!("{CHAIN}{last}"), links })
    }

    /// Unpacks an archive that is a root file system itself.
    ///
    /// # Errors
    /// As [`Pool::unpack_layers`].
    pub fn unpack_root(&self, archive: &Path, stop: &dyn Fn() -> bool) -> Result<Chain, ImageError> {
        self.make_image_layers_dir()?;
        let blob = LayerBlob { path: archive.to_path_buf(), diff_id: None };
        let name = self.unpack_layer(None, &blob, Whiteouts::Ignore, stop)?;
        Ok(Chain { identity: format!("{CHAIN}{name}"), links: vec![name] })
    }

    fn make_image_layers_dir(&self) -> Result<(), ImageError> {
        let dir = self.image_layers_dir();
        fs_err::create_dir_all(&dir).map_err(ImageError::file(&dir))?;
        fs_err::set_permissions(&dir, PermissionsExt::from_mode(0o700)).map_err(ImageError::file(&dir))
    }

    fn unpack_layer(
        &self,
        below: Option<&str>,
        layer: &LayerBlob,
        whiteouts: Whiteouts,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, ImageError> {
        let below_path = below.map(|name| self.image_layer_path(name)).transpose()?;
        let partial = self.new_partial(below_path.as_deref())?;
        let unpacked = self.fill(&partial, layer, whiteouts, stop);
        let named = unpacked.and_then(|diff_id| {
            // Of a root file system `.wh.` files are files, so it is not the layer that the same archive would be.
            let name = match whiteouts {
                Whiteouts::Apply => chain_id(below, &diff_id),
                Whiteouts::Ignore => hex(&Sha256::digest(format!("root {diff_id}"))),
            };
            self.give_name(&partial, &name)?;
            Ok(name)
        });
        if named.is_err() {
            self.remove(&partial, "image-partial")?;
        }
        named
    }

    /// The digest of the uncompressed layer, which is now in `partial`.
    fn fill(
        &self,
        partial: &Path,
        layer: &LayerBlob,
        whiteouts: Whiteouts,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, ImageError> {
        let mut hashed = Hashed::new(stream::open(&layer.path)?);
        let mut until_look = 0u64;
        let mut room = |bytes: u64| -> Result<(), ImageError> {
            if stop() {
                return Err(ImageError::Stopped);
            }
            if bytes > until_look {
                self.ensure_room_for(bytes)?;
                until_look = LOOK_BYTES;
            }
            until_look = until_look.saturating_sub(bytes);
            Ok(())
        };
        unpack::unpack(&mut hashed, partial, whiteouts, &mut room)?;
        let found = hashed.finish().map_err(ImageError::file(&layer.path))?;
        match &layer.diff_id {
            Some(wanted) if *wanted != found => {
                Err(ImageError::Archive { problem: format!("a layer is sha256:{found} and should be sha256:{wanted}") })
            }
            _ => Ok(found),
        }
    }

    /// A directory under a temporary name: a writable copy of `below`, or empty.
    fn new_partial(&self, below: Option<&Path>) -> Result<PathBuf, ImageError> {
        static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let dir = self.image_layers_dir();
        let name = format!("{}-{number}{PARTIAL}", std::process::id());
        let partial = dir.join(&name);
        match (self.driver(), below) {
            (PoolDriver::Btrfs, Some(below)) => capture::snapshot(below, &partial, true).map_err(PoolError::from)?,
            (PoolDriver::Btrfs, None) => {
                let open = fs_err::File::open(&dir).map_err(ImageError::file(&dir))?;
                btrfs::create_subvolume(&open, &name).map_err(ImageError::file(&partial))?;
            }
            (PoolDriver::Plain, Some(below)) => {
                let copied = copy::copy_tree(below, &partial, &[]);
                copied.map_err(|CopyError { path, source }| ImageError::File { path: below.join(path), source })?;
            }
            (PoolDriver::Plain, None) => fs_err::create_dir(&partial).map_err(ImageError::file(&partial))?,
        }
        if below.is_none() {
            fs_err::set_permissions(&partial, PermissionsExt::from_mode(0o755)).map_err(ImageError::file(&partial))?;
        }
        Ok(partial)
    }

    /// What has a name is whole, also after a power cut.
    fn give_name(&self, partial: &Path, name: &str) -> Result<(), ImageError> {
        let path = self.image_layer_path(name)?;
        if path.is_dir() {
            // Somebody else was faster; it holds the same.
            return Ok(self.remove(partial, "image-partial")?);
        }
        let open = fs_err::File::open(partial).map_err(ImageError::file(partial))?;
        rustix::fs::syncfs(&open).map_err(|errno| ImageError::file(partial)(errno.into()))?;
        fs_err::rename(partial, &path).map_err(ImageError::file(&path))
    }

    /// Removes what was put on top of images other than these.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn keep_dresses(&self, identities: &[&str]) -> Result<(), PoolError> {
        let kept: Vec<String> = identities.iter().map(|identity| dress::name(identity)).collect();
        let is_old = |name: &String| name.starts_with(dress::PREFIX) && !kept.contains(name);
        for name in self.names_in("images", |_| true)?.iter().filter(|name| is_old(name)) {
            self.remove(&self.images_dir().join(name), name)?;
        }
        Ok(())
    }

    /// Keeps an upper, which nobody writes any more, as a built layer of this name.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn keep_built(&self, upper: &Path, name: &str) -> Result<(), ImageError> {
        self.make_image_layers_dir()?;
        let path = self.image_layer_path(name)?;
        if !path.is_dir() {
            capture::capture_layer(upper, &path, self.driver()).map_err(PoolError::from)?;
        }
        Ok(())
    }

    /// The overlays of an image that does not stand on the host: its root, with what it lacks on top. `guest_exe` is our own
    /// executable.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn chain_trees(&self, identity: &str, guest_exe: &Path) -> Result<Vec<Tree>, ImageError> {
        let parts = parts(identity);
        let missing = || ImageError::Unfit { problem: format!("{identity} is not there any more") };
        let chain = self.image_layer_path(chain_name(parts.base).ok_or_else(missing)?)?;
        let mut lower = vec![chain];
        for built in &parts.built {
            lower.insert(0, self.image_layer_path(built)?.join("root").join("up"));
        }
        if !lower.iter().all(|dir| dir.is_dir()) {
            return Err(missing());
        }
        let tree = |lower| Tree {
            name: "root".into(),
            lower,
            target: "/".into(),
            owner_outside: (0, 0),
            owner_inside: (0, 0),
        };
        let on_top = dress::dress(self, identity, tree(lower.clone()), guest_exe)?;
        Ok(vec![tree(on_top.into_iter().chain(lower).collect())])
    }

    /// The overlays of an image built on the host image, whose own are `host`.
    ///
    /// # Errors
    /// [`ImageError::Unfit`] when a layer is not there.
    pub fn host_trees(&self, identity: &str, host: &[Tree]) -> Result<Vec<Tree>, ImageError> {
        let mut trees = host.to_vec();
        for built in parts(identity).built {
            let layer = self.image_layer_path(built)?;
            if !layer.is_dir() {
                return Err(ImageError::Unfit { problem: format!("{built} is not there any more") });
            }
            for tree in &mut trees {
                let up = layer.join(&tree.name).join("up");
                if up.is_dir() {
                    tree.lower.insert(0, up);
                }
            }
        }
        Ok(trees)
    }
}
