//! The sandbox of a stage: what a builder does in it.

use super::copy::{Selected, Selection};
use super::{Builder, failed};
use crate::archives::{Pack, feed, finish};
use crate::create::Base;
use crate::error::NodeError;
use crate::exec::Process;
use branchbox_api::{CreateRequest, InputRequest, StreamEvent};
use branchbox_model::User;
use branchbox_protocol::guest::{FileKind, FileOp, FileReply, SpawnSpec, Stdin};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::time::Duration;
use tokio::sync::mpsc;

/// Marks the sandboxes of a build; its value is the image's id.
pub(crate) const LABEL: &str = "branchbox/build";
/// How long a sandbox may take to start.
const START_WAIT: Duration = Duration::from_secs(120);
/// Bytes of an archive that go in one piece, and pieces under way.
const PIECE_BYTES: usize = 256 * 1024;
const PIECES: usize = 4;
/// Where a script of a heredoc lies while it runs.
const SCRIPT: &str = "/tmp/.branchbox-build";
/// Names in a root folder.
const ROOT_NAMES_MAX: u32 = 1000;
const ROOT: (u32, u32) = (0, 0);
/// Unpacks at the root. A folder of the archive that is a link in the image (`/lib`) stays one where `tar` can do that.
const UNPACK: &str =
    "if tar --version 2>/dev/null | grep -q GNU; then set -- --keep-directory-symlink; fi; exec tar \"$@\" -xpf - -C /";

/// What the request itself holds of a copy's files.
pub(super) type Files = Vec<(String, u32, Vec<u8>)>;

/// Where a copy's archive comes from.
pub(super) enum Origin {
    /// Files of the request, and the context that was sent.
    Context { archive: Option<std::path::PathBuf>, files: Files },
    /// A folder of another sandbox.
    Folder { sandbox: String, path: String, names: Vec<String> },
}

/// One line's worth of a command's output is held until its end comes.
#[derive(Default)]
struct Lines(BTreeMap<&'static str, String>);

impl Lines {
    fn push(&mut self, stream: &'static str, data: &str, say: &mut dyn FnMut(&str, &str)) {
        let held = self.0.entry(stream).or_default();
        held.push_str(data);
        while let Some(end) = held.find('\n') {
            let line: String = held.drain(..=end).collect();
            say(stream, line.trim_end_matches(['\n', '\r']));
        }
        if held.len() > PIECE_BYTES {
            say(stream, &std::mem::take(held));
        }
    }

    fn end(&mut self, say: &mut dyn FnMut(&str, &str)) {
        for (stream, held) in std::mem::take(&mut self.0) {
            if !held.is_empty() {
                say(stream, &held);
            }
        }
    }
}

/// Bytes that come piece by piece, for code that waits.
struct Pieces {
    from: mpsc::Receiver<Bytes>,
    now: Bytes,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.from.blocking_recv() {
                Some(piece) => self.now = piece,
                None => return Ok(0),
            }
        }
        let count = buffer.len().min(self.now.len());
        buffer[..count].copy_from_slice(&self.now.split_to(count));
        Ok(count)
    }
}

/// The other direction.
struct Sink {
    to: mpsc::Sender<Bytes>,
    held: Vec<u8>,
}

