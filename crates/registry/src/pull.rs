//! A pull from name to files: the manifest, the one of our platform if it is an index, the config, the layers.

use crate::auth::Credentials;
use crate::digest::Digest;
use crate::limits::{CONFIG_BYTES_MAX, MANIFEST_BYTES_MAX};
use crate::manifest::{Document, Named, check_config, parse};
use crate::session::{Session, Target, clean, read_all};
use crate::{Reference, RegistryError, blob};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use ureq::http::header;

/// How to pull.
#[derive(Debug, Clone, Copy)]
pub struct Options<'a> {
    /// Who pulls; nobody in particular without.
    pub credentials: Option<&'a Credentials>,
    /// The largest sum of the sizes of config and layers, as the manifest says them.
    pub bytes_max: u64,
    /// PEM certificates of authorities that are trusted instead of the public ones. With them a loopback registry is
    /// spoken to over HTTPS too. A server that signed its own certificate needs one that is not marked as an
    /// authority's (`CA:FALSE`).
    pub ca_file: Option<&'a Path>,
    /// Set by another thread to end the pull; it is looked at between two reads.
    pub cancelled: Option<&'a AtomicBool>,
}

/// A layer's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// `sha256:…` of the file as it is, compressed or not.
    pub digest: String,
    /// Which says how it is compressed.
    pub media_type: String,
    /// Its size.
    pub bytes: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// An image whose files are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// What the reference led to: the index where there is one, else the manifest. With it the same image can be
    /// pulled again.
    pub resolved_digest: String,
    /// The manifest of this platform.
    pub manifest_digest: String,
    /// The image's config, JSON as the registry has it.
    pub config: Vec<u8>,
    /// Bottom first; one that occurs twice is there twice.
    pub layers: Vec<Blob>,
}

/// What a pull does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    /// Asks for the manifest.
    Manifest,
    /// Asks for the config.
    Config,
    /// Has `bytes` of a layer's `of`; the last one of a layer has them all.
    Layer {
        /// The layer.
        digest: String,
        /// What is there.
        bytes: u64,
        /// What there will be.
        of: u64,
    },
}

/// Loads an image's manifest, config and layers into files of the directory `into`, named by digest; it must exist. A
/// file that is there with the right content is not loaded again; so a name with a digest whose files are all there
/// asks nobody, and whoever may read the directory needs no credentials for it.
///
/// # Errors
/// See [`RegistryError`]. Files that are whole by then stay, for the next try.
pub fn pull(
    reference: &Reference,
    into: &Path,
    options: &Options<'_>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Pulled, RegistryError> {
    let mut session = Session::new(reference, options)?;
    progress(Progress::Manifest);
    let top = load_manifest(&mut session, into, reference.exact(), None)?;
    let resolved_digest = top.digest.to_string();
    let (manifest_digest, config, layers) = match top.document {
        Document::Image { config, layers } => (top.digest, config, layers),
        Document::Index(named) => {
            let inner = load_manifest(&mut session, into, Some(&named.digest), Some(named.bytes))?;
            let Document::Image { config, layers } = inner.document else {
                return Err(reference.broken("its index names an index"));
            };
            (inner.digest, config, layers)
        }
    };
    check_sizes(reference, &config, &layers, options.bytes_max)?;
    progress(Progress::Config);
    let config = load_config(&mut session, into, &config)?;
    let layers = layers
        .into_iter()
        .map(|layer| load_layer(&mut session, into, layer, progress))
        .collect::<Result<_, RegistryError>>()?;
    Ok(Pulled { resolved_digest, manifest_digest: manifest_digest.to_string(), config, layers })
}

struct Manifest {
    digest: Digest,
    document: Document,
}

