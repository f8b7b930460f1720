//! What a command has written, kept for readers that come late.
//!
//! One position counts over both streams in the order of reading. The oldest output is dropped when the buffer is full,
//! except what an attached reader has not seen yet: then the pipe is not read any more and the command waits.

use branchbox_protocol::guest::{Chunk, Stream};
use std::collections::VecDeque;

/// Counted for every chunk beside its bytes, so that many tiny ones cannot cost more memory than they count for.
const CHUNK_COST: usize = 64;
/// Chunks in one answer.
const CHUNKS_READ_MAX: usize = 1024;
/// Largest chunk made by joining.
const JOINED_BYTES_MAX: usize = 64 * 1024;

/// Part of the output.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// Adjacent chunks.
    pub chunks: Vec<Chunk>,
    /// Position behind them.
    pub next: u64,
    /// Bytes between the asked position and the first kept one.
    pub dropped: u64,
}

/// The kept output of one command.
#[derive(Debug, Default)]
pub struct Output {
    chunks: VecDeque<Chunk>,
    cost: usize,
    end: u64,
}

impl Output {
    /// The kept output of a saved command; `None` if its chunks are not adjacent or do not end at `end`.
    pub fn from_saved(chunks: Vec<Chunk>, end: u64) -> Option<Self> {
        let mut next = chunks.first().map_or(end, |chunk| chunk.offset);
        for chunk in &chunks {
            if chunk.offset != next || chunk.bytes.is_empty() {
                return None;
            }
            next = next.checked_add(chunk.bytes.len() as u64)?;
        }
        let cost = chunks.iter().map(cost).sum();
        (next == end).then(|| Self { chunks: chunks.into(), cost, end })
    }

    /// What is kept.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter()
    }

    /// Position behind the last byte.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Position of the first kept byte.
    pub fn first_offset(&self) -> u64 {
        self.chunks.front().map_or(self.end, |chunk| chunk.offset)
    }

    /// Whether more may be read for a reader that has seen everything below `seen`.
    pub fn has_room(&self, cost_max: usize, seen: u64) -> bool {
        let unseen = self.chunks.iter().rev().take_while(|chunk| end(chunk) > seen);
        let mut left = cost_max;
        for chunk in unseen {
            match left.checked_sub(cost(chunk)) {
                Some(rest) if rest > 0 => left = rest,
                _ => return false,
            }
        }
        true
    }

    /// Appends; drops the oldest beyond `cost_max`, but nothing from `keep_from` on.
    pub fn push(&mut self, stream: Stream, bytes: Vec<u8>, cost_max: usize, keep_from: Option<u64>) {
        if bytes.is_empty() {
            return;
        }
        let offset = self.end;
        self.end += bytes.len() as u64;
        match self.chunks.back_mut() {
            Some(last) if last.stream == stream && last.bytes.len() + bytes.len() <= JOINED_BYTES_MAX => {
                self.cost += bytes.len();
                last.bytes.extend_from_slice(&bytes);
            }
            _ => {
                self.cost += bytes.len() + CHUNK_COST;
                self.chunks.push_back(Chunk { stream, offset, bytes });
            }
        }
        self.drop_oldest(cost_max, keep_from.unwrap_or(self.end));
    }

    fn drop_oldest(&mut self, cost_max: usize, keep_from: u64) {
        while self.cost > cost_max {
            let excess = self.cost - cost_max;
            let Some(first) = self.chunks.front_mut() else { return };
            let free = usize::try_from(keep_from.saturating_sub(first.offset)).unwrap_or(usize::MAX);
            if first.bytes.len() <= excess && first.bytes.len() <= free {
                self.cost -= cost(first);
                self.chunks.pop_front();
                continue;
            }
            let drained = excess.min(free).min(first.bytes.len().saturating_sub(1));
            first.bytes.drain(..drained);
            first.offset += drained as u64;
            self.cost -= drained;
            return;
        }
    }

    /// Reads up to `bytes_max` from a position; one behind the end reads nothing there.
    pub fn read(&self, cursor: u64, bytes_max: usize) -> Part {
        let start = cursor.clamp(self.first_offset(), self.end);
        let mut part = Part { chunks: Vec::new(), next: start, dropped: start.saturating_sub(cursor) };
        let mut left = bytes_max;
        let first = self.chunks.partition_point(|chunk| end(chunk) <= start);
        for chunk in self.chunks.range(first..).take(CHUNKS_READ_MAX) {
            if left == 0 {
                break;
            }
            let skip = usize::try_from(part.next - chunk.offset).unwrap_or(usize::MAX);
            let rest = chunk.bytes.get(skip..).unwrap_or_default();
            let bytes = rest[..rest.len().min(left)].to_vec();
            left -= bytes.len();
            let offset = part.next;
            part.next += bytes.len() as u64;
            part.chunks.push(Chunk { stream: chunk.stream, offset, bytes });
        }
        part
    }
}

