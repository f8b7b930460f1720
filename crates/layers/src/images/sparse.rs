//! Files with holes, as GNU tar stores them in the form 1.0: before the data stands a map of where it belongs.
//!
//! The map is decimal numbers, one a line: how many pieces, then each one's place and length; zeros fill it up to a whole
//! block (GNU tar manual, "PAX Format, Version 1.0").

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

const BLOCK: usize = 512;
/// Pieces of one file.
const PIECES_MAX: u64 = 1 << 20;
const DIGITS_MAX: usize = 20;
const COPY_BYTES: usize = 256 * 1024;

fn bad(what: &str) -> io::Error {
    io::Error::other(format!("the map of a sparse file {what}"))
}

/// The map's bytes, counted.
struct Map<'a, R> {
    from: &'a mut R,
    block: [u8; BLOCK],
    at: usize,
}

impl<R: Read> Map<'_, R> {
    fn number(&mut self) -> io::Result<u64> {
        let mut text = String::new();
        loop {
            if self.at == BLOCK {
                self.from.read_exact(&mut self.block)?;
                self.at = 0;
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return text.parse().map_err(|_| bad("holds something else than numbers")),
                b'0'..=b'9' if text.len() < DIGITS_MAX => text.push(char::from(byte)),
                _ => return Err(bad("holds something else than numbers")),
            }
        }
    }
}

/// Writes an entry's data where its map says; the file has `size` bytes then.
pub(super) fn write(entry: &mut impl Read, file: &mut File, size: u64) -> io::Result<()> {
    let mut map = Map { from: entry, block: [0; BLOCK], at: BLOCK };
    let count = map.number()?;
    if count > PIECES_MAX {
        return Err(bad("has too many pieces"));
    }
    let (mut pieces, mut end) = (Vec::new(), 0);
    for _ in 0..count {
        let (place, length) = (map.number()?, map.number()?);
        let behind = place.checked_add(length).filter(|behind| *behind <= size && place >= end);
        end = behind.ok_or_else(|| bad("leads out of the file"))?;
        pieces.push((place, length));
    }
    let mut buffer = vec![0; COPY_BYTES];
    for (place, mut length) in pieces {
        file.seek(SeekFrom::Start(place))?;
        while length > 0 {
            let part = usize::try_from(length).unwrap_or(COPY_BYTES).min(COPY_BYTES);
            entry.read_exact(&mut buffer[..part])?;
            file.write_all(&buffer[..part])?;
            length -= part as u64;
        }
    }
    file.set_len(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(map: &str, data: &[u8], size: u64) -> io::Result<Vec<u8>> {
        let mut entry = map.as_bytes().to_vec();
        entry.resize(entry.len().next_multiple_of(BLOCK), 0);
        entry.extend_from_slice(data);
        let mut file = tempfile::tempfile()?;
        write(&mut entry.as_slice(), &mut file, size)?;
        file.rewind()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    #[test]
    fn data_goes_where_the_map_says() {
        let bytes = written("2\n3\n2\n10\n1\n", b"abc", 12).expect("written");
        assert_eq!(bytes, b"\0\0\0ab\0\0\0\0\0c\0");
        assert_eq!(written("0\n", b"", 3).expect("a hole"), [0; 3]);
    }

    #[test]
    fn maps_that_make_no_sense_are_refused() {
        let huge = format!("{}\n", PIECES_MAX + 1);
        for map in [
            "",
            "x\n",
            "1\n5\n",
            "1\n5\n10\n",
            "2\n3\n2\n4\n1\n",
            "1\n18446744073709551615\n2\n",
            &huge,
            "99999999999999999999999\n",
        ] {
            assert!(written(map, b"abc", 12).is_err(), "{map:?}");
        }
    }
}
