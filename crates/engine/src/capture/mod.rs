//! Capture: the state of every process below the guest, saved at one instant.
//!
//! Steps, in order: `stop` (freeze, seize, repair), `tree`, `objects` (descriptors and what they refer to), `describe` (each
//! process, from outside and through the remote), `memory`, `layer` (the caller takes the files), `release`, `records`.
//! The source stands still from `stop` to `release` and is exactly as before afterwards, whether the capture succeeded,
//! was refused, failed, or the keeper was killed in the middle.
//!
//! What is not listed in the format is refused here by name (law 1): each refusal says who has what, why it cannot be
//! captured and what to do.

mod calls;
mod describe;
mod files;
mod inotify;
mod memory;
mod objects;
mod sockets;
mod tree;

use crate::clocks;
use crate::error::{CaptureError, Refusal};
use crate::fault;
use crate::procfs;
use crate::stop::{self, Stopped};
use branchbox_model::RootSpec;
use branchbox_snapshot::{BlobWriter, Host, Machine, Note, write_machine};
pub use calls::CallHistory;
use objects::Registry;
use rustix::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
pub(crate) use tree::Member;

/// How long a capture waits for what goes away by itself: a connection to be accepted, a datagram to be read.
const PASSING_MAX: Duration = Duration::from_millis(1000);
/// Between attempts; the source runs on meanwhile.
const PASSING_PAUSE: Duration = Duration::from_millis(10);

/// What to capture, and where to.
#[derive(Debug)]
pub struct CaptureRequest<'a> {
    /// Host pid of the guest: everything below it is captured, itself not.
    pub guest_pid: i32,
    /// Host path of the cgroup (version 2) that holds exactly those processes.
    pub cgroup_work: &'a Path,
    /// The guest's own table, kept as it is.
    pub guest_state: Vec<u8>,
    /// Descriptor numbers of the guest that the table mentions.
    pub guest_fds: Vec<i32>,
    /// Last pid given out in the sandbox, as the guest read it.
    pub last_pid: i32,
    /// An existing empty directory for the image.
    pub image: &'a Path,
    /// The sandbox's file tree.
    pub root: &'a RootSpec,
    /// The host's boot.
    pub boot_id: &'a str,
}

/// A finished capture.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Microseconds the source stood still.
    pub pause_us: u64,
    /// Bytes of memory and other bulk content.
    pub memory_bytes: u64,
    /// Bytes of records.
    pub record_bytes: u64,
    /// Processes.
    pub processes: u32,
    /// Threads.
    pub threads: u32,
    /// What a restore will do to programs.
    pub notes: Vec<Note>,
}

/// Every task of a captured sandbox, standing still as captured. Dropping it lets all run on.
#[derive(Debug)]
pub struct Held(Stopped);

impl Held {
    /// Ends every task without another instruction of it. `cgroup_work` is the one they were captured in.
    ///
    /// # Errors
    /// [`CaptureError::Io`] when the cgroup cannot be killed; the tasks run on then.
    pub fn end(self, cgroup_work: &Path) -> Result<(), CaptureError> {
        // A fatal signal takes a task out of its ptrace stop straight to its end.
        std::fs::write(cgroup_work.join("cgroup.kill"), "1")
            .map_err(CaptureError::io("ending the captured processes"))?;
        self.0.bury();
        Ok(())
    }
}

/// The state of a capture under way.
pub(crate) struct Context<'a> {
    pub request: &'a CaptureRequest<'a>,
    pub stopped: &'a Stopped,
    pub members: Vec<Member>,
    /// The sandbox's root directory.
    pub root: OwnedFd,
    /// Host id of the sandbox's id 0.
    pub id_base: u32,
    pub history: &'a CallHistory,
    pub writer: BlobWriter,
    pub notes: Vec<Note>,
}

impl Context<'_> {
    /// A host id as the sandbox sees it.
    pub(crate) fn id(&self, host: u32) -> u32 {
        host.checked_sub(self.id_base).unwrap_or(65_534)
    }
}

/// Refuses something of a process by name.
pub(crate) fn refuse(member: &Member, object: impl Into<String>, why: impl Into<String>, hint: &str) -> CaptureError {
    CaptureError::Refused(Box::new(Refusal {
        pid: member.pid,
        process: procfs::name(member.host_pid),
        object: object.into(),
        why: why.into(),
        hint: hint.into(),
        passing: false,
    }))
}

