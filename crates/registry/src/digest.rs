//! `sha256:…`, the name of everything in a registry, as a value that is known to be well formed.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read};

const PREFIX: &str = "sha256:";
const HEX_CHARS: usize = 64;

/// A SHA-256, written as registries write it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Digest(String);

impl Digest {
    /// Takes `sha256:` and 64 lower-case hexadecimal digits; other hashes are not supported.
    pub fn parse(text: &str) -> Option<Self> {
        let hex = text.strip_prefix(PREFIX)?;
        let fine = hex.len() == HEX_CHARS && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        fine.then(|| Self(text.to_owned()))
    }

    pub fn of(bytes: &[u8]) -> Self {
        Self::finish(Sha256::new_with_prefix(bytes))
    }

    /// The hash of what a reader yields.
    pub fn of_reader(mut reader: impl Read) -> io::Result<Self> {
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 128 << 10];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(Self::finish(hasher)),
                Ok(length) => hasher.update(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    pub fn finish(hasher: Sha256) -> Self {
        let hex: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{PREFIX}{hex}"))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A file name: without the colon, which some programs take for a host's end.
    pub fn file_name(&self) -> String {
        self.0.replace(':', "-")
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn only_whole_lower_case_sha256_is_taken() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(Digest::parse(empty), Some(Digest::of(b"")));
        for wrong in ["sha256:", "sha512:00", &empty[1..], &empty.to_uppercase(), &format!("{empty}0"), "sha256:../x"] {
            assert_eq!(Digest::parse(wrong), None, "{wrong}");
        }
    }
}
