//! What an image archive holds: an OCI layout, what `docker save` writes, or the files themselves.

use super::stream::{self, Hashed};
use super::{ImageError, LayerBlob};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

/// Manifests, configurations and other small files.
const JSON_BYTES_MAX: u64 = 8 << 20;
/// Files in an archive of layers.
const FILES_MAX: usize = 4096;
/// Layers of one image.
pub(super) const LAYERS_MAX: usize = 500;
const ARCHITECTURE: &str = "amd64";
/// A header of a tar archive, and where its magic is (pax(1), "ustar Interchange Format").
const TAR_BLOCK: u64 = 512;
const TAR_MAGIC_AT: usize = 257;

/// What was found in an archive.
#[derive(Debug)]
pub enum Found {
    /// Layers, bottom first, and the image's configuration as it stands there.
    Layers {
        /// Files of the layers.
        layers: Vec<LayerBlob>,
        /// The configuration.
        config: Vec<u8>,
    },
    /// The archive is the root file system itself.
    Root,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Deserialize, Default)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// A file's content as the tar archive that it is, plain or compressed; none if it is no archive.
///
/// # Errors
/// [`ImageError::File`].
pub fn open_tar(path: &Path) -> Result<Option<Box<dyn Read>>, ImageError> {
    // What begins like something compressed and is not is no archive.
    let Ok(mut content) = stream::open(path) else { return Ok(None) };
    let mut begin = Vec::new();
    if content.by_ref().take(TAR_BLOCK).read_to_end(&mut begin).is_err() {
        return Ok(None);
    }
    let is_tar = begin.get(TAR_MAGIC_AT..).is_some_and(|rest| rest.starts_with(b"ustar"));
    Ok(is_tar.then(|| Box::new(std::io::Cursor::new(begin).chain(content)) as Box<dyn Read>))
}

/// The digests of a configuration's uncompressed layers, bottom first.
///
/// # Errors
/// [`ImageError::Archive`] for what is no configuration.
pub fn diff_ids(config: &[u8]) -> Result<Vec<String>, ImageError> {
    let config: Config = serde_json::from_slice(config).map_err(|error| bad(format!("its configuration: {error}")))?;
    config.rootfs.diff_ids.iter().map(|id| digest(id)).collect()
}

fn bad(problem: String) -> ImageError {
    ImageError::Archive { problem }
}

/// The hexadecimal part of a SHA-256 digest.
pub(super) fn digest(text: &str) -> Result<String, ImageError> {
    let hex = text.strip_prefix("sha256:").unwrap_or_default();
    if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
        return Ok(hex.to_owned());
    }
    Err(bad(format!("`{}` is no SHA-256 digest", text.chars().take(100).collect::<String>().escape_debug())))
}

/// Looks into `archive`; files of layers are put into the new directory `scratch`.
///
/// # Errors
/// [`ImageError`]; what was put into `scratch` stays.
pub fn look_into(archive: &Path, scratch: &Path) -> Result<Found, ImageError> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(scratch);
    made.map_err(ImageError::file(scratch))?;
    if !is_of_layers(archive)? {
        return Ok(Found::Root);
    }
    extract(archive, scratch)?;
    if scratch.join("index.json").exists() { oci(scratch) } else { saved(scratch) }
}

/// Whether there is an `oci-layout` or a `manifest.json` at the top, and no `/etc` or `/usr`.
fn is_of_layers(archive: &Path) -> Result<bool, ImageError> {
    let unreadable = |error: std::io::Error| bad(error.to_string());
    let mut archive = tar::Archive::new(stream::open(archive)?);
    for (number, entry) in archive.entries().map_err(unreadable)?.enumerate() {
        let entry = entry.map_err(unreadable)?;
        let name = entry.path_bytes();
        let name = name.strip_prefix(b"./").unwrap_or(&name);
        if name == b"oci-layout" || name == b"manifest.json" || name == b"index.json" {
            return Ok(true);
        }
        if number >= FILES_MAX {
            break;
        }
    }
    Ok(false)
}

/// Unpacks regular files and links among them; such an archive has nothing else.
fn extract(archive: &Path, scratch: &Path) -> Result<(), ImageError> {
    let unreadable = |error: std::io::Error| bad(error.to_string());
    let mut archive = tar::Archive::new(stream::open(archive)?);
    for (number, entry) in archive.entries().map_err(unreadable)?.enumerate() {
        let mut entry = entry.map_err(unreadable)?;
        if number >= FILES_MAX {
            return Err(bad(format!("it has more than {FILES_MAX} files")));
        }
        let kind = entry.header().entry_type();
        let path = entry.path().map_err(unreadable)?.into_owned();
        let to = inside(scratch, &path)?;
        if kind.is_file() {
            if let Some(parent) = to.parent() {
                fs_err::create_dir_all(parent).map_err(ImageError::file(parent))?;
            }
            let mut file = fs_err::File::create_new(&to).map_err(ImageError::file(&to))?;
            std::io::copy(&mut entry, &mut file).map_err(ImageError::file(&to))?;
        } else if kind.is_symlink() || kind.is_hard_link() {
            // Old writers name a layer that they have written already by a link.
            let target = entry.link_name().map_err(unreadable)?.unwrap_or_default().into_owned();
            let base = if kind.is_symlink() { path.parent().unwrap_or(Path::new("")).join(target) } else { target };
            let from = inside(scratch, &normal(&base))?;
            fs_err::hard_link(&from, &to).map_err(ImageError::file(&to))?;
        }
    }
    Ok(())
}

