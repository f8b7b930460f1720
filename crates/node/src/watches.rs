//! Watches: a program in the sandbox that says what changes, and the reading of what it says.
//!
//! A watch is a command like any other, marked by its tag: it survives a restart of the node, goes on in a fork, and its
//! output can be read from any place that is still kept. Reading wakes no sandbox, and a watch keeps none awake.

use crate::error::NodeError;
use crate::exec::{Process, has_ended};
use crate::node::Node;
use branchbox_api::watch::{FileEvent, WatchInfo, WatchNotice, WatchPage, WatchRequest};
use branchbox_api::{OutputChunk, ProcessState};
use branchbox_model::{SandboxState, Timestamp, User};
use branchbox_protocol::guest::{ExecInfo, SpawnSpec, Stdin};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// Begins the tag of a watch.
const TAG: &str = "watch ";
/// Watches of one sandbox at once.
const WATCHES_MAX: usize = 4;
/// The program, which is the guest's own executable.
const PROGRAM: &str = "/usr/bin/branchbox-watch";
/// Bytes of events in one answer.
const PAGE_BYTES: usize = 256 * 1024;
/// What the program says first.
const READY: &str = "{\"k\":\"ready\"}\n";
/// One look whether it has, and all looks together: a large tree of folders takes its time.
const ARMED_WAIT_MS: u64 = 2000;
const ARMED_WAIT_MAX: Duration = Duration::from_secs(60);
/// Of what it says when it cannot.
const PROBLEM_CHARS_MAX: usize = 500;
const SIGTERM: i32 = 15;
/// How long a watch may take to end.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Whether a command is a watch, which is no use of its sandbox.
pub(crate) fn is_watch(info: &ExecInfo) -> bool {
    info.tag.starts_with(TAG)
}

fn request_of(info: &ExecInfo) -> Option<WatchRequest> {
    serde_json::from_str(info.tag.strip_prefix(TAG)?).ok()
}

fn describe(request: WatchRequest, info: &ExecInfo) -> WatchInfo {
    WatchInfo {
        id: request.id.unwrap_or_else(|| format!("watch-{}", info.exec)),
        path: request.path,
        recursive: request.recursive,
        events: request.events,
        include: request.include,
        exclude: request.exclude,
        batch_ms: request.batch_ms,
        timeout_ms: request.timeout_ms,
        max_watches: request.max_watches,
        cursor: 0,
        created_at: Timestamp(i64::try_from(info.started_ms).unwrap_or(i64::MAX)),
    }
}

fn is_named(info: &ExecInfo, watch: &str) -> bool {
    request_of(info).is_some_and(|request| describe(request, info).id == watch)
}

fn argv(request: &WatchRequest) -> Vec<String> {
    let mut argv = vec![PROGRAM.to_owned()];
    let mut option = |name: &str, value: &str| argv.extend([name.to_owned(), value.to_owned()]);
    request.events.iter().for_each(|kind| option("--event", kind));
    request.include.iter().for_each(|glob| option("--include", glob));
    request.exclude.iter().for_each(|glob| option("--exclude", glob));
    option("--batch-ms", &request.batch_ms.to_string());
    option("--max-folders", &request.max_watches.to_string());
    if request.timeout_ms > 0 {
        option("--timeout-ms", &request.timeout_ms.to_string());
    }
    if request.recursive {
        argv.push("--recursive".into());
    }
    argv.push(request.path.clone());
    argv
}

/// Waits until what happens is seen: before that a change could be missed.
async fn armed(process: &Process) -> Result<(), NodeError> {
    let begun = Instant::now();
    loop {
        let answer = process.look(0, PAGE_BYTES, ARMED_WAIT_MS).await?;
        let said = |stream: &str| -> String {
            let chunks = answer.chunks.iter().filter(|chunk| chunk.stream == stream);
            chunks.map(|chunk| chunk.text.as_str()).collect()
        };
        if said("stdout").contains(READY) {
            return Ok(());
        }
        if answer.process.state != ProcessState::Running || begun.elapsed() > ARMED_WAIT_MAX {
            return Err(NodeError::Watch { problem: said("stderr").trim().chars().take(PROBLEM_CHARS_MAX).collect() });
        }
    }
}

