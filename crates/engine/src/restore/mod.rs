//! Restore: the processes of a captured machine, made again below a fresh guest.
//!
//! The guest makes the kernel objects and its own children ([`crate::rebuild`]); everything else is done from here, through
//! remotes: each new task waits in a region of memory that keeper, guest and all tasks share, and makes the system calls that
//! are put into its slot. All logic stays on this side.
//!
//! Order: objects, tree, and then for each process memory, descriptors, threads, attributes, rights, pending signals, limits,
//! and last registers, after the region has been unmapped from it. Everything is let go at the same time by
//! [`Restored::release`]. Until then every task dies with the keeper.

mod memory;
mod process;
mod remote;
mod saved;
pub(crate) mod tree;

use crate::error::RestoreError;
use crate::fault;
use crate::live::Call;
use crate::procfs::{self, Status};
use crate::rebuild::{ObjectsMade, ObjectsPlan, Region, Step};
use branchbox_model::RootSpec;
use branchbox_snapshot::{BlobReader, Life, Machine, Note, ObjectKind, Process};
use branchbox_sys::memory::Shared;
use branchbox_sys::ptrace::{self, Stop};
use branchbox_sys::remote::{self as code, Entry};
use branchbox_sys::task;
use remote::{Batch, Remote, SLOT_BYTES};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
pub use saved::Saved;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use tree::Op;

const CODE_BYTES: usize = 4096;
/// Lowest number of an object's descriptor in the guest, above what the guest itself uses.
const BASE_FD_MIN: i32 = 64;
/// Regions are looked for from here up, in steps; programs place nothing here by themselves.
const REGION_FIRST: u64 = 1 << 40;
const REGION_STEP: u64 = 1 << 39;
const ADDRESS_END: u64 = 0x7fff_0000_0000;
const SPARE_BYTES: u64 = 1 << 20;
const SIGCHLD: u64 = 17;
const SYS_WAIT4: i64 = 61;
const SYS_SETPGID: i64 = 109;
const SYS_SETSID: i64 = 112;
const SYS_EXIT_GROUP: i64 = 231;
const SYS_CLONE3: i64 = 435;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_THREAD_SET: u64 = 0x100 | 0x200 | 0x400 | 0x800 | 0x1_0000 | 0x4_0000;
const NOFILE: u32 = 7;

/// How a restore talks to the fresh guest.
pub trait GuestLink {
    /// Sends one rebuild step and gives its answer.
    ///
    /// # Errors
    /// The guest's own sentence, or why it cannot be reached.
    fn rebuild(&mut self, plan: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, String>;
}

/// What to restore, and below whom.
#[derive(Debug)]
pub struct RestoreRequest<'a> {
    /// Host pid of the fresh guest, still unsealed.
    pub guest_pid: i32,
    /// Host path of the sandbox's `work` cgroup.
    pub cgroup_work: &'a Path,
    /// The new sandbox's file tree, with which the capture was opened.
    pub root: &'a RootSpec,
}

/// A restored machine, every task of it still held.
#[derive(Debug)]
pub struct Restored {
    /// The saved guest's table.
    pub guest_state: Vec<u8>,
    /// For each descriptor number in that table, its number in the new guest.
    pub fds: Vec<(i32, i32)>,
    /// What the restore did to programs.
    pub notes: Vec<Note>,
    /// Processes that will run.
    pub processes: u32,
    tasks: Vec<i32>,
    stopped: Vec<i32>,
}

impl Restored {
    /// Lets every task run.
    ///
    /// # Errors
    /// [`RestoreError::Io`] when one is gone; the sandbox is not the captured machine then.
    pub fn release(mut self) -> Result<(), RestoreError> {
        point("restore.release")?;
        for pid in std::mem::take(&mut self.stopped) {
            let pid = rustix::process::Pid::from_raw(pid).expect("a host pid is positive");
            rustix::process::kill_process(pid, rustix::process::Signal::STOP)
                .map_err(|errno| RestoreError::io("stopping a process that was stopped")(errno.into()))?;
        }
        let mut failure = None;
        self.tasks.retain(|&tid| match ptrace::detach(tid) {
            Ok(()) => false,
            Err(error) => {
                failure.get_or_insert(RestoreError::io(format!("letting task {tid} go"))(error));
                true
            }
        });
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        end_traced(&self.tasks);
    }
}

