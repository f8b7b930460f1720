//! Interpreters that keep their state between cells: python, javascript, bash.
//!
//! A context is an ordinary command of the sandbox: a small driver, given to the language's own interpreter on its command
//! line, that reads cells and says what came of them. So a context is captured, forked, paused and found again after a restart
//! of the node like any command; the node remembers nothing of it but who is running a cell now. Its mark is in the command's
//! tag.
//!
//! One cell runs at a time in a context; others wait. What a cell prints is its interpreter's own output, that of its child
//! processes too. What threads of an earlier cell print after its end is not part of any cell.

mod frames;

use crate::error::NodeError;
use crate::exec::{Process, no_process};
use crate::live::Live;
use crate::node::Node;
use crate::spawn::ids;
use crate::splitter::whole_characters;
use branchbox_api::{
    CellError, CellEvent, CellResult, CellStatus, ContextInfo, ContextRequest, Execution, InputRequest, RunRequest,
};
use branchbox_model::{ExecId, SandboxId, Timestamp};
use branchbox_protocol::guest::{Chunk, ExecInfo, ExecState, SpawnSpec, Stdin, Stream};
use frames::{Frame, Frames, Piece};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// Begins the tag of a context.
const TAG: &str = "interpreter ";
/// Contexts of one sandbox.
const CONTEXTS_MAX: usize = 32;
/// How long an interrupted cell may take to end before its context is.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);
/// Between two signals to a cell that is to stop.
const INTERRUPT_AGAIN: Duration = Duration::from_millis(200);
/// Kept of each stream of a cell.
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Kept of all results of a cell.
const RESULTS_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Results of a cell.
const RESULTS_MAX: usize = 100;
/// Between two tries to give a driver more of a long cell.
const INPUT_POLL: Duration = Duration::from_millis(5);
const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// A language that contexts can be in.
struct Language {
    name: &'static str,
    /// The program and the words before the driver's text.
    command: &'static [&'static str],
    driver: &'static str,
}

const LANGUAGES: &[Language] = &[
    Language { name: "python", command: &["python3", "-u", "-c"], driver: include_str!("python.py") },
    Language { name: "javascript", command: &["node", "-e"], driver: include_str!("javascript.js") },
    Language { name: "bash", command: &["bash", "--norc", "-c"], driver: include_str!("shell.sh") },
];

fn language(name: &str) -> Result<&'static Language, NodeError> {
    LANGUAGES.iter().find(|language| language.name == name).ok_or_else(|| NodeError::Unavailable {
        what: format!("interpreter for `{}`", name.chars().take(32).collect::<String>()),
        hint: "use python, javascript or bash, or run the program with :exec",
    })
}

/// What a context's tag says.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Mark {
    id: String,
    language: String,
}

fn mark(info: &ExecInfo) -> Option<Mark> {
    serde_json::from_str(info.tag.strip_prefix(TAG)?).ok()
}

/// Whether a command is a context: one that nobody runs a cell in is no use of its sandbox.
pub(crate) fn is_context(info: &ExecInfo) -> bool {
    info.tag.starts_with(TAG)
}

/// Who runs a cell now, by sandbox and context.
pub(crate) type Turns = Mutex<HashMap<(SandboxId, String), Arc<Turn>>>;

/// The right to use a context, and the cell that has it.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    lock: Arc<tokio::sync::Mutex<()>>,
    cell: Mutex<String>,
}

impl Turn {
    /// The cell that runs now; empty when none does.
    fn cell(&self) -> MutexGuard<'_, String> {
        self.cell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A taken turn.
#[derive(Debug)]
struct Taken {
    turn: Arc<Turn>,
    _guard: OwnedMutexGuard<()>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.turn.cell().clear();
    }
}

/// A context that is there.
struct Context {
    mark: Mark,
    info: ExecInfo,
}

impl Context {
    fn describe(&self) -> ContextInfo {
        ContextInfo {
            id: self.mark.id.clone(),
            language: self.mark.language.clone(),
            cwd: self.info.cwd.clone(),
            created_at: Timestamp(i64::try_from(self.info.started_ms).unwrap_or(i64::MAX)),
        }
    }
}

