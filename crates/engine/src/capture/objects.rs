//! Descriptors: which numbers are one open file description, and what each description is.

use super::files::{self, Handle, Saved, file_object, save_content};
use super::memory::identity;
use super::{Context, Member, inotify, sockets, tree};
use crate::error::CaptureError;
use crate::procfs;
use branchbox_snapshot::{
    EpollWatch, FdSlot, Ghost, Lock, Object, ObjectId, ObjectKind, Pipe, PipeEnd, PosixLock, SharedMemory,
};
use branchbox_sys::kcmp;
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

const O_CLOEXEC: i32 = 0o2_000_000;
const O_PATH: i32 = 0o10_000_000;
/// Of a pipe: packet mode.
const O_DIRECT: i32 = 0o40_000;
/// Descriptors of one process that are looked at.
const DESCRIPTORS_MAX: usize = 16_384;
/// Descriptors of all processes together.
const DESCRIPTORS_ALL_MAX: usize = 131_072;
/// What one epoll watches.
const WATCHES_MAX: usize = 65_536;
/// Record locks seen through one descriptor.
const LOCKS_MAX: usize = 4_096;
/// Largest pipe there can be without privilege is 1 MiB; root may make larger ones.
const PIPE_BYTES_MAX: usize = 64 << 20;
const F_SEAL_FUTURE_WRITE: u32 = 0x10;
const FIONREAD: u64 = 0x541b;

/// One descriptor of one process, as `/proc` shows it.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub member: Member,
    pub fd: i32,
    pub link: Vec<u8>,
    pub info: Vec<(String, String)>,
    pub device: u64,
    pub inode: u64,
    pub mode: u32,
    pub flags: i32,
    pub offset: u64,
}

impl Entry {
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.info.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    pub(crate) fn handle(&self) -> Handle<'_> {
        Handle {
            member: &self.member,
            link: format!("fd/{}", self.fd),
            what: format!("descriptor {} ({})", self.fd, String::from_utf8_lossy(&self.link)),
        }
    }

    /// With everything that `/proc` says of it.
    fn whole(&self) -> Result<Self, CaptureError> {
        let info = procfs::fd_info(self.member.host_pid, self.fd).map_err(self.handle().io())?;
        if info.iter().filter(|(key, _)| key == "tfd").count() > WATCHES_MAX {
            return Err(self.handle().refuse(format!("it watches more than {WATCHES_MAX}"), "close it and try again"));
        }
        Ok(Self { info, ..self.clone() })
    }

    /// A duplicate of the descriptor in this process.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd, CaptureError> {
        let pid = Pid::from_raw(self.member.host_pid).expect("a process that was listed has a positive id");
        pidfd_open(pid, PidfdFlags::empty())
            .and_then(|pidfd| pidfd_getfd(pidfd, self.fd, PidfdGetfdFlags::empty()))
            .map_err(|errno| self.handle().io()(errno.into()))
    }
}

/// A process's descriptors and record locks.
#[derive(Debug)]
pub(crate) struct Table {
    pub host_pid: i32,
    pub slots: Vec<FdSlot>,
    pub locks: Vec<PosixLock>,
}

/// Everybody's descriptors.
#[derive(Debug)]
pub(crate) struct Tables {
    pub processes: Vec<Table>,
    pub guest: Vec<(i32, ObjectId)>,
}

/// All objects found so far.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub objects: Vec<Object>,
    pub pipes: Vec<Pipe>,
    pub ghosts: Vec<Ghost>,
    pub shared: Vec<SharedMemory>,
    pub by_file: HashMap<(u64, u64, i32, Vec<u8>), ObjectId>,
    pub by_ghost: HashMap<(u64, u64), u32>,
    by_shared: HashMap<(u64, u64), u32>,
    by_pipe: HashMap<(u64, u64), u32>,
    /// Sockets, described together at the end since they refer to one another.
    pub sockets: Vec<(ObjectId, Entry)>,
    /// Epolls with who holds them, resolved at the end.
    epolls: Vec<(ObjectId, Entry)>,
}

impl Registry {
    pub(crate) fn push(&mut self, object: Object) -> ObjectId {
        self.objects.push(object);
        ObjectId(self.objects.len() as u32 - 1)
    }