/// Saves the processes below a guest. `history` belongs to the sandbox and is given to every capture of it. `layer` is called once, while they stand still, to take the files.
///
/// # Errors
/// [`CaptureError`]; the source runs on as before in every case.
pub fn capture(
    request: &CaptureRequest<'_>,
    history: &mut CallHistory,
    layer: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Captured, CaptureError> {
    let taken = take(request, history, layer)?;
    history.settle();
    taken.stopped.release();
    let pause_us = micros(taken.begin);
    fault::point("capture.released").map_err(CaptureError::io("capture.released"))?;
    write(request, taken.writer, taken.machine, pause_us)
}

/// Saves the processes below a guest and keeps them where they are, so that they can be ended in that state: nothing that
/// they do can be missing in the capture. The files are those on disk; nobody writes them any more.
///
/// # Errors
/// [`CaptureError`]; the source runs on as before in every case.
pub fn capture_and_hold(
    request: &CaptureRequest<'_>,
    history: &mut CallHistory,
) -> Result<(Captured, Held), CaptureError> {
    let taken = take(request, history, &mut || Ok(()))?;
    history.settle();
    let captured = write(request, taken.writer, taken.machine, micros(taken.begin))?;
    fault::point("capture.written").map_err(CaptureError::io("capture.written"))?;
    Ok((captured, Held(taken.stopped)))
}

/// Everything of a machine that stands still.
struct Taken {
    begin: Instant,
    stopped: Stopped,
    machine: Machine,
    writer: BlobWriter,
}

fn take(
    request: &CaptureRequest<'_>,
    history: &mut CallHistory,
    layer: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Taken, CaptureError> {
    let begin = Instant::now();
    loop {
        match attempt(request, history, layer) {
            Err(CaptureError::Refused(refusal)) if refusal.passing && begin.elapsed() < PASSING_MAX => {
                BlobWriter::discard(request.image).map_err(CaptureError::Image)?;
                std::thread::sleep(PASSING_PAUSE);
            }
            result => return result,
        }
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

fn attempt(
    request: &CaptureRequest<'_>,
    history: &mut CallHistory,
    layer: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Taken, CaptureError> {
    let writer = BlobWriter::create(request.image).map_err(CaptureError::Image)?;
    let root = rustix::fs::open(
        procfs::path(request.guest_pid, "root"),
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .map_err(|errno| CaptureError::io("opening the sandbox's root")(errno.into()))?;
    let id_base = procfs::id_base(request.guest_pid).map_err(CaptureError::io("reading the id map"))?;

    let begin = Instant::now();
    let stopped = Stopped::stop(request.cgroup_work, history)?;
    let members = tree::members(request, &stopped)?;
    let mut context =
        Context { request, stopped: &stopped, members, root, id_base, history, writer, notes: Vec::new() };
    let mut machine = describe_machine(&mut context)?;
    fault::point("capture.described").map_err(CaptureError::io("capture.described"))?;
    layer().map_err(CaptureError::Layer)?;
    fault::point("capture.layer").map_err(CaptureError::io("capture.layer"))?;
    let Context { writer, notes, .. } = context;
    machine.notes = notes;
    Ok(Taken { begin, stopped, machine, writer })
}

fn write(
    request: &CaptureRequest<'_>,
    writer: BlobWriter,
    machine: Machine,
    pause_us: u64,
) -> Result<Captured, CaptureError> {
    let memory_bytes = writer.finish().map_err(CaptureError::Image)?;
    let record_bytes = write_machine(request.image, &machine).map_err(CaptureError::Image)?;
    Ok(Captured {
        pause_us,
        memory_bytes,
        record_bytes,
        processes: machine.processes.len() as u32,
        threads: machine.processes.iter().map(|process| process.threads.len() as u32).sum(),
        notes: machine.notes,
    })
}

fn describe_machine(context: &mut Context<'_>) -> Result<Machine, CaptureError> {
    tree::refuse_sharing(context)?;
    tree::refuse_impossible(context)?;
    tree::refuse_sysv(context)?;
    let mut registry = Registry::default();
    let tables = registry.descriptors(context)?;
    fault::point("capture.objects").map_err(CaptureError::io("capture.objects"))?;
    let mut processes = Vec::new();
    for index in 0..context.members.len() {
        let member = context.members[index].clone();
        let mut process = describe::process(context, &member)?;
        if let Some(table) = tables.processes.iter().find(|table| table.host_pid == member.host_pid) {
            process.fds.clone_from(&table.slots);
            process.locks.clone_from(&table.locks);
            memory::describe(context, &mut registry, &member, &mut process)?;
        }
        processes.push(process);
    }
    fault::point("capture.memory").map_err(CaptureError::io("capture.memory"))?;
    registry.finish(context)?;
    Ok(Machine {
        host: host(&processes, context.request).map_err(CaptureError::io("reading the host's identity"))?,
        root: context.request.root.clone(),
        last_pid: tree::last_pid(context),
        objects: registry.objects,
        pipes: registry.pipes,
        ghosts: registry.ghosts,
        shared: registry.shared,
        processes,
        guest_state: context.request.guest_state.clone(),
        guest_fds: tables.guest,
        notes: Vec::new(),
    })
}

fn host(processes: &[branchbox_snapshot::Process], request: &CaptureRequest<'_>) -> std::io::Result<Host> {
    let xstate_bytes = processes.iter().flat_map(|process| &process.threads).map(|thread| thread.xstate.len()).max();
    Ok(Host {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        xstate_bytes: xstate_bytes.unwrap_or(0) as u32,
        boot_id: request.boot_id.to_owned(),
        clocks: clocks::now(request.guest_pid)?,
    })
}

/// Host pids of every process in a cgroup and below it; for callers that check membership.
pub(crate) fn cgroup_members(cgroup: &Path) -> Result<Vec<(i32, String)>, CaptureError> {
    stop::processes(cgroup).map_err(CaptureError::io("listing the cgroup"))
}
