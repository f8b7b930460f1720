//! What a driver says: a cell's own output as it is, with frames between.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Marks a frame's begin and end.
const SEPARATOR: u8 = 0x1e;
/// A frame that is longer than this is taken for output: no driver writes one.
const FRAME_BYTES_MAX: usize = 8 * 1024 * 1024;

/// A frame of a driver.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "k", rename_all = "lowercase")]
pub(super) enum Frame {
    /// Something to show.
    Result {
        /// The cell's own value.
        main: bool,
        /// By media type.
        data: Map<String, Value>,
    },
    /// Why the cell failed.
    Error { name: String, value: String, traceback: Vec<String> },
    /// The cell has ended.
    Done { status: String, count: u64 },
}

/// A piece of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    Text(Vec<u8>),
    Frame(Frame),
    /// The end of the cell on standard error.
    End,
}

/// Takes one stream of a driver apart. Only frames with the cell's token count; anything else is output, also of programs
/// that print separators.
#[derive(Debug)]
pub(super) struct Frames {
    token: Vec<u8>,
    held: Vec<u8>,
}

impl Frames {
    pub(super) fn new(token: &str) -> Self {
        Self { token: token.as_bytes().to_vec(), held: Vec::new() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let (mut pieces, mut at) = (Vec::new(), 0);
        while let Some(begin) = held[at..].iter().position(|byte| *byte == SEPARATOR) {
            text(&mut pieces, &held[at..at + begin]);
            at += begin;
            match self.frame(&held[at..]) {
                Found::Piece(piece, length) => {
                    pieces.push(piece);
                    at += length;
                }
                Found::None => {
                    text(&mut pieces, &held[at..=at]);
                    at += 1;
                }
                Found::More => {
                    self.held = held.split_off(at);
                    return pieces;
                }
            }
        }
        text(&mut pieces, &held[at..]);
        pieces
    }

    /// What is left at the end of a stream.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Looks at what begins with a separator.
    fn frame(&self, held: &[u8]) -> Found {
        let body = &held[1..];
        let known = body.len().min(self.token.len());
        if body[..known] != self.token[..known] {
            return Found::None;
        }
        let Some(end) = body.iter().position(|byte| *byte == SEPARATOR) else {
            return if body.len() > FRAME_BYTES_MAX { Found::None } else { Found::More };
        };
        let Some(content) = body[..end].strip_prefix(self.token.as_slice()) else { return Found::None };
        let length = end + 2;
        if content.is_empty() {
            return Found::Piece(Piece::End, length);
        }
        match serde_json::from_slice(content) {
            Ok(frame) => Found::Piece(Piece::Frame(frame), length),
            Err(_) => Found::None,
        }
    }
}

enum Found {
    Piece(Piece, usize),
    None,
    More,
}

fn text(pieces: &mut Vec<Piece>, bytes: &[u8]) {
    match pieces.last_mut() {
        _ if bytes.is_empty() => {}
        Some(Piece::Text(before)) => before.extend_from_slice(bytes),
        _ => pieces.push(Piece::Text(bytes.to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_wherever_they_are_cut() {
        let stream = b"out\x1etok{\"k\":\"result\",\"main\":true,\"data\":{\"text/plain\":\"1\"}}\x1emore\x1e \x1eother{}\x1e\x1etok\x1e";
        for cut in 1..stream.len() {
            let mut frames = Frames::new("tok");
            let mut pieces = frames.push(&stream[..cut]);
            pieces.extend(frames.push(&stream[cut..]));
            let out: Vec<u8> = pieces
                .iter()
                .filter_map(|p| if let Piece::Text(t) = p { Some(t.clone()) } else { None })
                .flatten()
                .collect();
            assert_eq!(out, b"outmore\x1e \x1eother{}\x1e", "{cut}");
            assert!(pieces.iter().any(|p| matches!(p, Piece::Frame(Frame::Result { main: true, .. }))), "{cut}");
            assert_eq!(pieces.last(), Some(&Piece::End));
            assert!(frames.rest().is_empty());
        }
    }

    #[test]
    fn separators_alone_are_output_and_cost_no_more_than_other_bytes() {
        let stream = vec![SEPARATOR; 1 << 20];
        let mut frames = Frames::new("tok");
        let mut pieces = frames.push(&stream);
        // The last one may yet begin a frame.
        assert_eq!(frames.rest(), [SEPARATOR]);
        assert_eq!(pieces.pop(), Some(Piece::Text(stream[1..].to_vec())));
        assert!(pieces.is_empty());
    }

    #[test]
    fn a_frame_that_never_ends_is_output_in_the_end() {
        let mut frames = Frames::new("tok");
        assert!(frames.push(b"\x1etok{").is_empty());
        assert_eq!(frames.rest(), b"\x1etok{");
    }
}