/// What the program says.
#[derive(Deserialize)]
#[serde(untagged)]
enum Said {
    Events { events: Vec<FileEvent> },
    Notice(WatchNotice),
}

impl Node {
    /// Begins a watch.
    ///
    /// # Errors
    /// [`NodeError`]: no such folder, as many watches as there may be, or one of that id.
    pub async fn start_watch(&self, id: &str, request: WatchRequest) -> Result<WatchInfo, NodeError> {
        if request.webhook {
            let hint = "read the watch, and send what it says yourself";
            return Err(NodeError::Unavailable { what: "webhooks".into(), hint });
        }
        self.check_folder(id, &request.path, User::Sandbox).await?;
        let running = self.watch_commands(id).await?;
        let running: Vec<&ExecInfo> = running.iter().filter(|info| !has_ended(info)).collect();
        if let Some(wanted) = &request.id
            && running.iter().any(|info| is_named(info, wanted))
        {
            return Err(NodeError::WatchTaken { id: wanted.clone() });
        }
        if running.len() >= WATCHES_MAX {
            return Err(NodeError::TooManyWatches { max: WATCHES_MAX });
        }
        let mark = serde_json::to_string(&request).unwrap_or_default();
        let spec = SpawnSpec {
            attached: false,
            argv: argv(&request),
            cwd: "/".into(),
            env: Vec::new(),
            env_clear: false,
            user: crate::spawn::ids(User::Sandbox),
            stdin: Stdin::Null,
            pty: None,
            timeout_ms: None,
            display: format!("watch {}", request.path),
            tag: format!("{TAG}{mark}"),
        };
        let process = self.start_spec(id, spec).await?;
        armed(&process).await?;
        Ok(describe(request, &process.info().await?))
    }

    /// Commands that are or were watches, newest first.
    async fn watch_commands(&self, id: &str) -> Result<Vec<ExecInfo>, NodeError> {
        let live = self.live(id)?;
        let (_, guest) = live.guest_quietly(self.inner.state.run_dir()).await?;
        let mut all: Vec<ExecInfo> = guest.list().await?.into_iter().filter(is_watch).collect();
        all.sort_by_key(|info| std::cmp::Reverse(info.exec));
        Ok(all)
    }

    /// The watches that run.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn watches(&self, id: &str) -> Result<Vec<WatchInfo>, NodeError> {
        self.awake(id).await?;
        let all = self.watch_commands(id).await?;
        let running = all.iter().filter(|info| !has_ended(info));
        Ok(running.filter_map(|info| Some(describe(request_of(info)?, info))).collect())
    }

    /// A watch, running or ended.
    async fn watch(&self, id: &str, watch: &str) -> Result<(Process, ExecInfo), NodeError> {
        let all = self.watch_commands(id).await?;
        let missing = || NodeError::NoSandbox { id: format!("watch {}", watch.chars().take(64).collect::<String>()) };
        let info = all.into_iter().find(|info| is_named(info, watch)).ok_or_else(missing)?;
        let (process, _) = self.process(id, &info.exec.to_string()).await?;
        Ok((process, info))
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// [`NodeError`]; one that has ended is no error.
    pub async fn stop_watch(&self, id: &str, watch: &str) -> Result<bool, NodeError> {
        self.awake(id).await?;
        let (process, info) = self.watch(id, watch).await?;
        if has_ended(&info) {
            return Ok(false);
        }
        process.signal(SIGTERM).await?;
        // Told as stopped when it has, but not waited for if it hangs.
        let _ = tokio::time::timeout(STOP_WAIT, process.wait()).await;
        Ok(true)
    }

    /// What changed since a place, waiting for something at most so long. A paused sandbox stays so.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn read_watch(&self, id: &str, watch: &str, cursor: u64, wait_ms: u64) -> Result<WatchPage, NodeError> {
        let is_asleep = || {
            let state = self.live(id).map(|live| live.state());
            matches!(state, Ok(SandboxState::Pausing | SandboxState::Paused | SandboxState::Resuming))
        };
        let paused = WatchPage { next_cursor: cursor, paused: true, ..WatchPage::default() };
        if is_asleep() {
            return Ok(paused);
        }
        let looked = async {
            let (process, _) = self.watch(id, watch).await?;
            process.look(cursor, PAGE_BYTES, wait_ms).await
        };
        match looked.await {
            Ok(answer) => Ok(page(cursor, &answer.chunks, answer.process.state)),
            // It fell asleep meanwhile.
            Err(_) if is_asleep() => Ok(paused),
            Err(error) => Err(error),
        }
    }
}