impl Node {
    fn turn(&self, live: &Live, context: &str) -> Arc<Turn> {
        let mut turns = self.inner.turns.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry((live.id.clone(), context.to_owned())).or_default())
    }

    async fn all_contexts(&self, id: &str) -> Result<Vec<Context>, NodeError> {
        let list = self.guest(id).await?.list().await?;
        let running = list.into_iter().filter(|info| info.state == ExecState::Running);
        Ok(running.filter_map(|info| mark(&info).map(|mark| Context { mark, info })).collect())
    }

    async fn context(&self, id: &str, context: &str) -> Result<Context, NodeError> {
        let found = self.all_contexts(id).await?.into_iter().find(|found| found.mark.id == context);
        found.ok_or_else(|| no_process(&format!("of context {context}")))
    }

    /// The contexts of a sandbox.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn contexts(&self, id: &str) -> Result<Vec<ContextInfo>, NodeError> {
        Ok(self.all_contexts(id).await?.iter().map(Context::describe).collect())
    }

    /// Starts a context; one that is there already is the answer.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn create_context(&self, id: &str, request: ContextRequest) -> Result<ContextInfo, NodeError> {
        let name = request.language.clone().unwrap_or_else(|| "python".into());
        let language = language(&name)?;
        let fresh = || format!("c{}", &SandboxId::generate().as_str().replace('-', "")[20..]);
        let context = request.id.clone().unwrap_or_else(fresh);
        let live = self.awake(id).await?;
        let turn = self.turn(&live, &context);
        let _alone = turn.lock.lock().await;
        match self.context(id, &context).await {
            Ok(found) => Ok(found.describe()),
            Err(NodeError::NoSandbox { .. }) => {
                Ok(self.start_context(&live, language, &context, request).await?.describe())
            }
            Err(error) => Err(error),
        }
    }

    async fn start_context(
        &self,
        live: &Arc<Live>,
        language: &Language,
        context: &str,
        request: ContextRequest,
    ) -> Result<Context, NodeError> {
        let id = live.id.to_string();
        if self.all_contexts(&id).await?.len() >= CONTEXTS_MAX {
            return Err(NodeError::TooManyContexts { max: CONTEXTS_MAX });
        }
        let record = live.record();
        let mark = Mark { id: context.to_owned(), language: language.name.to_owned() };
        let mut env = record.detail.env;
        env.extend(request.env);
        let words = language.command.iter().map(|word| (*word).to_owned());
        let spec = SpawnSpec {
            attached: true,
            argv: words.chain([language.driver.to_owned()]).collect(),
            cwd: request.cwd.unwrap_or_else(|| "/workspace".into()),
            env: env.into_iter().collect(),
            env_clear: false,
            user: ids(record.detail.user),
            stdin: Stdin::Pipe,
            pty: None,
            timeout_ms: None,
            display: format!("{} context {context}", language.name),
            tag: format!("{TAG}{}", serde_json::to_string(&mark).unwrap_or_default()),
        };
        let process = self.start_spec(&id, spec).await?;
        let info = process.info().await?;
        if info.state != ExecState::Running {
            return Err(NodeError::Interpreter {
                problem: format!("{} could not be started: {}", language.command[0], self.said(process).await),
            });
        }
        Ok(Context { mark, info })
    }

    async fn said(&self, process: Process) -> String {
        let looked = process.look(0, 2000, 0).await;
        let text: String =
            looked.map(|answer| answer.chunks.into_iter().map(|chunk| chunk.text).collect()).unwrap_or_default();
        text.trim().to_owned()
    }

    async fn end_context(&self, id: &str, context: &Context) -> Result<(), NodeError> {
        let process = self.process(id, &context.info.exec.to_string()).await?.0;
        process.signal(SIGKILL).await?;
        // Its end is seen by whoever asks next: a killed command is gone in a moment.
        let deadline = Instant::now() + INTERRUPT_GRACE;
        while !process.has_ended().await? && Instant::now() < deadline {
            tokio::time::sleep(INPUT_POLL).await;
        }
        Ok(())
    }

    /// Starts a context again with empty state, whatever runs in it.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn restart_context(&self, id: &str, context: &str) -> Result<ContextInfo, NodeError> {
        let found = self.context(id, context).await?;
        self.end_context(id, &found).await?;
        let request = ContextRequest { cwd: Some(found.info.cwd.clone()), ..ContextRequest::default() };
        let live = self.awake(id).await?;
        Ok(self.start_context(&live, language(&found.mark.language)?, context, request).await?.describe())
    }

    /// Stops the cell that runs in a context, as Ctrl-C would; whether one ran.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn interrupt_context(&self, id: &str, context: &str) -> Result<bool, NodeError> {
        let found = self.context(id, context).await?;
        let live = self.awake(id).await?;
        let turn = self.turn(&live, context);
        let cell = turn.cell().clone();
        if cell.is_empty() {
            return Ok(false);
        }
        let process = self.process(id, &found.info.exec.to_string()).await?.0;
        // An interpreter that has not begun with the cell yet does not take a signal for it.
        let deadline = Instant::now() + INTERRUPT_GRACE;
        while *turn.cell() == cell && Instant::now() < deadline {
            process.signal(SIGINT).await?;
            tokio::time::sleep(INTERRUPT_AGAIN).await;
        }
        Ok(true)
    }

    /// Ends a context; whether there was one.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn delete_context(&self, id: &str, context: &str) -> Result<bool, NodeError> {
        match self.context(id, context).await {
            Ok(found) => self.end_context(id, &found).await.map(|()| true),
            Err(NodeError::NoSandbox { .. }) => {
                self.awake(id).await?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Runs a cell. A language's own context starts by itself.
    ///
    /// # Errors
    /// [`NodeError`]; a cell that fails is none.
    pub async fn run_cell(&self, id: &str, request: RunRequest) -> Result<Cell, NodeError> {
        let live = self.awake(id).await?;
        let context = request.context.clone().or_else(|| request.language.clone()).unwrap_or_else(|| "python".into());
        let turn = self.turn(&live, &context);
        let guard = Arc::clone(&turn.lock).lock_owned().await;
        let turn = Taken { turn, _guard: guard };
        let (found, started) = match self.context(id, &context).await {
            Ok(found) => (found, false),
            // Only the contexts that have a language's name start by themselves.
            Err(missing @ NodeError::NoSandbox { .. }) => match (language(&context), &request.context) {
                (Ok(language), _) => {
                    (self.start_context(&live, language, &context, ContextRequest::default()).await?, true)
                }
                (Err(unknown), None) => return Err(unknown),
                (Err(_), Some(_)) => return Err(missing),
            },
            Err(error) => return Err(error),
        };
        if request.language.as_ref().is_some_and(|language| *language != found.mark.language) {
            let problem = format!("the context is in {}", found.mark.language);
            return Err(branchbox_model::SpecError { field: "language", problem }.into());
        }
        Cell::begin(self, id, found, request, turn, started).await
    }
}

/// A cell that runs.
#[derive(Debug)]
pub struct Cell {
    process: Process,
    stdout: Frames,
    stderr: Frames,
    cursor: u64,
    execution: Execution,
    begun: Instant,
    deadline: Option<Instant>,
    /// Since when it is to end.
    stopping: Option<Instant>,
    timed_out: bool,
    done: bool,
    stderr_done: bool,
    results_bytes: usize,
    events: VecDeque<CellEvent>,
    /// Bytes at the end of each stream that are no whole character yet.
    cut: [Vec<u8>; 2],
    has_ended: bool,
    _turn: Taken,
}

impl Cell {
    async fn begin(
        node: &Node,
        id: &str,
        context: Context,
        request: RunRequest,
        turn: Taken,
        started: bool,
    ) -> Result<Self, NodeError> {
        let exec: ExecId = context.info.exec;
        let process = node.process(id, &exec.to_string()).await?.0;
        let info = process.info().await?;
        let token = SandboxId::generate().as_str().replace('-', "");
        *turn.turn.cell() = token.clone();
        let line = format!("run {token} {}\n", branchbox_api::base64::encode(request.code.as_bytes()));
        send(&process, info.stdin_offset, line.as_bytes()).await?;
        let begun = Instant::now();
        let timeout = (request.timeout_ms > 0).then(|| Duration::from_millis(request.timeout_ms));
        let execution = Execution {
            id: format!("run_{token}"),
            context_id: context.mark.id,
            language: context.mark.language,
            execution_count: 0,
            status: CellStatus::Ok,
            stdout: String::new(),
            stderr: String::new(),
            results: Vec::new(),
            error: None,
            overflow: Vec::new(),
            duration_ms: 0,
            context_started: started,
            lost_bytes: 0,
        };
        let start = CellEvent::Start { id: execution.id.clone(), context_id: execution.context_id.clone() };
        Ok(Self {
            process,
            stdout: Frames::new(&token),
            stderr: Frames::new(&token),
            cursor: info.output_bytes,
            execution,
            begun,
            deadline: timeout.map(|timeout| begun + timeout),
            stopping: None,
            timed_out: false,
            done: false,
            stderr_done: false,
            results_bytes: 0,
            events: VecDeque::from([start]),
            cut: Default::default(),
            has_ended: false,
            _turn: turn,
        })
    }

    /// The next event; the last is the whole execution.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn next(&mut self) -> Result<Option<CellEvent>, NodeError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.has_ended {
                return Ok(None);
            }
            self.step().await?;
        }
    }

    /// The whole execution, without its events.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn finish(mut self) -> Result<Execution, NodeError> {
        while let Some(event) = self.next().await? {
            if let CellEvent::Execution { execution } = event {
                return Ok(*execution);
            }
        }
        Err(NodeError::Interpreter { problem: "it ended without an answer".into() })
    }

    /// Stops it, as Ctrl-C would.
    pub async fn interrupt(&self) {
        let _ = self.process.signal(SIGINT).await;
    }

    async fn step(&mut self) -> Result<(), NodeError> {
        let limit = self.stopping.map(|since| since + INTERRUPT_GRACE).or(self.deadline);
        let output = self.process.output_when_awake(self.cursor);
        let output = match limit {
            None => output.await?,
            Some(limit) => match tokio::time::timeout_at(limit.into(), output).await {
                Ok(output) => output?,
                Err(_) => return self.out_of_time().await,
            },
        };
        let Some(output) = output else { return Ok(()) };
        self.cursor = output.next_cursor;
        self.execution.lost_bytes += output.dropped;
        for chunk in output.chunks {
            self.take(chunk);
        }
        let lost = output.info.state != ExecState::Running;
        if self.done && self.stderr_done {
            self.end(None);
        } else if lost {
            self.end(Some(output.info.state));
        }
        Ok(())
    }

    /// Asks it to stop, and ends its context if it does not.
    async fn out_of_time(&mut self) -> Result<(), NodeError> {
        self.timed_out = true;
        if self.stopping.is_none() {
            self.stopping = Some(Instant::now());
            self.process.signal(SIGINT).await?;
        } else {
            // From here on its end is all that can come.
            (self.stopping, self.deadline) = (None, None);
            self.process.signal(SIGKILL).await?;
        }
        Ok(())
    }

    fn take(&mut self, chunk: Chunk) {
        let frames = if chunk.stream == Stream::Stdout { &mut self.stdout } else { &mut self.stderr };
        for piece in frames.push(&chunk.bytes) {
            match piece {
                Piece::Text(bytes) => self.text(chunk.stream, bytes),
                Piece::End => self.stderr_done = true,
                Piece::Frame(frame) => self.frame(frame),
            }
        }
    }

    fn text(&mut self, stream: Stream, bytes: Vec<u8>) {
        let cut = &mut self.cut[usize::from(stream == Stream::Stderr)];
        let mut all = std::mem::take(cut);
        all.extend(bytes);
        let end = whole_characters(&all);
        *cut = all.split_off(end);
        self.show(stream, String::from_utf8_lossy(&all).into_owned());
    }

    fn show(&mut self, stream: Stream, text: String) {
        if text.is_empty() {
            return;
        }
        let kept = if stream == Stream::Stdout { &mut self.execution.stdout } else { &mut self.execution.stderr };
        if kept.len() + text.len() <= OUTPUT_BYTES_MAX {
            kept.push_str(&text);
        } else {
            self.execution.lost_bytes += text.len() as u64;
            overflowed(&mut self.execution.overflow, if stream == Stream::Stdout { "stdout" } else { "stderr" });
        }
        self.events.push_back(match stream {
            Stream::Stdout => CellEvent::Stdout { text },
            Stream::Stderr => CellEvent::Stderr { text },
        });
    }

    fn frame(&mut self, frame: Frame) {
        match frame {
            Frame::Result { main, data } => {
                let bytes = serde_json::to_vec(&data).map_or(usize::MAX, |text| text.len());
                let fits = self.results_bytes.saturating_add(bytes) <= RESULTS_BYTES_MAX;
                if !fits || self.execution.results.len() >= RESULTS_MAX {
                    return overflowed(&mut self.execution.overflow, "results");
                }
                self.results_bytes += bytes;
                let result = CellResult { main, data, refs: Vec::new() };
                self.execution.results.push(result.clone());
                self.events.push_back(CellEvent::Result(result));
            }
            Frame::Error { name, value, traceback } => {
                let error = CellError { name, value, traceback };
                self.execution.error = Some(error.clone());
                self.events.push_back(CellEvent::Error(error));
            }
            Frame::Done { status, count } => {
                self.done = true;
                self.execution.execution_count = count;
                self.execution.status = match status.as_str() {
                    "ok" => CellStatus::Ok,
                    "interrupted" if self.timed_out => CellStatus::Timeout,
                    "interrupted" => CellStatus::Interrupted,
                    _ => CellStatus::Error,
                };
            }
        }
    }

    /// Puts the execution together; `gone` when its context ended with it.
    fn end(&mut self, gone: Option<ExecState>) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let frames = if stream == Stream::Stdout { &mut self.stdout } else { &mut self.stderr };
            let mut rest = std::mem::take(&mut self.cut[usize::from(stream == Stream::Stderr)]);
            rest.extend(frames.rest());
            self.show(stream, String::from_utf8_lossy(&rest).into_owned());
        }
        if let Some(state) = gone.filter(|_| !self.done) {
            self.execution.status = match state {
                _ if self.timed_out => CellStatus::Timeout,
                // A shell that was told to exit did what it was told.
                ExecState::Exited(0) => CellStatus::Ok,
                _ => CellStatus::Lost,
            };
            if self.execution.status == CellStatus::Lost {
                let value = format!("the interpreter ended: {state:?}");
                self.execution.error = Some(CellError { name: "ContextLost".into(), value, traceback: Vec::new() });
            }
        }
        self.execution.duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let execution = Box::new(self.execution.clone());
        self.events.push_back(CellEvent::Execution { execution });
        self.has_ended = true;
    }
}

fn overflowed(overflow: &mut Vec<String>, what: &str) {
    if !overflow.iter().any(|known| known == what) {
        overflow.push(what.to_owned());
    }
}

/// Gives a driver a line, however long it is.
async fn send(process: &Process, start: u64, line: &[u8]) -> Result<(), NodeError> {
    let mut at = start;
    let end = start + line.len() as u64;
    while at < end {
        let taken = usize::try_from(at - start).unwrap_or(usize::MAX);
        let bytes = line.get(taken..).unwrap_or_default().to_vec();
        at = process.input(InputRequest { bytes, offset: Some(at), eof: false }).await?.offset.max(at);
        if at < end {
            if process.has_ended().await? {
                return Err(NodeError::Interpreter { problem: "it ended before the cell ran".into() });
            }
            tokio::time::sleep(INPUT_POLL).await;
        }
    }
    Ok(())
}