fn cost(chunk: &Chunk) -> usize {
    chunk.bytes.len() + CHUNK_COST
}

fn end(chunk: &Chunk) -> u64 {
    chunk.offset + chunk.bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(part: &Part) -> String {
        part.chunks.iter().map(|chunk| String::from_utf8_lossy(&chunk.bytes).into_owned()).collect()
    }

    #[test]
    fn offsets_count_over_both_streams() {
        let mut output = Output::default();
        output.push(Stream::Stdout, b"abc".to_vec(), 1000, None);
        output.push(Stream::Stderr, b"DE".to_vec(), 1000, None);
        output.push(Stream::Stdout, b"f".to_vec(), 1000, None);
        let part = output.read(1, 4);
        assert_eq!(text(&part), "bcDEf"[..4]);
        assert_eq!(part.chunks.iter().map(|c| c.offset).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((part.next, part.dropped), (5, 0));
        assert_eq!(text(&output.read(part.next, 100)), "f");
        assert_eq!(output.read(99, 100), Part { chunks: vec![], next: 6, dropped: 0 });
    }

    #[test]
    fn the_oldest_is_dropped_and_counted() {
        let mut output = Output::default();
        for n in 0..100u8 {
            output.push(if n % 2 == 0 { Stream::Stdout } else { Stream::Stderr }, vec![n; 100], 1000, None);
        }
        assert_eq!(output.end(), 10_000);
        assert!(output.cost <= 1000 && output.cost > 700, "{}", output.cost);
        let part = output.read(0, 1 << 20);
        assert_eq!(part.dropped, output.first_offset());
        assert_eq!(part.next, 10_000);
        assert_eq!(part.chunks.iter().map(|c| c.bytes.len() as u64).sum::<u64>(), 10_000 - part.dropped);
        assert_eq!(part.chunks.last().expect("chunk").bytes, vec![99; 100]);
    }

    #[test]
    fn nothing_unseen_is_dropped_for_an_attached_reader() {
        let mut output = Output::default();
        output.push(Stream::Stdout, vec![1; 600], 500, Some(0));
        assert_eq!(output.first_offset(), 0);
        assert!(!output.has_room(500, 0));
        assert!(output.has_room(500, 600));
        output.push(Stream::Stderr, vec![2; 100], 500, Some(400));
        assert_eq!(output.first_offset(), 328);
        assert_eq!(output.read(0, 1000).next, 700);
    }

    #[test]
    fn saved_output_must_be_adjacent() {
        let chunk = |offset, bytes: &[u8]| Chunk { stream: Stream::Stdout, offset, bytes: bytes.to_vec() };
        let output = Output::from_saved(vec![chunk(5, b"ab"), chunk(7, b"c")], 8).expect("adjacent");
        assert_eq!((output.first_offset(), output.end()), (5, 8));
        assert!(Output::from_saved(vec![chunk(5, b"ab"), chunk(8, b"c")], 9).is_none());
        assert!(Output::from_saved(vec![chunk(5, b"ab")], 8).is_none());
        assert!(Output::from_saved(vec![chunk(u64::MAX, b"ab")], 1).is_none());
        assert_eq!(Output::from_saved(vec![], 8).expect("nothing kept").first_offset(), 8);
    }
}
