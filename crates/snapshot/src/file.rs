//! The two files of a capture.

use crate::machine::{Blob, Machine};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Written by this build; others are refused with both numbers.
pub const FORMAT_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"bbxmach\n";
const RECORDS: &str = "machine";
const PAGES: &str = "pages";
/// No machine's records come near this; a length above it is damage.
const RECORD_BYTES_MAX: u64 = 1 << 30;
/// Bytes gathered before one write: large writes go into large folios.
const WRITE_BYTES: usize = 4 << 20;

/// A capture that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum MachineFileError {
    /// The file system refused.
    #[error("{}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not a capture, or damaged.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// Of another format version.
    #[error("{} has format {found}, this build reads {FORMAT_VERSION}", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> MachineFileError {
    let path = path.to_owned();
    move |source| MachineFileError::Io { path, source }
}

/// Writes the records into a capture's directory; the file appears whole or not at all. Gives its size.
///
/// # Errors
/// [`MachineFileError::Io`].
pub fn write_machine(directory: &Path, machine: &Machine) -> Result<u64, MachineFileError> {
    let path = directory.join(RECORDS);
    let payload = postcard::to_stdvec(machine)
        .map_err(|_| MachineFileError::Damaged { path: path.clone(), what: "records that cannot be encoded" })?;
    let mut bytes = Vec::with_capacity(payload.len() + 64);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    bytes.extend_from_slice(blake3::hash(&payload).as_bytes());
    bytes.extend_from_slice(&payload);
    let temporary = directory.join(".machine.part");
    let mut file = File::create(&temporary).map_err(io_at(&temporary))?;
    file.write_all(&bytes).map_err(io_at(&temporary))?;
    std::fs::rename(&temporary, &path).map_err(io_at(&path))?;
    Ok(bytes.len() as u64)
}

/// Reads and checks a capture's records.
///
/// # Errors
/// [`MachineFileError`].
pub fn read_machine(directory: &Path) -> Result<Machine, MachineFileError> {
    const HEADER: usize = 8 + 4 + 8 + 32;
    let path = directory.join(RECORDS);
    let damaged = |what| MachineFileError::Damaged { path: path.clone(), what };
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(io_at(&path))?;
    file.take(RECORD_BYTES_MAX + HEADER as u64).read_to_end(&mut bytes).map_err(io_at(&path))?;
    let (Some(magic), Some(version), Some(length), Some(hash), Some(payload)) =
        (bytes.get(..8), bytes.get(8..12), bytes.get(12..20), bytes.get(20..52), bytes.get(HEADER..))
    else {
        return Err(damaged("too short"));
    };
    if magic != MAGIC {
        return Err(damaged("no capture"));
    }
    let version = u32::from_le_bytes(version.try_into().map_err(|_| damaged("header"))?);
    if version != FORMAT_VERSION {
        return Err(MachineFileError::Version { path: path.clone(), found: version });
    }
    if u64::from_le_bytes(length.try_into().map_err(|_| damaged("header"))?) != payload.len() as u64 {
        return Err(damaged("length"));
    }
    if blake3::hash(payload).as_bytes() != hash {
        return Err(damaged("checksum"));
    }
    postcard::from_bytes(payload).map_err(|_| damaged("records"))
}

/// Appends bulk bytes to a capture's `pages` file.
#[derive(Debug)]
pub struct BlobWriter {
    file: File,
    path: PathBuf,
    buffer: Vec<u8>,
    written: u64,
}

impl BlobWriter {
    /// Begins a new file.
    ///
    /// # Errors
    /// [`MachineFileError::Io`].
    pub fn create(directory: &Path) -> Result<Self, MachineFileError> {
        let path = directory.join(PAGES);
        let file = File::create_new(&path).map_err(io_at(&path))?;
        Ok(Self { file, path, buffer: Vec::with_capacity(WRITE_BYTES), written: 0 })
    }

    /// Removes what an attempt that was given up left, so that another can begin.
    ///
    /// # Errors
    /// [`MachineFileError::Io`].
    pub fn discard(directory: &Path) -> Result<(), MachineFileError> {
        let path = directory.join(PAGES);
        std::fs::remove_file(&path).map_err(io_at(&path))
    }

    /// Bytes so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends.
    ///
    /// # Errors
    /// [`MachineFileError::Io`], on a full disk too.
    pub fn append(&mut self, data: &[u8]) -> Result<Blob, MachineFileError> {
        let blob = Blob { offset: self.bytes(), bytes: data.len() as u64 };
        self.buffer.extend_from_slice(data);
        if self.buffer.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(blob)
    }

    fn flush(&mut self) -> Result<(), MachineFileError> {
        self.file.write_all_at(&self.buffer, self.written).map_err(io_at(&self.path))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the file; gives its size.
    ///
    /// # Errors
    /// [`MachineFileError::Io`].
    pub fn finish(mut self) -> Result<u64, MachineFileError> {
        self.flush()?;
        Ok(self.written)
    }
}

/// Reads bulk bytes of a capture.
#[derive(Debug)]
pub struct BlobReader {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl BlobReader {
    /// Opens the file.
    ///
    /// # Errors
    /// [`MachineFileError::Io`].
    pub fn open(directory: &Path) -> Result<Self, MachineFileError> {
        let path = directory.join(PAGES);
        let file = File::open(&path).map_err(io_at(&path))?;
        let bytes = file.metadata().map_err(io_at(&path))?.len();
        Ok(Self { file, path, bytes })
    }

    /// The file itself, to be handed on.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fills a buffer from a blob's `at`-th byte on.
    ///
    /// # Errors
    /// [`MachineFileError::Damaged`] when the blob lies outside the file.
    pub fn read(&self, blob: Blob, at: u64, buffer: &mut [u8]) -> Result<(), MachineFileError> {
        let inside = at.checked_add(buffer.len() as u64).is_some_and(|end| end <= blob.bytes)
            && blob.offset.checked_add(blob.bytes).is_some_and(|end| end <= self.bytes);
        if !inside {
            return Err(MachineFileError::Damaged { path: self.path.clone(), what: "an extent outside the file" });
        }
        self.file.read_exact_at(buffer, blob.offset + at).map_err(io_at(&self.path))
    }
}

/// Encodes a record for its way between keeper and guest.
///
/// # Errors
/// What postcard says.
pub fn to_bytes<T: serde::Serialize>(record: &T) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_stdvec(record)
}

/// Decodes a record.
///
/// # Errors
/// What postcard says.
pub fn from_bytes<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    postcard::from_bytes(bytes)
}