/// Ends traced tasks and takes their last reports: a pid namespace does not go away while a tracer has not. A process's first
/// thread reports after all others, which were made after it.
fn end_traced(tasks: &[i32]) {
    for pid in tasks.iter().filter_map(|&tid| rustix::process::Pid::from_raw(tid)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
    for &tid in tasks.iter().rev() {
        while ptrace::wait(tid).is_ok_and(|stop| !matches!(stop, Stop::Exited(_) | Stop::Killed(_))) {}
    }
}

fn point(name: &'static str) -> Result<(), RestoreError> {
    fault::point(name).map_err(RestoreError::io(name))
}

/// Makes the machine of a capture again.
///
/// # Errors
/// [`RestoreError`]; the caller destroys the half-made sandbox.
pub fn restore(
    request: &RestoreRequest<'_>,
    saved: Saved,
    guest: &mut dyn GuestLink,
) -> Result<Restored, RestoreError> {
    let Saved { machine, pages, .. } = saved;
    let limit = raise_descriptor_limit(request.guest_pid).map_err(RestoreError::io("raising the guest's limit"))?;
    point("restore.limit")?;
    let mut restore = Restore::begin(request, &machine, pages)?;
    point("restore.region")?;
    let restored = match restore.run(guest) {
        Ok(restored) => restored,
        Err(error) => {
            end_traced(&restore.seized);
            return Err(error);
        }
    };
    task::limit(request.guest_pid, NOFILE, Some(limit)).map_err(RestoreError::io("putting back the guest's limit"))?;
    Ok(restored)
}

fn raise_descriptor_limit(guest: i32) -> io::Result<task::Limit> {
    let limit = task::limit(guest, NOFILE, None)?;
    task::limit(guest, NOFILE, Some((limit.1, limit.1)))?;
    Ok(limit)
}

struct Restore<'a> {
    request: &'a RestoreRequest<'a>,
    machine: &'a Machine,
    pages: BlobReader,
    region: Region,
    spare: u64,
    file: OwnedFd,
    shared: Shared,
    slots: usize,
    fds: Vec<i32>,
    leaders: HashMap<i32, Remote>,
    /// Every task that was seized and not ended since, makers before those they made.
    seized: Vec<i32>,
    tasks: Vec<i32>,
    stopped: Vec<i32>,
    notes: Vec<Note>,
}

impl<'a> Restore<'a> {
    fn begin(request: &'a RestoreRequest<'a>, machine: &'a Machine, pages: BlobReader) -> Result<Self, RestoreError> {
        let threads: usize = machine.processes.iter().map(|process| process.threads.len().max(1)).sum();
        // A session or group without a leader, and an orphan, each need one task more.
        let slots = threads + 2 * machine.processes.len() + 1;
        let bytes = CODE_BYTES + slots * SLOT_BYTES;
        let failed = |what: &'static str| RestoreError::io(what);
        let address =
            free_address(request, machine, bytes as u64 + SPARE_BYTES).map_err(failed("finding a free region"))?;
        let file = rustix::fs::memfd_create("branchbox-remote", rustix::fs::MemfdFlags::CLOEXEC)
            .and_then(|file| rustix::fs::ftruncate(&file, bytes as u64).map(|()| file))
            .map_err(|errno| failed("making the region")(errno.into()))?;
        let shared = Shared::map(&file, bytes).map_err(failed("mapping the region"))?;
        shared.write(0, code::code());
        let region = Region { address, bytes: bytes as u64, code_bytes: CODE_BYTES as u64 };
        Ok(Self {
            request,
            machine,
            pages,
            region,
            spare: address + bytes as u64,
            file,
            shared,
            slots: 0,
            fds: Vec::new(),
            leaders: HashMap::new(),
            seized: Vec::new(),
            tasks: Vec::new(),
            stopped: Vec::new(),
            notes: Vec::new(),
        })
    }

    fn run(&mut self, guest: &mut dyn GuestLink) -> Result<Restored, RestoreError> {
        let machine = self.machine;
        self.objects(guest)?;
        point("restore.objects")?;
        self.tree(guest)?;
        point("restore.tree")?;
        for process in &machine.processes {
            self.process(process)?;
        }
        point("restore.processes")?;
        self.finish(guest)
    }