    /// Looks at every descriptor of every process, and at those of the guest that its table mentions.
    pub(crate) fn descriptors(&mut self, context: &mut Context<'_>) -> Result<Tables, CaptureError> {
        let guest = Member {
            host_pid: context.request.guest_pid,
            pid: 1,
            parent: 0,
            group: 0,
            session: 0,
            zombie: None,
            cgroup: String::new(),
        };
        let mut entries = Vec::new();
        for fd in &context.request.guest_fds {
            entries.push(entry(&guest, *fd)?);
        }
        for member in context.members.iter().filter(|member| member.zombie.is_none()) {
            let fds = procfs::descriptors(member.host_pid)
                .map_err(CaptureError::io(format!("listing descriptors of process {}", member.pid)))?;
            if fds.len() > DESCRIPTORS_MAX {
                let why = format!("at most {DESCRIPTORS_MAX} are captured");
                return Err(super::refuse(
                    member,
                    format!("{} descriptors", fds.len()),
                    why,
                    "close some and try again",
                ));
            }
            for fd in fds {
                entries.push(entry(member, fd)?);
            }
            if entries.len() > DESCRIPTORS_ALL_MAX {
                let why = format!("all processes together have more than {DESCRIPTORS_ALL_MAX}");
                return Err(super::refuse(member, "its descriptors", why, "close some and try again"));
            }
        }
        let ids = self.descriptions(context, &entries)?;
        self.tables(context, &entries, &ids)
    }

    /// Groups descriptors into open file descriptions and describes each once.
    fn descriptions(&mut self, context: &mut Context<'_>, entries: &[Entry]) -> Result<Vec<ObjectId>, CaptureError> {
        let mut alike: HashMap<(u64, u64, i32), Vec<usize>> = HashMap::new();
        for (index, entry) in entries.iter().enumerate() {
            alike.entry((entry.device, entry.inode, entry.flags & !O_CLOEXEC)).or_default().push(index);
        }
        let mut ids = vec![ObjectId(0); entries.len()];
        let mut groups: Vec<Vec<usize>> = alike.into_values().collect();
        groups.sort_by_key(|group| group[0]);
        for group in groups {
            let of = |a: usize, b: usize| same(&entries[group[a]], &entries[group[b]]);
            let classes = tree::classes(group.len(), of).map_err(CaptureError::io("comparing descriptors"))?;
            for class in classes {
                let id = self.describe(context, &entries[group[class[0]]])?;
                class.into_iter().for_each(|member| ids[group[member]] = id);
            }
        }
        Ok(ids)
    }

    fn tables(&mut self, context: &Context<'_>, entries: &[Entry], ids: &[ObjectId]) -> Result<Tables, CaptureError> {
        let mut tables = Tables { processes: Vec::new(), guest: Vec::new() };
        for member in context.members.iter().filter(|member| member.zombie.is_none()) {
            tables.processes.push(Table { host_pid: member.host_pid, slots: Vec::new(), locks: Vec::new() });
        }
        for (entry, &id) in entries.iter().zip(ids) {
            if entry.member.pid == 1 {
                tables.guest.push((entry.fd, id));
                continue;
            }
            let table = tables.processes.iter_mut().find(|table| table.host_pid == entry.member.host_pid);
            let table = table.expect("every member has a table");
            table.slots.push(FdSlot { fd: entry.fd, object: id, cloexec: cloexec(entry) });
            for lock in locks(entry)? {
                match lock {
                    HeldLock::Posix(lock) if !table.locks.iter().any(|own| same_range(own, &lock)) => {
                        table.locks.push(lock)
                    }
                    HeldLock::Posix(_) => {}
                    HeldLock::Flock(lock) => self.objects[id.0 as usize].flock = Some(lock),
                    HeldLock::Description(lock, start, length) => {
                        let own = &mut self.objects[id.0 as usize].ofd_locks;
                        if !own.contains(&(lock, start, length)) {
                            own.push((lock, start, length));
                        }
                    }
                }
            }
        }
        Ok(tables)
    }

