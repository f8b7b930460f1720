//! What was said while an image was made: lines in memory, and in a file for after a restart.

use crate::error::NodeError;
use crate::node::{Inner, Node};
use branchbox_api::ImageState;
use branchbox_api::image::{ImageLogs, LogLine, LogPage};
use branchbox_model::Timestamp;
use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Lines kept of one log, the newest.
const LINES_MAX: usize = 20_000;
/// Bytes of one line; longer ones are cut.
const LINE_BYTES_MAX: usize = 8 * 1024;
/// Lines of one answer.
const PAGE_LINES: usize = 1000;

/// One image's log.
#[derive(Debug)]
pub(crate) struct Log {
    kept: Mutex<Kept>,
    /// The number of the last line, for those who follow.
    last: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<LogLine>,
    file: Option<std::fs::File>,
}

impl Log {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn totals(&self) -> ImageLogs {
        let kept = self.kept();
        ImageLogs { lines: kept.lines.len() as u64, truncated: kept.lines.front().is_some_and(|line| line.seq > 1) }
    }

    /// Adds a line.
    pub(super) fn say(&self, stream: &str, text: &str) {
        let end = (0..=LINE_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let mut kept = self.kept();
        let seq = *self.last.borrow() + 1;
        let line = LogLine { seq, at: Timestamp::now(), stream: stream.into(), text: text[..end].into() };
        if let Some(file) = &mut kept.file
            && let Ok(json) = serde_json::to_string(&line)
            && let Err(error) = writeln!(file, "{json}")
        {
            tracing::warn!(%error, "a line of an image's log is in memory alone");
        }
        kept.lines.push_back(line);
        if kept.lines.len() > LINES_MAX {
            kept.lines.pop_front();
        }
        drop(kept);
        self.last.send_replace(seq);
    }

    /// Wakes those who follow: the image's record says how it ended.
    pub(super) fn end(&self) {
        self.last.send_modify(|_| ());
    }

    /// Lines behind one of them.
    fn after(&self, after: u64) -> Vec<LogLine> {
        let kept = self.kept();
        let start = kept.lines.partition_point(|line| line.seq <= after);
        kept.lines.range(start..).take(PAGE_LINES).cloned().collect()
    }
}

impl Inner {
    fn log_path(&self, id: &str) -> PathBuf {
        self.state.path().join("image-logs").join(format!("{id}.jsonl"))
    }

    /// A new log.
    pub(super) fn new_log(&self, id: &str) -> Arc<Log> {
        let path = self.log_path(id);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::File::create(&path));
        if let Err(error) = &made {
            tracing::warn!(path = %path.display(), %error, "an image's log is kept in memory alone");
        }
        let kept = Kept { file: made.ok(), ..Kept::default() };
        let log = Arc::new(Log { kept: Mutex::new(kept), last: watch::Sender::new(0) });
        self.images.logs.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), Arc::clone(&log));
        log
    }

    /// The log of an image that has one.
    pub(super) fn log_of(&self, id: &str) -> Option<Arc<Log>> {
        let mut logs = self.images.logs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = logs.get(id) {
            return Some(Arc::clone(log));
        }
        let text = std::fs::read_to_string(self.log_path(id)).ok()?;
        let all: Vec<LogLine> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let last = all.last().map_or(0, |line| line.seq);
        let lines = all.into_iter().rev().take(LINES_MAX).rev().collect();
        let log = Arc::new(Log { kept: Mutex::new(Kept { lines, file: None }), last: watch::Sender::new(last) });
        logs.insert(id.to_owned(), Arc::clone(&log));
        Some(log)
    }

    pub(super) async fn forget_log(&self, id: &str) {
        self.images.logs.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        // One that could not be made is not there.
        let _ = tokio::fs::remove_file(self.log_path(id)).await;
    }
}

impl Node {
    /// A page of an image's log.
    ///
    /// # Errors
    /// [`NodeError::NoImage`].
    pub fn image_log(&self, text: &str, after: u64) -> Result<LogPage, NodeError> {
        let image = self.inner.image_record(text)?;
        let log = self.inner.log_of(&image.id);
        let lines = log.as_ref().map(|log| log.after(after)).unwrap_or_default();
        let next_after = lines.last().map_or(after, |line| line.seq);
        let is_made = !matches!(image.state, ImageState::Queued | ImageState::Building);
        let is_last = log.as_ref().is_none_or(|log| next_after >= *log.last.borrow());
        Ok(LogPage {
            lines,
            next_after,
            state: image.state,
            truncated: log.is_some_and(|log| log.totals().truncated),
            done: is_made && is_last,
        })
    }

    /// Waits until an image's log has lines behind one, or the image is made, or the node goes down.
    ///
    /// # Errors
    /// [`NodeError::NoImage`]; [`NodeError::Closing`].
    pub async fn next_image_log(&self, text: &str, after: u64) -> Result<LogPage, NodeError> {
        let (id, mut closing) = (self.inner.image_record(text)?.id, self.closing());
        loop {
            let mut last = self.inner.log_of(&id).map(|log| log.last.subscribe());
            let page = self.image_log(&id, after)?;
            if !page.lines.is_empty() || page.done {
                return Ok(page);
            }
            let Some(last) = &mut last else { return Ok(page) };
            tokio::select! {
                _ = last.changed() => {}
                _ = closing.wait_for(|closing| *closing) => return Err(NodeError::Closing),
            }
        }
    }
}