    fn step(guest: &mut dyn GuestLink, step: &Step, fds: &[BorrowedFd<'_>]) -> Result<Vec<u8>, RestoreError> {
        let plan = branchbox_snapshot::to_bytes(step).map_err(|error| RestoreError::Guest(error.to_string()))?;
        guest.rebuild(&plan, fds).map_err(RestoreError::Guest)
    }

    fn objects(&mut self, guest: &mut dyn GuestLink) -> Result<(), RestoreError> {
        let machine = self.machine;
        let highest = machine.processes.iter().flat_map(|process| &process.fds).map(|slot| slot.fd).max().unwrap_or(0);
        let mut cgroups: Vec<String> =
            machine.processes.iter().map(|process| process.cgroup.clone()).filter(|name| !name.is_empty()).collect();
        cgroups.sort();
        cgroups.dedup();
        let plan = Step::Objects(Box::new(ObjectsPlan {
            base_fd: (highest + 1).max(BASE_FD_MIN),
            region: self.region,
            cgroups,
            objects: machine.objects.clone(),
            pipes: machine.pipes.clone(),
            ghosts: machine.ghosts.clone(),
            shared: machine.shared.clone(),
        }));
        let answer = Self::step(guest, &plan, &[self.file.as_fd(), self.pages.file().as_fd()])?;
        let made: ObjectsMade =
            branchbox_snapshot::from_bytes(&answer).map_err(|error| RestoreError::Guest(error.to_string()))?;
        if let Some(path) = made.changed {
            return Err(RestoreError::BaseChanged { path });
        }
        if made.fds.len() != machine.objects.len() {
            return Err(RestoreError::Guest("it made another number of objects than asked".into()));
        }
        self.fds = made.fds;
        self.notes.extend(made.moved.into_iter().map(|path| Note {
            kind: "inode_changed".into(),
            pid: None,
            detail: format!("{path} has another inode number than before"),
        }));
        Ok(())
    }

    fn slot(&mut self) -> usize {
        self.slots += 1;
        CODE_BYTES + (self.slots - 1) * SLOT_BYTES
    }

    fn leader(&self, pid: i32) -> Result<Remote, RestoreError> {
        let missing = || RestoreError::process(pid, "finding it")(io::Error::other("it was not made"));
        self.leaders.get(&pid).copied().ok_or_else(missing)
    }

    fn batch(&self, remote: Remote) -> Batch<'_> {
        Batch::new(remote, &self.shared, self.region.address)
    }

    fn tree(&mut self, guest: &mut dyn GuestLink) -> Result<(), RestoreError> {
        let nodes: Vec<tree::Node> = self
            .machine
            .processes
            .iter()
            .map(|p| tree::Node { pid: p.pid, parent: p.parent, group: p.group, session: p.session })
            .collect();
        let ops = tree::plan(&nodes)
            .map_err(|error| RestoreError::process(error.pid, "planning the tree")(io::Error::other(error)))?;
        let first: Vec<i32> =
            ops.iter().filter_map(|op| if let Op::Guest { pid } = op { Some(*pid) } else { None }).collect();
        let park = self.region.address + code::entry_offset(Entry::Park) as u64;
        if !first.is_empty() {
            Self::step(guest, &Step::Spawn { pids: first, park }, &[])?;
            point("restore.spawned")?;
            self.adopt_children()?;
        }
        for op in ops {
            self.op(op).map_err(RestoreError::process(op_pid(op), format!("{op:?}")))?;
        }
        for process in self.machine.processes.iter().filter(|process| !process.cgroup.is_empty()) {
            let remote = self.leader(process.pid)?;
            let path = self.request.cgroup_work.join(&process.cgroup).join("cgroup.procs");
            std::fs::write(path, remote.host_tid.to_string())
                .map_err(RestoreError::process(process.pid, "entering its cgroup"))?;
        }
        for process in &self.machine.processes {
            if let Life::Zombie(status) = process.life {
                self.end(process.pid, status).map_err(RestoreError::process(process.pid, "ending it"))?;
            }
        }
        Ok(())
    }

    fn adopt_children(&mut self) -> Result<(), RestoreError> {
        let children =
            procfs::children(self.request.guest_pid).map_err(RestoreError::io("listing the guest's children"))?;
        for host_tid in children {
            let pid = Status::read(host_tid).map_err(RestoreError::io("reading a child"))?.inside("NSpid");
            self.seized.push(host_tid);
            remote::adopt(host_tid).map_err(RestoreError::process(pid, "seizing it"))?;
            let slot = self.slot();
            self.leaders.insert(pid, Remote { host_tid, pid, tid: pid, slot });
        }
        Ok(())
    }