    fn describe(&mut self, context: &mut Context<'_>, entry: &Entry) -> Result<ObjectId, CaptureError> {
        let flags = entry.flags & !O_CLOEXEC;
        if entry.link == b"anon_inode:[timerfd]" {
            branchbox_sys::event::settle_timerfd(entry.duplicate()?).map_err(entry.handle().io())?;
        }
        let entry = &entry.whole()?;
        let kind = self.kind(context, entry)?;
        let id = self.push(Object { flags, kind, flock: None, ofd_locks: Vec::new() });
        match &self.objects[id.0 as usize].kind {
            ObjectKind::Epoll { .. } => self.epolls.push((id, entry.clone())),
            ObjectKind::Unix(_) | ObjectKind::Tcp(_) | ObjectKind::Udp(_) => self.sockets.push((id, entry.clone())),
            _ => {}
        }
        refuse_owner(entry)?;
        Ok(id)
    }

    fn kind(&mut self, context: &mut Context<'_>, entry: &Entry) -> Result<ObjectKind, CaptureError> {
        if let Some(name) = entry.link.strip_prefix(b"anon_inode:") {
            return self.anonymous(context, entry, name);
        }
        match entry.mode & 0o170_000 {
            0o140_000 => sockets::placeholder(entry),
            0o010_000 if entry.flags & O_PATH == 0 => {
                let named = !entry.link.starts_with(b"pipe:");
                self.pipe(context, entry, named).map(ObjectKind::Pipe)
            }
            0o100_000 if is_memory(&entry.link) && is_unlinked(entry) => {
                let handle = entry.handle();
                let index = self.shared_memory(context, &handle)?;
                Ok(ObjectKind::Shared { index, offset: entry.offset })
            }
            _ => {
                let handle = entry.handle();
                let (_, _, metadata) = identity(&handle.path()).map_err(handle.io())?;
                let file = files::describe(context, self, &handle, &metadata, entry.link.clone(), entry.offset)?;
                refuse_database(context, entry)?;
                Ok(ObjectKind::File(file))
            }
        }
    }

