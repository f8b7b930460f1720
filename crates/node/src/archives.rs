//! Folders as tar archives, both ways, packed and unpacked by the sandbox's own `tar`.
//!
//! It runs there as an ordinary command of the user who asked, so whatever an archive holds it can do nothing that this user
//! could not do himself, and nothing outside the sandbox. Bytes pass through in pieces, with the reader's speed. An upload in
//! pieces is that command's standard input, so it survives a restart of the node, a fork, and a pause, like any command.

use crate::error::NodeError;
use crate::exec::Process;
use crate::node::Node;
use crate::spawn::ids;
use branchbox_api::{ArchiveBegun, ArchiveUploadRequest, InputRequest, StreamEvent};
use branchbox_model::{SpecError, User};
use branchbox_protocol::guest::{ExecState, FileKind, FileOp, FileReply, SpawnSpec, Stdin, Stream};
use bytes::Bytes;
use std::time::Duration;

/// Bytes of one piece of an archive that is uploaded.
pub const ARCHIVE_CHUNK_BYTES: u32 = 1024 * 1024;
/// Folders left out of one archive.
const EXCLUDES_MAX: usize = 100;
/// How long a packing that nobody reads, or an unpacking that nobody feeds, may stay.
const TAR_MS_MAX: u64 = 3_600_000;
/// How long one piece may wait for `tar` to take it.
const TAKE_WAIT: Duration = Duration::from_secs(60);
const TAKE_POLL: Duration = Duration::from_millis(5);
/// Of what `tar` says when it fails.
const SAID_BYTES_MAX: usize = 2000;
/// Marks the commands that unpack, and those that pack.
const UNPACK: &str = "unpack";
const PACK: &str = "pack";
/// Packs with GNU's `tar`, for which paths to leave out are no patterns, or with another one, whose every failure is one.
const PACKING: &str = "if tar --version 2>/dev/null | grep -q GNU; then exec tar --anchored --no-wildcards \"$@\"; fi; tar \"$@\" || exit 2";
/// GNU's `tar` saw a file change while it read it; the archive is whole.
const CHANGED: i32 = 1;
const SIGKILL: i32 = 9;

/// What to pack.
#[derive(Debug, Clone)]
pub struct Pack {
    /// The folder.
    pub path: String,
    /// Whether the archive is compressed.
    pub gzip: bool,
    /// Who reads.
    pub user: User,
    /// Relative paths that are left out.
    pub excludes: Vec<String>,
    /// Names in the folder; none: all that is in it.
    pub names: Vec<String>,
}

/// A folder being packed.
#[derive(Debug)]
pub struct Packing {
    process: Process,
    cursor: u64,
    said: Vec<u8>,
    has_ended: bool,
}

impl Packing {
    /// The next bytes; `None` after the last.
    ///
    /// # Errors
    /// [`NodeError`]; what came before is no whole archive then.
    pub async fn next(&mut self) -> Result<Option<Bytes>, NodeError> {
        while !self.has_ended {
            let Some(output) = self.process.output_when_awake(self.cursor).await? else { continue };
            if output.dropped > 0 {
                return Err(NodeError::Archive { problem: "parts of it were lost".into() });
            }
            self.cursor = output.next_cursor;
            let mut packed = Vec::new();
            for chunk in output.chunks {
                match chunk.stream {
                    Stream::Stdout => packed.extend_from_slice(&chunk.bytes),
                    Stream::Stderr => note(&mut self.said, &chunk.bytes),
                }
            }
            match output.info.state {
                ExecState::Running => {}
                ExecState::Exited(0 | CHANGED) => self.has_ended = true,
                _ => return Err(failed(&self.said)),
            }
            if !packed.is_empty() {
                return Ok(Some(packed.into()));
            }
        }
        Ok(None)
    }

    /// Ends it when nobody reads on.
    pub async fn give_up(&self) {
        let _ = self.process.signal(SIGKILL).await;
    }
}

