//! One blob into one file: sized, hashed, resumed where a connection broke off, renamed when whole.

use crate::RegistryError;
use crate::digest::Digest;
use crate::limits::BLOB_TRIES;
use crate::manifest::Named;
use crate::session::{Paced, Session, Target};
use sha2::{Digest as _, Sha256};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use ureq::Body;
use ureq::http::{Response, header};

/// How the names of files begin that are not whole yet. A pull removes its own; one that was killed leaves them.
pub const PARTIAL_PREFIX: &str = ".pull-";
/// How much is read at once.
const CHUNK_BYTES: usize = 128 << 10;
/// How often progress is told.
const TOLD_BYTES: u64 = 1 << 20;

/// Why one try ended.
enum Ended {
    /// The connection, not the blob: the next try goes on where this one ended.
    Dropped(RegistryError),
    /// Another try would end the same way.
    Failed(RegistryError),
}

/// The file of a blob; loads it unless it is there.
pub(crate) fn fetch(
    session: &mut Session<'_>,
    into: &Path,
    blob: &Named,
    on: &mut dyn FnMut(u64),
) -> Result<PathBuf, RegistryError> {
    let path = into.join(blob.digest.file_name());
    if is_there(&path, &blob.digest, Some(blob.bytes)).map_err(|error| session.reference().disk(&path, error))? {
        on(blob.bytes);
        return Ok(path);
    }
    let mut partial = Partial::new(session, into)?;
    for tried in 1..=BLOB_TRIES {
        match load(session, &mut partial, blob, on) {
            Ok(()) => break,
            Err(Ended::Dropped(_)) if tried < BLOB_TRIES => {}
            Err(Ended::Dropped(error) | Ended::Failed(error)) => return Err(error),
        }
    }
    on(blob.bytes);
    partial.keep(session, &path, &blob.digest)?;
    Ok(path)
}

/// Whether a file is there already, with the content that its name says.
pub(crate) fn is_there(path: &Path, digest: &Digest, bytes: Option<u64>) -> io::Result<bool> {
    let file = match fs_err::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() || bytes.is_some_and(|bytes| bytes != metadata.len()) {
        return Ok(false);
    }
    Ok(Digest::of_reader(file)? == *digest)
}

/// Writes a document that is known to be whole.
pub(crate) fn keep(session: &Session<'_>, into: &Path, digest: &Digest, bytes: &[u8]) -> Result<(), RegistryError> {
    let mut partial = Partial::new(session, into)?;
    partial.write(bytes).map_err(|error| session.reference().disk(into, error))?;
    partial.keep(session, &into.join(digest.file_name()), digest)
}

/// One request for what is missing of a blob.
fn load(session: &mut Session<'_>, partial: &mut Partial, blob: &Named, on: &mut dyn FnMut(u64)) -> Result<(), Ended> {
    let reference = session.reference();
    if partial.bytes == blob.bytes && partial.bytes > 0 {
        return Ok(());
    }
    let response = session.get(Target::Blob(&blob.digest), partial.bytes).map_err(|error| match error {
        // Without a source the registry has answered, and an answer is not asked for again.
        RegistryError::Unreachable { source: Some(_), .. } => Ended::Dropped(error),
        error => Ended::Failed(error),
    })?;
    let broken = |what: String| Ended::Failed(reference.broken(format!("{} {what}", blob.digest)));
    let path = partial.file.path().to_owned();
    let disk = |error| Ended::Failed(reference.disk(&path, error));
    if response.status() == 200 {
        partial.restart().map_err(disk)?;
    } else if range_start(&response) != Some(partial.bytes) {
        return Err(broken("came from another place than asked for".into()));
    }
    let missing = blob.bytes - partial.bytes;
    let length = response.body().content_length();
    if length.is_some_and(|length| length != missing) {
        return Err(broken(format!("has {} bytes more to come, not {missing}", length.unwrap_or_default())));
    }
    let mut reader = Paced::new(response.into_body().into_reader());
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut told = partial.bytes;
    loop {
        session.check_cancelled().map_err(Ended::Failed)?;
        let read = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(Ended::Dropped(reference.unreachable(format!("{} broke off", blob.digest), error)));
            }
        };
        if partial.bytes + read as u64 > blob.bytes {
            return Err(broken(format!("is larger than {} bytes", blob.bytes)));
        }
        partial.write(&buffer[..read]).map_err(disk)?;
        if partial.bytes - told >= TOLD_BYTES {
            told = partial.bytes;
            on(told);
        }
    }
    if partial.bytes < blob.bytes {
        return Err(broken(format!("has {} bytes and not {}", partial.bytes, blob.bytes)));
    }
    Ok(())
}

/// `N` of `Content-Range: bytes N-…`.
fn range_start(response: &Response<Body>) -> Option<u64> {
    let range = response.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// A file that is not whole yet, and the hash of what it holds.
struct Partial {
    file: NamedTempFile,
    hasher: Sha256,
    bytes: u64,
}

impl Partial {
    fn new(session: &Session<'_>, into: &Path) -> Result<Self, RegistryError> {
        let file = tempfile::Builder::new().prefix(PARTIAL_PREFIX).tempfile_in(into);
        let file = file.map_err(|error| session.reference().disk(into, error))?;
        Ok(Self { file, hasher: Sha256::new(), bytes: 0 })
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.as_file().set_len(0)?;
        self.file.rewind()?;
        (self.hasher, self.bytes) = (Sha256::new(), 0);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Gives the file its name, if it holds what the name says.
    fn keep(self, session: &Session<'_>, path: &Path, digest: &Digest) -> Result<(), RegistryError> {
        let found = Digest::finish(self.hasher);
        if found != *digest {
            return Err(session.reference().broken(format!("{digest} is in truth {found}")));
        }
        self.file.persist(path).map_err(|error| session.reference().disk(path, error.error))?;
        Ok(())
    }
}
