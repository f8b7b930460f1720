//! From output bytes to events whose texts hold whole characters and whose offsets stay true.
//!
//! A client takes the next event's offset to be the last one's plus the bytes of its text. So a character cut by a read
//! is held back until its rest comes, and a byte that belongs to no character becomes one `?`: a replacement character
//! would count three. When both streams hold something back, offsets are those of the bytes as they are given out, which
//! differ from the guest's for the few bytes that overtook; at every moment with nothing held back they agree.

use branchbox_api::{OutputEncoding, StreamEvent, base64};
use branchbox_protocol::guest::{Chunk, Stream};

/// Longest start of a character that can be held back.
const HELD_MAX: usize = 3;

/// Keeps what is held back between reads.
#[derive(Debug)]
pub(crate) struct Splitter {
    encoding: OutputEncoding,
    position: u64,
    held: [Vec<u8>; 2],
}

impl Splitter {
    /// Begins at a cursor.
    pub(crate) fn new(encoding: OutputEncoding, cursor: u64) -> Self {
        Self { encoding, position: cursor, held: [Vec::new(), Vec::new()] }
    }

    /// Where the next event begins: a reader that comes back with it misses nothing but what is held back.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Bytes that were lost before the next chunk.
    pub(crate) fn skip(&mut self, dropped: u64) -> Vec<StreamEvent> {
        if dropped == 0 {
            return Vec::new();
        }
        let mut events = self.flush();
        self.position = self.position.saturating_add(dropped);
        events.push(StreamEvent::Truncated { dropped_bytes: dropped, resume_at: self.position });
        events
    }

    /// One chunk of output.
    pub(crate) fn push(&mut self, chunk: Chunk) -> Option<StreamEvent> {
        if self.encoding == OutputEncoding::Base64 {
            return Some(self.event(chunk.stream, String::new(), &chunk.bytes));
        }
        let held = &mut self.held[index(chunk.stream)];
        let mut bytes = std::mem::take(held);
        bytes.extend_from_slice(&chunk.bytes);
        *held = bytes.split_off(bytes.len() - unfinished(&bytes));
        (!bytes.is_empty()).then(|| self.event(chunk.stream, text_of(&bytes), &bytes))
    }

    /// The end of output: what is held back will not be finished.
    pub(crate) fn flush(&mut self) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let held = std::mem::take(&mut self.held[index(stream)]);
            if !held.is_empty() {
                events.push(self.event(stream, text_of(&held), &held));
            }
        }
        events
    }

    fn event(&mut self, stream: Stream, data: String, bytes: &[u8]) -> StreamEvent {
        let offset = self.position;
        self.position = offset.saturating_add(bytes.len() as u64);
        let base64 = (self.encoding == OutputEncoding::Base64).then(|| base64::encode(bytes));
        match stream {
            Stream::Stdout => StreamEvent::Stdout { data, offset, base64 },
            Stream::Stderr => StreamEvent::Stderr { data, offset, base64 },
        }
    }
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

/// Bytes at the end that may be the start of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(HELD_MAX)..];
    (0..tail.len())
        .find_map(|at| match std::str::from_utf8(&tail[at..]) {
            Err(error) if error.valid_up_to() == 0 && error.error_len().is_none() => Some(tail.len() - at),
            _ => None,
        })
        .unwrap_or(0)
}

/// Bytes up to the start of a character that is cut at the end.
pub(crate) fn whole_characters(bytes: &[u8]) -> usize {
    bytes.len() - unfinished(bytes)
}

/// Text of the same number of bytes.
fn text_of(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        text.push_str(part.valid());
        text.extend(std::iter::repeat_n('?', part.invalid().len()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(stream: Stream, bytes: &[u8]) -> Chunk {
        Chunk { stream, offset: 0, bytes: bytes.to_vec() }
    }

    fn texts(events: impl IntoIterator<Item = StreamEvent>) -> Vec<(String, u64)> {
        let text = |event| match event {
            StreamEvent::Stdout { data, offset, .. } | StreamEvent::Stderr { data, offset, .. } => (data, offset),
            other => panic!("{other:?}"),
        };
        events.into_iter().map(text).collect()
    }

    #[test]
    fn characters_cut_anywhere_come_whole_with_true_offsets() {
        let whole = "aß€𝄞z".as_bytes();
        for cut in 1..whole.len() {
            let mut splitter = Splitter::new(OutputEncoding::Utf8, 10);
            let mut events = Vec::new();
            events.extend(splitter.push(chunk(Stream::Stdout, &whole[..cut])));
            events.extend(splitter.push(chunk(Stream::Stdout, &whole[cut..])));
            let texts = texts(events);
            assert_eq!(texts.iter().map(|(text, _)| text.as_str()).collect::<String>(), "aß€𝄞z", "cut at {cut}");
            let mut position = 10;
            for (text, offset) in &texts {
                assert_eq!(*offset, position);
                position += text.len() as u64;
            }
            assert_eq!(splitter.position(), position);
        }
    }

    #[test]
    fn bytes_of_no_character_count_one_each() {
        let mut splitter = Splitter::new(OutputEncoding::Utf8, 0);
        let mut events: Vec<_> = splitter.push(chunk(Stream::Stdout, b"a\xff\xfe\xc3(b\xe2\x82")).into_iter().collect();
        events.extend(splitter.flush());
        assert_eq!(texts(events), [("a???(b".to_owned(), 0), ("??".to_owned(), 6)]);
        assert_eq!(splitter.position(), 8);
    }

    #[test]
    fn the_other_stream_overtakes_half_a_character() {
        let mut splitter = Splitter::new(OutputEncoding::Utf8, 0);
        let mut events = Vec::new();
        events.extend(splitter.push(chunk(Stream::Stdout, b"x\xe2\x82")));
        events.extend(splitter.push(chunk(Stream::Stderr, b"err")));
        events.extend(splitter.push(chunk(Stream::Stdout, b"\xac!")));
        assert_eq!(texts(events), [("x".to_owned(), 0), ("err".to_owned(), 1), ("€!".to_owned(), 4)]);
        assert_eq!(splitter.position(), 8);
    }

    #[test]
    fn lost_bytes_are_told_and_base64_is_exact() {
        let mut splitter = Splitter::new(OutputEncoding::Base64, 5);
        assert_eq!(splitter.skip(0), []);
        assert_eq!(splitter.skip(7), [StreamEvent::Truncated { dropped_bytes: 7, resume_at: 12 }]);
        let event = splitter.push(chunk(Stream::Stderr, b"\xff"));
        assert_eq!(event, Some(StreamEvent::Stderr { data: String::new(), offset: 12, base64: Some("/w==".into()) }));
    }
}