    /// A task makes another with clone3; the new one is stopped before its first instruction.
    fn clone_task(&mut self, by: Remote, flags: u64, exit_signal: u64, set_tid: i32) -> io::Result<(i32, i32)> {
        let mut batch = self.batch(by);
        let tid = batch.data(&set_tid.to_le_bytes())?;
        let with_tid = u64::from(set_tid != 0);
        let words = [flags, 0, 0, 0, exit_signal, 0, 0, 0, tid * with_tid, with_tid, 0];
        let args: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let args = batch.data(&args)?;
        let mut made = Vec::new();
        let call = Call::new(SYS_CLONE3, &[args, 88]);
        let results = remote::run(by, &self.shared, self.region.address, &[call], &mut made);
        self.seized.extend(&made);
        let result = results?[0];
        if result < 0 {
            return Err(io::Error::from_raw_os_error(-result as i32));
        }
        let host_tid = made.first().copied().ok_or_else(|| io::Error::other("the new task was not reported"))?;
        remote::await_event(host_tid)?;
        Ok((host_tid, result as i32))
    }

    fn make(&mut self, by: i32, pid: i32, flags: u64, exit_signal: u64) -> io::Result<()> {
        let by = self.leaders.get(&by).copied().ok_or_else(|| io::Error::other("its maker was not made"))?;
        let (host_tid, _) = self.clone_task(by, flags, exit_signal, pid)?;
        let slot = self.slot();
        self.leaders.insert(pid, Remote { host_tid, pid, tid: pid, slot });
        Ok(())
    }

    fn op(&mut self, op: Op) -> io::Result<()> {
        let known = |restore: &Self, pid: i32| {
            restore.leaders.get(&pid).copied().ok_or_else(|| io::Error::other("it was not made"))
        };
        match op {
            Op::Guest { .. } => Ok(()),
            Op::Child { by, pid } => self.make(by, pid, 0, SIGCHLD),
            Op::Sibling { by, pid } => self.make(by, pid, CLONE_PARENT, 0),
            Op::Orphan { by, pid } => {
                let maker = known(self, by)?;
                let (host_tid, inner) = self.clone_task(maker, 0, SIGCHLD, 0)?;
                let slot = self.slot();
                self.leaders.insert(inner, Remote { host_tid, pid: inner, tid: inner, slot });
                self.make(inner, pid, 0, SIGCHLD)?;
                self.end(inner, 0)?;
                self.reap(by, inner)
            }
            Op::Session { pid } => {
                let mut batch = self.batch(known(self, pid)?);
                batch.call(SYS_SETSID, &[]);
                batch.run().map(drop)
            }
            Op::Group { pid, group } => {
                let mut batch = self.batch(known(self, pid)?);
                batch.call(SYS_SETPGID, &[0, group as u64]);
                batch.run().map(drop)
            }
            Op::End { pid, parent } => {
                self.end(pid, 0)?;
                if parent == 1 { Ok(()) } else { self.reap(parent, pid) }
            }
        }
    }

    fn reap(&mut self, parent: i32, pid: i32) -> io::Result<()> {
        const WALL: u64 = 0x4000_0000;
        let parent = self.leaders.get(&parent).copied().ok_or_else(|| io::Error::other("its parent was not made"))?;
        let mut batch = self.batch(parent);
        batch.call(SYS_WAIT4, &[pid as u64, 0, WALL, 0]);
        batch.run().map(drop)
    }

    /// Ends a process with a wait status; its parent sees it as the captured parent saw the original.
    fn end(&mut self, pid: i32, status: i32) -> io::Result<()> {
        let remote = self.leaders.remove(&pid).ok_or_else(|| io::Error::other("it was not made"))?;
        let signal = status & 0x7f;
        if signal == 0 {
            let call = Call::new(SYS_EXIT_GROUP, &[(status >> 8 & 0xff) as u64]);
            crate::live::write_batch(&self.shared, remote.slot, &[call], [0; 4]);
            remote::start(remote, self.region.address)?;
        } else {
            let mut batch = self.batch(remote);
            let default = batch.data(&[0u8; 32])?;
            batch.attempt(13, &[signal as u64, default, 0, 8]);
            batch.run()?;
            ptrace::cont(remote.host_tid, signal)?;
        }
        loop {
            match ptrace::wait(remote.host_tid)? {
                Stop::Exited(_) | Stop::Killed(_) => break,
                _ => ptrace::cont(remote.host_tid, signal)?,
            }
        }
        // Its number may be another's from now on.
        self.seized.retain(|&tid| tid != remote.host_tid);
        Ok(())
    }