/// The manifest with this digest, else the one that the reference's tag names.
fn load_manifest(
    session: &mut Session<'_>,
    into: &Path,
    exact: Option<&Digest>,
    size: Option<u64>,
) -> Result<Manifest, RegistryError> {
    let reference = session.reference();
    if size.is_some_and(|size| size > MANIFEST_BYTES_MAX) {
        return Err(reference.broken(format!("its manifest is larger than {MANIFEST_BYTES_MAX} bytes")));
    }
    let (bytes, content_type) = match exact.map(|digest| kept_manifest(session, into, digest)).transpose()?.flatten() {
        Some(bytes) => (bytes, None),
        None => ask_for_manifest(session, into, exact)?,
    };
    if size.is_some_and(|size| size != bytes.len() as u64) {
        return Err(reference.broken("its index says another size of the manifest"));
    }
    let document = parse(content_type.as_deref(), &bytes).map_err(|what| reference.broken(clean(&what)))?;
    Ok(Manifest { digest: Digest::of(&bytes), document })
}

fn kept_manifest(session: &Session<'_>, into: &Path, digest: &Digest) -> Result<Option<Vec<u8>>, RegistryError> {
    let path = into.join(digest.file_name());
    let disk = |error| session.reference().disk(&path, error);
    // A file of that name that is not the manifest may have any size.
    if fs_err::metadata(&path).is_ok_and(|found| found.len() > MANIFEST_BYTES_MAX) {
        return Ok(None);
    }
    if !blob::is_there(&path, digest, None).map_err(disk)? {
        return Ok(None);
    }
    fs_err::read(&path).map(Some).map_err(disk)
}

fn ask_for_manifest(
    session: &mut Session<'_>,
    into: &Path,
    exact: Option<&Digest>,
) -> Result<(Vec<u8>, Option<String>), RegistryError> {
    let reference = session.reference();
    let name = exact.map_or(reference.manifest_name(), Digest::as_str);
    let response = session.get(Target::Manifest(name), 0)?;
    let text_of = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let content_type = text_of(header::CONTENT_TYPE.as_str());
    let told = text_of("docker-content-digest");
    let bytes = read_all(session, response, MANIFEST_BYTES_MAX, "the manifest")?;
    let digest = Digest::of(&bytes);
    let wanted = exact.cloned().or_else(|| told.as_deref().and_then(Digest::parse));
    if let Some(wanted) = wanted.filter(|wanted| *wanted != digest) {
        return Err(reference.broken(format!("the manifest {wanted} is in truth {digest}")));
    }
    blob::keep(session, into, &digest, &bytes)?;
    Ok((bytes, content_type))
}

fn check_sizes(reference: &Reference, config: &Named, layers: &[Named], bytes_max: u64) -> Result<(), RegistryError> {
    if config.bytes > CONFIG_BYTES_MAX {
        return Err(reference.broken(format!("its config is larger than {CONFIG_BYTES_MAX} bytes")));
    }
    let sum = layers.iter().try_fold(config.bytes, |sum, layer| sum.checked_add(layer.bytes));
    if sum.is_none_or(|sum| sum > bytes_max) {
        return Err(reference.broken(format!("it is larger than {bytes_max} bytes")));
    }
    Ok(())
}

fn load_config(session: &mut Session<'_>, into: &Path, named: &Named) -> Result<Vec<u8>, RegistryError> {
    let reference = session.reference();
    let path = blob::fetch(session, into, named, &mut |_| {})?;
    let bytes = fs_err::read(&path).map_err(|error| reference.disk(&path, error))?;
    check_config(&bytes).map_err(|what| reference.broken(clean(&what)))?;
    Ok(bytes)
}

fn load_layer(
    session: &mut Session<'_>,
    into: &Path,
    layer: Named,
    progress: &mut dyn FnMut(Progress),
) -> Result<Blob, RegistryError> {
    let digest = layer.digest.to_string();
    let mut on = |bytes| progress(Progress::Layer { digest: digest.clone(), bytes, of: layer.bytes });
    let path = blob::fetch(session, into, &layer, &mut on)?;
    Ok(Blob { digest: layer.digest.to_string(), media_type: layer.media_type.clone(), bytes: layer.bytes, path })
}