impl Sink {
    fn send(&mut self) -> io::Result<()> {
        let piece = Bytes::from(std::mem::take(&mut self.held));
        if piece.is_empty() {
            return Ok(());
        }
        self.to.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

fn command(argv: Vec<String>, stdin: Stdin, display: &str) -> SpawnSpec {
    SpawnSpec {
        attached: true,
        argv,
        cwd: "/".into(),
        env: Vec::new(),
        env_clear: false,
        user: ROOT,
        stdin,
        pty: None,
        timeout_ms: None,
        display: display.into(),
        tag: "build".into(),
    }
}

impl Builder<'_> {
    /// A new sandbox on these files.
    pub(super) async fn start(&mut self, identity: &str) -> Result<String, NodeError> {
        let root =
            self.node.inner.root_on(identity, branchbox_model::ImageDefaults::default(), std::path::PathBuf::new());
        let base = Base { image: self.id.to_owned(), root: root.await?, start: None };
        let limits = self.request.build;
        let request = CreateRequest {
            labels: Some(BTreeMap::from([(LABEL.to_owned(), self.id.to_owned())])),
            vcpu: limits.vcpu,
            memory_mib: limits.memory_mib,
            disk_mib: limits.disk_mib,
            user: Some(User::Root),
            ..CreateRequest::default()
        };
        let info = self.node.create_on(base, request, START_WAIT).await?;
        self.machines.push(info.id.clone());
        Ok(info.id)
    }

    /// Runs a command to its end and says what it says.
    pub(super) async fn run(&self, sandbox: &str, spec: SpawnSpec) -> Result<(), NodeError> {
        let shown = spec.display.clone();
        let process = self.node.start_spec(sandbox, spec).await?;
        let (mut follow, mut lines) = (process.follow(0), Lines::default());
        let mut say = |stream: &str, text: &str| self.log.say(stream, text);
        while let Some(events) = follow.next().await? {
            for event in events {
                match event {
                    StreamEvent::Stdout { data, .. } => lines.push("stdout", &data, &mut say),
                    StreamEvent::Stderr { data, .. } => lines.push("stderr", &data, &mut say),
                    StreamEvent::Exit { exit_code, out_of_memory, .. } => {
                        lines.end(&mut say);
                        let memory = if out_of_memory.is_some() { ": out of memory" } else { "" };
                        return match exit_code {
                            Some(0) => Ok(()),
                            Some(code) => Err(failed(format!("`{shown}` ended with {code}{memory}"))),
                            None => Err(failed(format!("`{shown}` did not end by itself"))),
                        };
                    }
                    _ => {}
                }
            }
        }
        Err(failed(format!("`{shown}` was lost")))
    }

    /// As [`Builder::run`], with a script that is there as a file meanwhile.
    pub(super) async fn run_script(&self, sandbox: &str, text: &str, mut spec: SpawnSpec) -> Result<(), NodeError> {
        let guest = self.node.guest(sandbox).await?;
        let token = 0;
        let (path, bytes) = (SCRIPT.to_owned(), text.as_bytes().to_vec());
        let write = FileOp::Write { path, offset: 0, bytes, last: true, mode: 0o755, token };
        guest.file(ROOT, write).await?;
        spec.argv = vec![SCRIPT.into()];
        let ran = self.run(sandbox, spec).await;
        let removed = guest.file(ROOT, FileOp::Remove { path: SCRIPT.into(), recursive: false }).await;
        ran.and(removed.map(drop))
    }

    pub(super) async fn make_folder(&self, sandbox: &str, path: &str) -> Result<(), NodeError> {
        if self.is_folder(sandbox, path).await? {
            return Ok(());
        }
        let guest = self.node.guest(sandbox).await?;
        guest.file(ROOT, FileOp::Mkdir { path: path.to_owned(), parents: true }).await.map(drop)
    }

    /// Whether a path is a folder, or leads to one.
    pub(super) async fn is_folder(&self, sandbox: &str, path: &str) -> Result<bool, NodeError> {
        let guest = self.node.guest(sandbox).await?;
        // What a link leads to is seen behind it.
        match guest.file(ROOT, FileOp::Stat { path: format!("{path}/.") }).await {
            Ok(FileReply::Entry(found)) => Ok(found.is_some_and(|entry| entry.kind == FileKind::Directory)),
            Ok(_) => Err(guest.wrong_reply()),
            // A file has nothing below it.
            Err(NodeError::Guest(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What is in the root folder but for what the kernel shows there, which is no content of an image.
    pub(super) async fn root_names(&self, sandbox: &str) -> Result<Vec<String>, NodeError> {
        let guest = self.node.guest(sandbox).await?;
        let op = FileOp::List { path: "/".into(), depth: 1, hidden: true, glob: None, limit: ROOT_NAMES_MAX };
        let FileReply::Entries { entries, .. } = guest.file(ROOT, op).await? else { return Err(guest.wrong_reply()) };
        let names = entries.into_iter().map(|entry| entry.name);
        Ok(names.filter(|name| !["proc", "sys", "dev", "run"].contains(&name.as_str())).collect())
    }

    /// Uid and gid of `name`, `id`, `name:group`, `id:group`.
    pub(super) async fn owner(&self, sandbox: &str, text: &str) -> Result<(u32, u32), NodeError> {
        let found = self.node.owner_in(sandbox, text).await?;
        found.ok_or_else(|| failed(format!("the image has no user or group `{text}`")))
    }

    /// Copies: what is chosen of `origin` goes as one archive into the sandbox.
    pub(super) async fn put(&self, sandbox: &str, selection: Selection, origin: Origin) -> Result<Selected, NodeError> {
        let (from_tx, from_rx) = mpsc::channel(PIECES);
        let (to_tx, mut to_rx) = mpsc::channel(PIECES);
        let (archive, files, packing) = match origin {
            Origin::Context { archive, files } => (archive, files, None),
            Origin::Folder { sandbox, path, names } => {
                let pack = Pack { path, gzip: false, user: User::Root, excludes: Vec::new(), names };
                (None, Vec::new(), Some(self.node.pack(&sandbox, pack).await?))
            }
        };
        let is_packed = packing.is_some();
        let work = tokio::task::spawn_blocking(move || -> io::Result<(Selection, Selected)> {
            let (mut made, mut selected) =
                (tar::Builder::new(Sink { to: to_tx, held: Vec::new() }), Selected::default());
            for (path, mode, content) in &files {
                selection.copy_bytes((path, *mode, content), &mut made, &mut selected)?;
            }
            if let Some(archive) = archive {
                selection.copy(io::BufReader::new(std::fs::File::open(archive)?), &mut made, &mut selected)?;
            } else if is_packed {
                selection.copy(Pieces { from: from_rx, now: Bytes::new() }, &mut made, &mut selected)?;
            }
            made.into_inner()?.flush()?;
            Ok((selection, selected))
        });
        let supply = async move {
            let Some(mut packing) = packing else { return Ok(()) };
            while let Some(piece) = packing.next().await? {
                if from_tx.send(piece).await.is_err() {
                    packing.give_up().await;
                    break;
                }
            }
            Ok::<(), NodeError>(())
        };
        let argv = ["sh", "-c", UNPACK, "tar"].map(str::to_owned).to_vec();
        let mut process: Process = self.node.start_spec(sandbox, command(argv, Stdin::Pipe, "copy")).await?;
        let demand = async move {
            let mut at = 0;
            while let Some(piece) = to_rx.recv().await {
                process = feed(process, at, &piece).await?;
                at += piece.len() as u64;
            }
            if !process.has_ended().await? {
                process.input(InputRequest { bytes: Vec::new(), offset: None, eof: true }).await?;
            }
            finish(process).await
        };
        let (supplied, demanded) = tokio::join!(supply, demand);
        let worked = work.await.map_err(|_| NodeError::CutOff)?;
        // The first of the three to break says why.
        supplied?;
        let (selection, selected) = match worked {
            Ok(done) => done,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                demanded?;
                return Err(failed("the sandbox did not take what is copied"));
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        demanded?;
        match selection.missing(&selected) {
            Some(missing) => Err(failed(format!("there is no `{missing}` to copy"))),
            None => Ok(selected),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_lines() {
        let (mut lines, mut said) = (Lines::default(), Vec::new());
        let mut say = |stream: &str, text: &str| said.push(format!("{stream} {text}"));
        lines.push("stdout", "a\nb", &mut say);
        lines.push("stderr", "e\r\n", &mut say);
        lines.push("stdout", "c\n\nd", &mut say);
        lines.end(&mut say);
        assert_eq!(said, ["stdout a", "stderr e", "stdout bc", "stdout ", "stdout d"]);
    }
}