    fn process(&mut self, process: &Process) -> Result<(), RestoreError> {
        if matches!(process.life, Life::Zombie(_)) {
            return Ok(());
        }
        let pid = process.pid;
        let failed = |what: &'static str| RestoreError::process(pid, what);
        let leader = self.leader(pid)?;
        let source = memory::Source {
            host_pid: leader.host_tid,
            fds: &self.fds,
            pages: &self.pages,
            region: (self.region.address, self.region.address + self.region.bytes),
            spare: self.spare,
        };
        let syscall_at =
            memory::build(&mut self.batch(leader), &process.memory, &source).map_err(failed("making its memory"))?;
        point("restore.memory")?;
        process::descriptors(&mut self.batch(leader), process, &self.machine.objects, &self.fds)
            .map_err(failed("placing its descriptors"))?;
        point("restore.descriptors")?;
        let mut remotes = vec![leader];
        for thread in &process.threads[1..] {
            let made = self.clone_task(leader, CLONE_THREAD_SET, 0, thread.tid).map_err(failed("making a thread"))?;
            let slot = self.slot();
            remotes.push(Remote { host_tid: made.0, pid, tid: thread.tid, slot });
        }
        point("restore.threads")?;
        process::attributes(&mut self.batch(leader), process).map_err(failed("its attributes"))?;
        for (index, (thread, remote)) in process.threads.iter().zip(&remotes).enumerate() {
            process::thread(&mut self.batch(*remote), process, thread).map_err(failed("a thread's attributes"))?;
            process::pending(&mut self.batch(*remote), process, thread, index == 0)
                .map_err(failed("pending signals"))?;
        }
        point("restore.attributes")?;
        let lowered = process::from_outside(process, &remotes).map_err(failed("its limits and scheduling"))?;
        self.notes.extend(lowered.into_iter().map(|detail| Note {
            kind: "limit_lowered".into(),
            pid: Some(pid),
            detail,
        }));
        remote::unmap_region(leader, syscall_at, self.region.address, self.region.bytes)
            .map_err(failed("leaving the region"))?;
        point("restore.unmapped")?;
        for (thread, remote) in process.threads.iter().zip(&remotes) {
            process::registers(*remote, thread).map_err(failed("a thread's registers"))?;
            self.tasks.push(remote.host_tid);
        }
        if let Life::Stopped(_) = process.life {
            self.stopped.push(leader.host_tid);
        }
        point("restore.process")
    }

    fn finish(&mut self, guest: &mut dyn GuestLink) -> Result<Restored, RestoreError> {
        let fds: Vec<(i32, i32)> = self
            .machine
            .guest_fds
            .iter()
            .filter_map(|&(old, object)| Some((old, self.fds.get(object.0 as usize).copied().filter(|&fd| fd >= 0)?)))
            .collect();
        let close = self.fds.iter().copied().filter(|fd| *fd >= 0 && !fds.iter().any(|(_, kept)| kept == fd)).collect();
        let watches = self.machine.objects.iter().zip(&self.fds).filter_map(|(object, fd)| match &object.kind {
            ObjectKind::Inotify { watches } => Some((*fd, watches.clone())),
            _ => None,
        });
        let watches = watches.collect();
        let finish = Step::Finish { watches, last_pid: self.machine.last_pid, close, region: self.region };
        Self::step(guest, &finish, &[])?;
        point("restore.finished")?;
        Ok(Restored {
            guest_state: self.machine.guest_state.clone(),
            fds,
            notes: self.notes.drain(..).chain(self.machine.notes.iter().cloned()).collect(),
            processes: self.machine.processes.len() as u32,
            tasks: std::mem::take(&mut self.tasks),
            stopped: std::mem::take(&mut self.stopped),
        })
    }
}

fn op_pid(op: Op) -> i32 {
    match op {
        Op::Guest { pid }
        | Op::Child { pid, .. }
        | Op::Sibling { pid, .. }
        | Op::Orphan { pid, .. }
        | Op::Session { pid }
        | Op::Group { pid, .. }
        | Op::End { pid, .. } => pid,
    }
}

/// An address range that no captured process and not the guest uses.
fn free_address(request: &RestoreRequest<'_>, machine: &Machine, bytes: u64) -> io::Result<u64> {
    let mut taken: Vec<(u64, u64)> = machine
        .processes
        .iter()
        .flat_map(|process| &process.memory.mappings)
        .map(|mapping| (mapping.start, mapping.end))
        .collect();
    taken.extend(procfs::areas(request.guest_pid)?.iter().map(|area| (area.start, area.end)));
    (REGION_FIRST..ADDRESS_END - bytes)
        .step_by(REGION_STEP as usize)
        .find(|&address| !taken.iter().any(|&(start, end)| start < address + bytes && address < end))
        .ok_or_else(|| io::Error::other("no free address range"))
}