    fn anonymous(&mut self, context: &Context<'_>, entry: &Entry, name: &[u8]) -> Result<ObjectKind, CaptureError> {
        let number = |key: &str| entry.value(key).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        match name {
            b"inotify" => Ok(ObjectKind::Inotify { watches: inotify::watches(context, entry)? }),
            b"[eventfd]" => Ok(ObjectKind::Event {
                count: entry.value("eventfd-count").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0),
                semaphore: number("eventfd-semaphore") == 1,
            }),
            b"[signalfd]" => Ok(ObjectKind::Signal {
                mask: entry.value("sigmask").and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(0),
            }),
            b"[timerfd]" => Ok(ObjectKind::Timer {
                clock: number("clockid") as i32,
                ticks: number("ticks"),
                settime_flags: entry
                    .value("settime flags")
                    .and_then(|text| i32::from_str_radix(text, 8).ok())
                    .unwrap_or(0),
                value_ns: pair_ns(entry.value("it_value")),
                interval_ns: pair_ns(entry.value("it_interval")),
            }),
            b"[eventpoll]" => Ok(ObjectKind::Epoll { watches: Vec::new() }),
            b"[pidfd]" => {
                let host = number("Pid") as i32;
                match context.members.iter().find(|member| member.host_pid == host) {
                    Some(target) => Ok(ObjectKind::Pid { pid: target.pid }),
                    None => Err(entry.handle().refuse("its process is gone", "close it and try again")),
                }
            }
            _ => Err(entry.handle().refuse("this kind of descriptor is not captured", "close it and try again")),
        }
    }

    fn pipe(&mut self, context: &mut Context<'_>, entry: &Entry, named: bool) -> Result<PipeEnd, CaptureError> {
        let handle = entry.handle();
        let access = entry.flags & 3;
        if entry.flags & O_DIRECT != 0 {
            return Err(handle.refuse("pipes in packet mode are not captured", "close it and try again"));
        }
        let end = |pipe| PipeEnd { pipe, writes: access == 1 };
        let readable = access != 1 || named;
        let key = (entry.device, entry.inode);
        if let Some(&index) = self.by_pipe.get(&key) {
            if readable && self.pipes[index as usize].data.is_none() {
                self.pipes[index as usize].data = pipe_data(context, entry, named)?;
            }
            return Ok(end(index));
        }
        let duplicate = entry.duplicate()?;
        let capacity = rustix::pipe::fcntl_getpipe_size(&duplicate).map_err(|errno| handle.io()(errno.into()))?;
        let (_, _, metadata) = identity(&handle.path()).map_err(handle.io())?;
        let path = if named { Some(files::fifo_path(context, &handle, &metadata, &entry.link)?) } else { None };
        let data = if readable { pipe_data(context, entry, named)? } else { None };
        let owner = (context.id(metadata.uid()), context.id(metadata.gid()));
        let index = self.pipes.len() as u32;
        self.pipes.push(Pipe { path, capacity: capacity as u32, owner, data });
        self.by_pipe.insert(key, index);
        Ok(end(index))
    }

    /// The object for something that is mapped.
    pub(crate) fn mapped(
        &mut self,
        context: &mut Context<'_>,
        handle: &Handle<'_>,
        writes: bool,
    ) -> Result<ObjectId, CaptureError> {
        let link = procfs::link(handle.member.host_pid, &handle.link).map_err(handle.io())?;
        let flags = if writes { 2 } else { 0 };
        let (device, inode, metadata) = identity(&handle.path()).map_err(handle.io())?;
        if !is_memory(&link) || metadata.nlink() != 0 {
            return file_object(context, self, handle, flags);
        }
        let key = (device, inode, -1, Vec::new());
        if let Some(&id) = self.by_file.get(&key) {
            return Ok(id);
        }
        let index = self.shared_memory(context, handle)?;
        let kind = ObjectKind::Shared { index, offset: 0 };
        let id = self.push(Object { flags: 2, kind, flock: None, ofd_locks: Vec::new() });
        self.by_file.insert(key, id);
        Ok(id)
    }

    fn shared_memory(&mut self, context: &mut Context<'_>, handle: &Handle<'_>) -> Result<u32, CaptureError> {
        let (device, inode, metadata) = identity(&handle.path()).map_err(handle.io())?;
        if let Some(&index) = self.by_shared.get(&(device, inode)) {
            return Ok(index);
        }
        let link = procfs::link(handle.member.host_pid, &handle.link).map_err(handle.io())?;
        if link.starts_with(b"/SYSV") {
            return Err(handle.refuse("SysV shared memory is not captured yet", "end the process and try again"));
        }
        let name = link.strip_prefix(b"/memfd:").and_then(|rest| rest.strip_suffix(b" (deleted)")).map(<[u8]>::to_vec);
        let file = files::open_at_once(handle).map_err(handle.io())?;
        let seals = rustix::fs::fcntl_get_seals(&file).map_or(0, |seals| seals.bits());
        if seals & F_SEAL_FUTURE_WRITE != 0 {
            return Err(
                handle.refuse("memory sealed against future writes is not captured", "end the process and try again")
            );
        }
        let content = save_content(context, &file, metadata.len()).map_err(|error| match error {
            Saved::Io(error) => handle.io()(error),
            Saved::Image(error) => CaptureError::Image(error),
        })?;
        let index = self.shared.len() as u32;
        self.shared.push(SharedMemory {
            name,
            size: metadata.len(),
            seals,
            mode: metadata.mode(),
            owner: (context.id(metadata.uid()), context.id(metadata.gid())),
            content,
        });
        self.by_shared.insert((device, inode), index);
        Ok(index)
    }

    /// Describes what refers to other objects, when all of them are known.
    pub(crate) fn finish(&mut self, context: &mut Context<'_>) -> Result<(), CaptureError> {
        sockets::describe(context, self)?;
        for (id, entry) in std::mem::take(&mut self.epolls) {
            let watches = watches(context, &entry)?;
            self.objects[id.0 as usize].kind = ObjectKind::Epoll { watches };
        }
        Ok(())
    }
}

fn entry(member: &Member, fd: i32) -> Result<Entry, CaptureError> {
    let failed = || CaptureError::io(format!("looking at descriptor {fd} of process {}", member.pid));
    let name = format!("fd/{fd}");
    let link = procfs::link(member.host_pid, &name).map_err(failed())?;
    let info = procfs::fd_info(member.host_pid, fd).map_err(failed())?;
    let (device, inode, metadata) = identity(&procfs::path(member.host_pid, &name)).map_err(failed())?;
    let value = |key: &str| info.iter().find(|(own, _)| own == key).map(|(_, value)| value.clone());
    let flags = value("flags").and_then(|text| i32::from_str_radix(&text, 8).ok()).unwrap_or(0);
    let offset = value("pos").and_then(|text| text.parse().ok()).unwrap_or(0);
    // The rest is read once for each description: a sandbox may have many descriptors of one large epoll.
    let info: Vec<_> = info.into_iter().filter(|(key, _)| key == "lock").take(LOCKS_MAX + 1).collect();
    if info.len() > LOCKS_MAX {
        let why = format!("more than {LOCKS_MAX} record locks are held through it");
        return Err(super::refuse(member, format!("descriptor {fd}"), why, "close it and try again"));
    }
    Ok(Entry { member: member.clone(), fd, link, info, device, inode, mode: metadata.mode(), flags, offset })
}