fn note(said: &mut Vec<u8>, bytes: &[u8]) {
    let room = SAID_BYTES_MAX.saturating_sub(said.len());
    said.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

fn failed(said: &[u8]) -> NodeError {
    let text = String::from_utf8_lossy(said).trim().to_owned();
    NodeError::Archive { problem: if text.is_empty() { "tar ended without a word".into() } else { text } }
}

fn tar(argv: Vec<String>, user: User, stdin: Stdin, tag: &str, display: String) -> SpawnSpec {
    SpawnSpec {
        attached: true,
        argv,
        cwd: "/".into(),
        env: Vec::new(),
        env_clear: false,
        user: ids(user),
        stdin,
        pty: None,
        timeout_ms: Some(TAR_MS_MAX),
        display,
        tag: tag.into(),
    }
}

fn unpack(path: &str, gzip: bool, user: User, stdin: Stdin) -> SpawnSpec {
    let words = if gzip { "-xzpf" } else { "-xpf" };
    // Owners in the archive are the packer's; files belong to whoever unpacks them, as with any unpacking by a user.
    let argv = ["tar", "--no-same-owner", words, "-", "-C", path].map(str::to_owned).to_vec();
    tar(argv, user, stdin, UNPACK, format!("unpack into {path}"))
}

impl Node {
    /// Packs a folder.
    ///
    /// # Errors
    /// [`NodeError`]: no such folder, or something else is there.
    pub async fn pack(&self, id: &str, pack: Pack) -> Result<Packing, NodeError> {
        if pack.excludes.len() > EXCLUDES_MAX {
            let problem = format!("at most {EXCLUDES_MAX} paths");
            return Err(SpecError { field: "exclude", problem }.into());
        }
        self.check_folder(id, &pack.path, pack.user).await?;
        let mut argv = ["sh", "-c", PACKING, "tar", "-C", &pack.path, if pack.gzip { "-czf" } else { "-cf" }, "-"]
            .map(str::to_owned)
            .to_vec();
        argv.extend(pack.excludes.iter().map(|path| format!("--exclude=./{}", path.trim_matches('/'))));
        match pack.names.as_slice() {
            [] => argv.push(".".to_owned()),
            names => argv.extend(names.iter().map(|name| format!("./{name}"))),
        }
        let spec = tar(argv, pack.user, Stdin::Null, PACK, format!("pack {}", pack.path));
        let process = self.start_spec(id, spec).await?;
        Ok(Packing { process, cursor: 0, said: Vec::new(), has_ended: false })
    }

    pub(crate) async fn check_folder(&self, id: &str, path: &str, user: User) -> Result<(), NodeError> {
        let guest = self.guest(id).await?;
        let refused = |errno: rustix::io::Errno| {
            NodeError::Guest(branchbox_protocol::guest::GuestError::File {
                op: "pack".into(),
                path: path.to_owned(),
                errno: errno.raw_os_error(),
            })
        };
        let look = async |path: String| match guest.file(ids(user), FileOp::Stat { path }).await? {
            FileReply::Entry(found) => Ok(found.map(|entry| entry.kind)),
            _ => Err(guest.wrong_reply()),
        };
        match look(path.to_owned()).await? {
            None => Err(refused(rustix::io::Errno::NOENT)),
            Some(FileKind::Directory) => Ok(()),
            // What a link leads to is seen behind it.
            Some(FileKind::Symlink) if look(format!("{path}/.")).await?.is_some() => Ok(()),
            Some(_) => Err(refused(rustix::io::Errno::NOTDIR)),
        }
    }

    async fn make_folder(&self, id: &str, path: &str, user: User) -> Result<(), NodeError> {
        let guest = self.guest(id).await?;
        guest.file(ids(user), FileOp::Mkdir { path: path.to_owned(), parents: true }).await.map(drop)
    }

    /// Unpacks an archive into a folder, beside what is there.
    ///
    /// # Errors
    /// [`NodeError`]; parts of it may have been unpacked.
    pub async fn unpack(&self, id: &str, path: &str, user: User, archive: Bytes) -> Result<(), NodeError> {
        self.make_folder(id, path, user).await?;
        let gzip = archive.starts_with(&[0x1f, 0x8b]);
        let process = self.start_spec(id, unpack(path, gzip, user, Stdin::Bytes(archive.to_vec()))).await?;
        finish(process).await
    }

    /// Begins an archive that comes in pieces.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn begin_archive(&self, id: &str, request: ArchiveUploadRequest) -> Result<ArchiveBegun, NodeError> {
        self.make_folder(id, &request.path, request.user).await?;
        let spec = unpack(&request.path, request.gzip, request.user, Stdin::Pipe);
        let process = self.start_spec(id, spec).await?;
        Ok(ArchiveBegun { upload_id: process.id(), chunk_bytes: ARCHIVE_CHUNK_BYTES })
    }

    async fn archive(&self, id: &str, upload: &str) -> Result<Process, NodeError> {
        let (process, _) = self.process(id, upload).await?;
        if process.tag().await? == UNPACK { Ok(process) } else { Err(crate::exec::no_process(upload)) }
    }

    /// The next piece; what arrived before is passed over.
    ///
    /// # Errors
    /// [`NodeError`]; also a piece behind what has arrived.
    pub async fn archive_piece(&self, id: &str, upload: &str, offset: u64, bytes: &Bytes) -> Result<(), NodeError> {
        let process = self.archive(id, upload).await?;
        feed(process, offset, bytes).await.map(drop)
    }

    /// Ends an archive that came in pieces, when all of it is unpacked.
    ///
    /// # Errors
    /// [`NodeError`]; parts of it may have been unpacked.
    pub async fn commit_archive(&self, id: &str, upload: &str) -> Result<(), NodeError> {
        let process = self.archive(id, upload).await?;
        if !process.has_ended().await? {
            process.input(InputRequest { bytes: Vec::new(), offset: None, eof: true }).await?;
        }
        finish(process).await
    }

    /// Gives an archive up; what was unpacked stays.
    ///
    /// # Errors
    /// [`NodeError`].
    pub async fn abort_archive(&self, id: &str, upload: &str) -> Result<(), NodeError> {
        let process = self.archive(id, upload).await?;
        if !process.has_ended().await? {
            process.signal(SIGKILL).await?;
        }
        Ok(())
    }
}

