//! Bodies that come piece by piece: lines of a command, pieces of a file.
//!
//! A task reads and sends into a short queue; when the client is slow the queue fills and the task waits, and so in the
//! end does the command. When the client goes away the task ends, and nothing else.

use crate::watches::WAIT_MS_MAX;
use axum::body::{Body, HttpBody};
use branchbox_api::image::LogEvent;
use branchbox_api::watch::{WatchLine, WatchNotice, WatchPage};
use branchbox_api::{CellEvent, ErrorInfo, StreamEvent};
use branchbox_model::Coded;
use branchbox_node::{Cell, FileReader, Follow, Node, NodeError, Packing};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Pieces that wait for a slow client.
const QUEUE: usize = 8;

/// Silence after which a reader of a cell is shown that it still runs.
const SILENCE: Duration = Duration::from_secs(20);

/// How long the lines of a watch go on before their reader is to ask again.
const WATCH_LINES: Duration = Duration::from_secs(110);

/// A piece, or the reason why the body ends early.
type Piece = Result<Bytes, std::io::Error>;

/// A body fed by a task.
struct Fed {
    pieces: mpsc::Receiver<Piece>,
}

impl HttpBody for Fed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        self.pieces.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Events as lines; a sign of life is an empty line.
fn lines(events: &[StreamEvent]) -> Bytes {
    let mut text = Vec::new();
    for event in events {
        if let Ok(line) = serde_json::to_vec(event) {
            text.extend_from_slice(&line);
            text.push(b'\n');
        }
    }
    if text.is_empty() { Bytes::from_static(b"\n") } else { text.into() }
}

/// The lines of a command, after `first`.
pub(crate) fn follow(first: Option<StreamEvent>, follow: Follow, closing: watch::Receiver<bool>) -> Body {
    let (send, pieces) = mpsc::channel(QUEUE);
    if let Some(first) = first {
        // The queue is empty and open.
        let _ = send.try_send(Ok(lines(&[first])));
    }
    tokio::spawn(pump(follow, send, closing));
    Body::new(Fed { pieces })
}

async fn pump(mut follow: Follow, send: mpsc::Sender<Piece>, mut closing: watch::Receiver<bool>) {
    loop {
        let next = tokio::select! {
            next = follow.next() => next,
            () = send.closed() => return,
            () = closed(&mut closing) => {
                let _ = send.send(Ok(lines(&[follow.come_back()]))).await;
                return;
            }
        };
        let events = match next {
            Ok(Some(events)) => events,
            Ok(None) => return,
            Err(error) => {
                let _ = send.send(Ok(lines(&[StreamEvent::Error { error: ErrorInfo::of(&error) }]))).await;
                return;
            }
        };
        if send.send(Ok(lines(&events))).await.is_err() {
            return;
        }
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
}

/// The bytes of a file. One that cannot be read to its end cuts the connection, so that nobody takes a part for it.
pub(crate) fn file(mut reader: FileReader) -> Body {
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            let piece = match reader.next().await {
                Ok(Some(bytes)) => Ok(bytes),
                Ok(None) => return,
                Err(error) => Err(std::io::Error::other(error)),
            };
            let cut = piece.is_err();
            if send.send(piece).await.is_err() || cut {
                return;
            }
        }
    });
    Body::new(Fed { pieces })
}

/// A cell as it runs. A reader that goes away stops it only where that was asked for.
pub(crate) fn cell(mut cell: Cell, interrupt: bool, mut closing: watch::Receiver<bool>) -> Body {
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            let event = tokio::select! {
                event = cell.next() => event,
                () = async { drop(closing.wait_for(|closing| *closing).await) } => return,
                () = tokio::time::sleep(SILENCE) => {
                    if send.send(Ok(Bytes::from_static(b"\n"))).await.is_err() && interrupt {
                        cell.interrupt().await;
                    }
                    continue;
                }
                () = send.closed(), if interrupt => return cell.interrupt().await,
            };
            let (event, is_last) = match event {
                Ok(Some(event)) => (event, false),
                Ok(None) => return,
                Err(error) => (failure(&error), true),
            };
            let mut line = serde_json::to_vec(&event).unwrap_or_default();
            line.push(b'\n');
            // The cell is followed to its end in any case: the next one must not see what it says.
            let is_gone = send.send(Ok(line.into())).await.is_err();
            if is_last {
                return;
            }
            if is_gone && interrupt {
                cell.interrupt().await;
            }
        }
    });
    Body::new(Fed { pieces })
}