fn same(a: &Entry, b: &Entry) -> std::io::Result<Ordering> {
    kcmp::files(a.member.host_pid, a.fd, b.member.host_pid, b.fd)
}

/// `/proc` shows the close-on-exec bit of the descriptor among the status flags of the description.
fn cloexec(entry: &Entry) -> bool {
    entry.flags & O_CLOEXEC != 0
}

/// Memory files never had a name; a file that is only called like one has.
fn is_unlinked(entry: &Entry) -> bool {
    identity(&entry.handle().path()).is_ok_and(|(_, _, metadata)| metadata.nlink() == 0)
}

fn is_memory(link: &[u8]) -> bool {
    link.starts_with(b"/memfd:") || link.starts_with(b"/dev/zero (deleted)") || link.starts_with(b"/SYSV")
}

fn pair_ns(text: Option<&str>) -> u64 {
    let inner = text.unwrap_or("").trim_matches(|c| c == '(' || c == ')');
    let (seconds, nanos) = inner.split_once(',').unwrap_or(("0", "0"));
    let number = |text: &str| text.trim().parse::<u64>().unwrap_or(0);
    number(seconds) * 1_000_000_000 + number(nanos)
}

/// A descriptor that sends signals to a process when it becomes ready.
fn refuse_owner(entry: &Entry) -> Result<(), CaptureError> {
    const O_ASYNC: i32 = 0o20_000;
    let owned = || branchbox_sys::sock::signal_owner(entry.duplicate()?).map_err(entry.handle().io());
    if entry.flags & O_PATH != 0 || (entry.flags & O_ASYNC == 0 && owned()? == 0) {
        return Ok(());
    }
    Err(entry.handle().refuse("signal-driven input and output is not captured", "close it and try again"))
}

/// Without a pool that keeps inode numbers a database held open would refuse to write in the copy.
fn refuse_database(context: &Context<'_>, entry: &Entry) -> Result<(), CaptureError> {
    if context.request.root.driver != branchbox_model::PoolDriver::Plain || entry.flags & 3 == 0 {
        return Ok(());
    }
    let handle = entry.handle();
    let mut head = [0u8; 16];
    let read = files::open_at_once(&handle).and_then(|file| std::os::unix::fs::FileExt::read_at(&file, &mut head, 0));
    if read.is_ok_and(|count| count == 16) && &head == b"SQLite format 3\0" {
        let why = "it is a database held open, and this pool does not keep inode numbers, by which it knows its file";
        return Err(handle.refuse(why, "install btrfs-progs so that the node can make a pool, or close the database"));
    }
    Ok(())
}

/// The bytes in a pipe, copied without taking them.
fn pipe_data(
    context: &mut Context<'_>,
    entry: &Entry,
    named: bool,
) -> Result<Option<branchbox_snapshot::Blob>, CaptureError> {
    let handle = entry.handle();
    let io = |errno: rustix::io::Errno| std::io::Error::from(errno);
    // What is in a named pipe waits for whoever opens it next, so it is read also where only a writer has it open.
    let source = if named {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(handle.path(), flags, rustix::fs::Mode::empty()).map_err(|errno| handle.io()(io(errno)))?
    } else {
        entry.duplicate()?
    };
    let waiting = branchbox_sys::sock::queue_bytes(&source, FIONREAD).map_err(handle.io())?;
    if waiting == 0 {
        return Ok(None);
    }
    if waiting > PIPE_BYTES_MAX {
        return Err(handle.refuse(format!("{waiting} bytes wait in it"), "let its reader read and try again"));
    }
    let (reader, writer) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|errno| handle.io()(io(errno)))?;
    let capacity = rustix::pipe::fcntl_getpipe_size(&source).map_err(|errno| handle.io()(io(errno)))?;
    rustix::pipe::fcntl_setpipe_size(&writer, capacity).map_err(|errno| handle.io()(io(errno)))?;
    let copied = rustix::pipe::tee(&source, &writer, waiting, rustix::pipe::SpliceFlags::NONBLOCK)
        .map_err(|errno| handle.io()(io(errno)))?;
    if copied != waiting {
        return Err(handle.io()(std::io::Error::other(format!("{copied} of {waiting} bytes were copied"))));
    }
    drop(writer);
    let mut data = Vec::new();
    std::io::Read::read_to_end(&mut File::from(reader), &mut data).map_err(handle.io())?;
    context.writer.append(&data).map(Some).map_err(CaptureError::Image)
}