/// `a/../b` as `b`.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir if out.pop() => {}
            other => out.push(other),
        }
    }
    out
}

fn inside(scratch: &Path, path: &Path) -> Result<PathBuf, ImageError> {
    let is_plain = |component: Component<'_>| matches!(component, Component::Normal(_) | Component::CurDir);
    if path.components().all(is_plain) {
        Ok(scratch.join(path))
    } else {
        Err(bad(format!("the path {} climbs", path.display())))
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<T, ImageError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    serde_json::from_slice(&small(path)?).map_err(|error| bad(format!("{name}: {error}")))
}

fn small(path: &Path) -> Result<Vec<u8>, ImageError> {
    let file = fs_err::File::open(path).map_err(ImageError::file(path))?;
    let mut bytes = Vec::new();
    file.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(ImageError::file(path))?;
    if bytes.len() as u64 > JSON_BYTES_MAX { Err(bad(format!("{} is too large", path.display()))) } else { Ok(bytes) }
}

fn blob(scratch: &Path, text: &str) -> Result<PathBuf, ImageError> {
    let hex = digest(text)?;
    let path = scratch.join("blobs/sha256").join(&hex);
    if !path.is_file() {
        return Err(bad(format!("it does not hold {text}")));
    }
    let file = fs_err::File::open(&path).map_err(ImageError::file(&path))?;
    let found = Hashed::new(file).finish().map_err(ImageError::file(&path))?;
    if found == hex { Ok(path) } else { Err(bad(format!("{text} holds something else"))) }
}

fn oci(scratch: &Path) -> Result<Found, ImageError> {
    let mut index: Index = json(&scratch.join("index.json"))?;
    // An index may name another: one for each platform, one for each tag.
    for _ in 0..4 {
        let fits = |d: &&Descriptor| {
            d.platform.as_ref().is_none_or(|platform| platform.architecture == ARCHITECTURE && platform.os == "linux")
        };
        let all: Vec<&Descriptor> = index.manifests.iter().filter(fits).collect();
        let [one] = all.as_slice() else {
            return Err(bad(format!("it holds {} images for linux/{ARCHITECTURE}, and one is wanted", all.len())));
        };
        let path = blob(scratch, &one.digest)?;
        let keys: BTreeMap<String, serde_json::Value> = json(&path)?;
        if keys.contains_key("manifests") {
            index = json(&path)?;
            continue;
        }
        let manifest: Manifest = json(&path)?;
        let layers = manifest.layers.iter().map(|layer| blob(scratch, &layer.digest));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        return found(layers, small(&blob(scratch, &manifest.config.digest)?)?);
    }
    Err(bad("its indexes are nested too deep".into()))
}

fn saved(scratch: &Path) -> Result<Found, ImageError> {
    let all: Vec<Saved> = json(&scratch.join("manifest.json"))?;
    let [one] = all.as_slice() else {
        return Err(bad(format!("it holds {} images, and one is wanted", all.len())));
    };
    let layers = one.layers.iter().map(|layer| inside(scratch, Path::new(layer))).collect::<Result<Vec<_>, _>>()?;
    found(layers, small(&inside(scratch, Path::new(&one.config))?)?)
}

fn found(layers: Vec<PathBuf>, config: Vec<u8>) -> Result<Found, ImageError> {
    let ids = diff_ids(&config)?;
    let layers = pair(layers, ids)?;
    Ok(Found::Layers { layers, config })
}

/// Puts files of layers and their digests together.
///
/// # Errors
/// [`ImageError::Archive`] when there are not as many of both, or too many.
pub fn pair(layers: Vec<PathBuf>, diff_ids: Vec<String>) -> Result<Vec<LayerBlob>, ImageError> {
    if layers.len() != diff_ids.len() || layers.is_empty() || layers.len() > LAYERS_MAX {
        let (there, named) = (layers.len(), diff_ids.len());
        return Err(bad(format!("it has {there} layers and names {named}; 1 to {LAYERS_MAX} are wanted")));
    }
    Ok(layers.into_iter().zip(diff_ids).map(|(path, diff_id)| LayerBlob { path, diff_id: Some(diff_id) }).collect())
}
