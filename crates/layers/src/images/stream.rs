//! Archives as they come: plain or compressed, known by their first bytes, and hashed while they are read.

use super::ImageError;
use sha2::{Digest, Sha256};
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::Path;

const BUFFER_BYTES: usize = 256 * 1024;
/// Bytes that a decompressed xz archive may have: those are decompressed whole before they are read.
const XZ_BYTES_MAX: u64 = 32 << 30;

/// The uncompressed archive in a file.
pub(super) fn open(path: &Path) -> Result<Box<dyn Read>, ImageError> {
    let file = fs_err::File::open(path).map_err(ImageError::file(path))?;
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, file.into_parts().0);
    let begin = reader.fill_buf().map_err(ImageError::file(path))?;
    let bad = |problem: String| ImageError::Archive { problem };
    match begin {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::bufread::MultiGzDecoder::new(reader))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(reader);
            Ok(Box::new(decoder.map_err(|error| bad(format!("it is no zstd stream: {error}")))?))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let mut plain =
                tempfile::tempfile_in(path.parent().unwrap_or(Path::new("/"))).map_err(ImageError::file(path))?;
            let mut bounded = Bounded { file: &mut plain, left: XZ_BYTES_MAX };
            let done = lzma_rs::xz_decompress(&mut reader, &mut bounded);
            done.map_err(|error| bad(format!("it is no xz stream: {error:?}")))?;
            plain.rewind().map_err(ImageError::file(path))?;
            Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, plain)))
        }
        [b'B', b'Z', b'h', ..] => Err(bad("it is compressed with bzip2; use gzip, zstd or xz".into())),
        _ => Ok(Box::new(reader)),
    }
}

struct Bounded<'a> {
    file: &'a mut std::fs::File,
    left: u64,
}

impl io::Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len() as u64;
        self.left = self.left.checked_sub(count).ok_or_else(|| io::Error::other("it grows beyond its limit"))?;
        self.file.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader that knows the digest of what went through it.
pub(super) struct Hashed<R> {
    inner: R,
    hasher: Sha256,
}

impl<R: Read> Hashed<R> {
    pub(super) fn new(inner: R) -> Self {
        Self { inner, hasher: Sha256::new() }
    }

    /// Reads what is left, and gives the digest of all.
    pub(super) fn finish(mut self) -> io::Result<String> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(hex(&self.hasher.finalize()))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