/// Gives a command that unpacks its next bytes; what it has had already is passed over.
pub(crate) async fn feed(process: Process, offset: u64, bytes: &Bytes) -> Result<Process, NodeError> {
    let end = offset.saturating_add(bytes.len() as u64);
    let deadline = std::time::Instant::now() + TAKE_WAIT;
    let mut at = offset;
    while at < end {
        let taken = usize::try_from(at - offset).unwrap_or(usize::MAX);
        let rest = bytes.get(taken..).unwrap_or_default().to_vec();
        let accepted = process.input(InputRequest { bytes: rest, offset: Some(at), eof: false }).await?.offset;
        if accepted < at {
            let problem = format!("{accepted} bytes have arrived, this piece begins at {offset}");
            return Err(SpecError { field: "offset", problem }.into());
        }
        at = accepted;
        if at < end {
            if process.has_ended().await? {
                return finish(process).await.and(Err(failed(b"the archive ended before this piece")));
            }
            if std::time::Instant::now() > deadline {
                return Err(failed(b"tar does not take it"));
            }
            tokio::time::sleep(TAKE_POLL).await;
        }
    }
    Ok(process)
}

/// Waits for the end of an unpacking.
pub(crate) async fn finish(process: Process) -> Result<(), NodeError> {
    let mut follow = process.follow(0);
    let mut said = Vec::new();
    while let Some(events) = follow.next().await? {
        for event in events {
            match event {
                StreamEvent::Stdout { data, .. } | StreamEvent::Stderr { data, .. } => note(&mut said, data.as_bytes()),
                StreamEvent::Exit { exit_code: Some(0), .. } => return Ok(()),
                StreamEvent::Exit { .. } => return Err(failed(&said)),
                _ => {}
            }
        }
    }
    Err(failed(&said))
}