enum HeldLock {
    Posix(PosixLock),
    Flock(Lock),
    Description(Lock, u64, u64),
}

fn same_range(a: &PosixLock, b: &PosixLock) -> bool {
    (a.lock, a.start, a.length) == (b.lock, b.start, b.length) && a.fd == b.fd
}

/// `lock: 1: POSIX  ADVISORY  WRITE 2109 00:2b:1234 0 EOF` lines of fdinfo.
fn locks(entry: &Entry) -> Result<Vec<HeldLock>, CaptureError> {
    let mut all = Vec::new();
    for (_, text) in entry.info.iter().filter(|(key, _)| key == "lock") {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [_, class, _, kind, _, _, start, end] = words[..] else {
            return Err(entry.handle().refuse(format!("a lock that cannot be read: {text}"), "close it and try again"));
        };
        let lock = if kind == "WRITE" { Lock::Exclusive } else { Lock::Shared };
        let start: u64 = start.parse().unwrap_or(0);
        let length = end.parse::<u64>().map_or(0, |end| end - start + 1);
        match class {
            "POSIX" => all.push(HeldLock::Posix(PosixLock { fd: entry.fd, lock, start, length })),
            "FLOCK" => all.push(HeldLock::Flock(lock)),
            "OFDLCK" => all.push(HeldLock::Description(lock, start, length)),
            _ => {
                return Err(entry
                    .handle()
                    .refuse(format!("a lock of kind {class} is not captured"), "close it and try again"));
            }
        }
    }
    Ok(all)
}

/// What an epoll watches, by the `tfd` lines of its fdinfo. A watched number belongs to the process that registered it, which
/// is one of those that hold the epoll; the kernel says which by comparing.
fn watches(context: &Context<'_>, entry: &Entry) -> Result<Vec<EpollWatch>, CaptureError> {
    let mut watches = Vec::new();
    for (_, text) in entry.info.iter().filter(|(key, _)| key == "tfd") {
        let mut words = text.split_whitespace();
        let fd: i32 = words.next().and_then(|word| word.parse().ok()).unwrap_or(-1);
        let hex = |name: &str| {
            let mut rest = text.split_whitespace().skip_while(|word| word.trim_end_matches(':') != name);
            rest.nth(1).and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0)
        };
        let is_it = |member: &Member| kcmp::epoll_target(member.host_pid, fd, entry.fd, fd, 0).unwrap_or(false);
        // The comparison takes the epoll's number in the compared process, so it is asked where the number is the same.
        let holder = std::iter::once(&entry.member)
            .chain(
                context
                    .members
                    .iter()
                    .filter(|member| member.zombie.is_none() && member.host_pid != entry.member.host_pid),
            )
            .find(|member| is_it(member));
        let Some(holder) = holder else {
            let why = format!("it watches number {fd}, which is another file now");
            return Err(entry.handle().refuse(why, "end the process and try again"));
        };
        const EPOLLONESHOT: u64 = 1 << 30;
        const BEHAVIOUR: u64 = 0xf << 28;
        if hex("events") & EPOLLONESHOT != 0 && hex("events") & !BEHAVIOUR == 0 {
            let why = format!("its one-shot watch of number {fd} has fired and waits to be armed again");
            return Err(entry.handle().refuse(why, "let the program handle the event and try again").passing());
        }
        watches.push(EpollWatch { pid: holder.pid, fd, events: hex("events") as u32, data: hex("data") });
    }
    Ok(watches)
}