/// Takes whole lines out of what was read.
fn page(cursor: u64, chunks: &[OutputChunk], state: ProcessState) -> WatchPage {
    let mut page = WatchPage { next_cursor: cursor, ..WatchPage::default() };
    let said = chunks.iter().filter(|chunk| chunk.stream == "stdout");
    let (mut text, mut begin) = (String::new(), cursor);
    for chunk in said {
        let at = begin + text.len() as u64;
        if chunk.offset > at {
            // What lies between is gone, and with it the rest of a line that began there.
            page.lost_bytes += chunk.offset - at;
            text.clear();
            begin = chunk.offset;
        }
        text.push_str(&chunk.text);
    }
    let mut rest = text.as_str();
    while let Some((line, after)) = rest.split_once('\n') {
        if line == READY.trim_end() {
            rest = after;
            continue;
        }
        match serde_json::from_str(line) {
            Ok(Said::Events { events }) => page.events.extend(events),
            Ok(Said::Notice(notice)) => page.notices.push(notice),
            Err(_) => page.lost_bytes += line.len() as u64 + 1,
        }
        rest = after;
    }
    page.next_cursor = begin + (text.len() - rest.len()) as u64;
    page.ended = state != ProcessState::Running && rest.is_empty();
    if page.ended && !page.notices.iter().any(|notice| matches!(notice, WatchNotice::End { .. })) {
        let reason = if state == ProcessState::Killed { "stopped" } else { "exited" };
        page.notices.push(WatchNotice::End { reason: reason.into() });
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(offset: u64, text: &str) -> OutputChunk {
        OutputChunk { stream: "stdout".into(), text: text.into(), offset, base64: None }
    }

    const LINE: &str = "{\"k\":\"events\",\"events\":[{\"type\":\"create\",\"path\":\"/a\",\"isDir\":false}]}\n";

    #[test]
    fn lines_are_taken_whole() {
        let (first, second) = LINE.split_at(20);
        let half = page(0, &[chunk(0, first)], ProcessState::Running);
        assert_eq!((half.next_cursor, half.events.len(), half.ended), (0, 0, false));
        let whole = page(0, &[chunk(0, first), chunk(20, second)], ProcessState::Running);
        assert_eq!((whole.next_cursor, whole.events[0].path.as_str()), (LINE.len() as u64, "/a"));
    }

    #[test]
    fn what_is_lost_is_counted_and_the_rest_of_its_line_with_it() {
        let text = format!("/x\"}}]}}\n{LINE}");
        let read = page(10, &[chunk(110, &text)], ProcessState::Running);
        assert_eq!((read.lost_bytes, read.events.len()), (100 + 7, 1));
        assert_eq!(read.next_cursor, 110 + text.len() as u64);
    }

    #[test]
    fn an_end_has_a_reason() {
        let said = page(0, &[chunk(0, "{\"k\":\"end\",\"reason\":\"timeout\"}\n")], ProcessState::Exited);
        assert_eq!(said.notices, [WatchNotice::End { reason: "timeout".into() }]);
        let killed = page(5, &[], ProcessState::Killed);
        assert!(killed.ended && killed.notices == [WatchNotice::End { reason: "stopped".into() }]);
    }
}