/// The log of an image while it is made, and the image at the end.
pub(crate) fn image_log(node: Node, id: String, mut after: u64) -> Body {
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            let page = tokio::select! {
                page = node.next_image_log(&id, after) => page,
                () = send.closed() => return,
                () = tokio::time::sleep(SILENCE) => {
                    if send.send(Ok(Bytes::from_static(b"\n"))).await.is_err() {
                        return;
                    }
                    continue;
                }
            };
            let (events, is_last) = match page {
                Ok(page) => {
                    after = page.next_after;
                    let mut events: Vec<LogEvent> = page.lines.into_iter().map(LogEvent::Line).collect();
                    if page.done {
                        events.push(match node.image(&id) {
                            Ok(image) => LogEvent::Done { image: Box::new(image) },
                            Err(error) => LogEvent::Error { error: ErrorInfo::of(&error) },
                        });
                    }
                    (events, page.done)
                }
                Err(NodeError::Closing) => (vec![LogEvent::Continue { after }], true),
                Err(error) => (vec![LogEvent::Error { error: ErrorInfo::of(&error) }], true),
            };
            let mut text = Vec::new();
            for event in &events {
                text.extend(serde_json::to_vec(event).unwrap_or_default());
                text.push(b'\n');
            }
            if send.send(Ok(text.into())).await.is_err() || is_last {
                return;
            }
        }
    });
    Body::new(Fed { pieces })
}

/// What changes, as it comes. After a while the reader is told to come back; a paused sandbox ends the lines.
pub(crate) fn watch(node: Node, id: String, watch: String, first: WatchPage) -> Body {
    let (send, pieces) = mpsc::channel(QUEUE);
    let mut closing = node.closing();
    tokio::spawn(async move {
        let end = tokio::time::Instant::now() + WATCH_LINES;
        let mut next = Ok(first);
        loop {
            let (lines, cursor) = match next {
                Ok(page) => (watch_lines(&page), Some(page).filter(|page| !page.ended && !page.paused)),
                Err(error) => (vec![watch_failure(&error)], None),
            };
            let mut text: Vec<u8> = lines.iter().flat_map(json_line).collect();
            let cursor = cursor.map(|page| page.next_cursor);
            let is_over = tokio::time::Instant::now() >= end || *closing.borrow();
            if let Some(cursor) = cursor.filter(|_| is_over) {
                text.extend(json_line(&WatchLine::Continue { cursor }));
            } else if text.is_empty() {
                text.push(b'\n');
            }
            let sent = send.send(Ok(text.into())).await;
            let (Some(cursor), Ok(()), false) = (cursor, sent, is_over) else { return };
            next = tokio::select! {
                read = node.read_watch(&id, &watch, cursor, WAIT_MS_MAX) => read,
                () = send.closed() => return,
                () = closed(&mut closing) => Ok(WatchPage { next_cursor: cursor, ..WatchPage::default() }),
            };
        }
    });
    Body::new(Fed { pieces })
}

fn json_line<T: serde::Serialize>(line: &T) -> Vec<u8> {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text
}

fn watch_lines(page: &WatchPage) -> Vec<WatchLine> {
    let cursor = page.next_cursor;
    let mut lines = Vec::new();
    if page.lost_bytes > 0 {
        lines.push(WatchLine::Lost { bytes: page.lost_bytes });
    }
    let mut end = None;
    for notice in &page.notices {
        match notice {
            WatchNotice::Overflow { dropped } => lines.push(WatchLine::Overflow { dropped: *dropped }),
            WatchNotice::Limit { folders } => lines.push(WatchLine::Limit { folders: *folders }),
            WatchNotice::End { reason } => end = Some(reason.clone()),
        }
    }
    if !page.events.is_empty() {
        lines.push(WatchLine::Events { events: page.events.clone(), cursor });
    }
    if page.paused {
        lines.push(WatchLine::Paused { cursor });
    }
    if let (true, Some(reason)) = (page.ended, end) {
        lines.push(WatchLine::End { reason, cursor });
    }
    lines
}

fn watch_failure(error: &NodeError) -> WatchLine {
    let info = ErrorInfo::of(error);
    WatchLine::Failure {
        code: error.code().as_str().into(),
        message: info.message,
        status: info.status,
        hint: error.hint(),
    }
}

fn failure(error: &NodeError) -> CellEvent {
    CellEvent::Failure {
        code: error.code().as_str().into(),
        message: error.to_string(),
        status: error.code().status(),
        hint: error.hint(),
    }
}

/// A folder as it is packed.
pub(crate) fn packing(mut packing: Packing) -> Body {
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        loop {
            let piece = match packing.next().await {
                Ok(Some(bytes)) => Ok(bytes),
                Ok(None) => return,
                Err(error) => Err(std::io::Error::other(error)),
            };
            let cut = piece.is_err();
            if send.send(piece).await.is_err() || cut {
                return packing.give_up().await;
            }
        }
    });
    Body::new(Fed { pieces })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_and_silence_is_an_empty_one() {
        let start = StreamEvent::Start { process_id: "p1".into(), replayed: false };
        let stdout = StreamEvent::Stdout { data: "a\nb".into(), offset: 0, base64: None };
        let text = lines(&[start, stdout]);
        assert_eq!(text.iter().filter(|b| **b == b'\n').count(), 2);
        assert_eq!(&lines(&[])[..], b"\n");
    }
}
