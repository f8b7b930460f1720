//! Files, pipes, memory files and event descriptors.

use super::{Maker, reopen};
use branchbox_snapshot::{Blob, FileObject, Ghost, Object, ObjectKind};
use branchbox_sys::event;
use branchbox_sys::task::set_fs_ids;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, MemfdFlags, Mode, OFlags, SeekFrom, Timespec, Timestamps};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

const CHUNK_BYTES: usize = 1 << 20;
/// Status flags that open(2) takes again; the rest only matters at the first open.
const KEPT_FLAGS: u32 =
    0o3 | 0o2000 | 0o4000 | 0o10_000 | 0o40_000 | 0o100_000 | 0o200_000 | 0o1_000_000 | 0o4_010_000 | 0o10_000_000;

/// Both ends of a pipe, held until every description of them is made.
struct Ends {
    reader: OwnedFd,
    writer: OwnedFd,
    /// Whether the pipe's own description of the reading and writing end is in use.
    taken: [bool; 2],
}

impl Maker<'_> {
    pub(super) fn files(&mut self) -> Result<(), String> {
        let shared = self.shared_memory()?;
        let ghosts = self.ghosts()?;
        let mut pipes = self.pipes()?;
        for (index, object) in self.plan.objects.iter().enumerate() {
            let made = match &object.kind {
                ObjectKind::File(file) => Some(self.file(object, file, &ghosts)?),
                ObjectKind::Shared { index, offset } => Some(shared_description(object, &shared, *index, *offset)?),
                ObjectKind::Pipe(end) => Some(pipe_end(object, &mut pipes[end.pipe as usize], end.writes)?),
                other => event_descriptor(other, object.flags)?,
            };
            if let Some(fd) = made {
                self.made[index] = Some(fd);
            }
        }
        Ok(())
    }

    fn read_blob(&self, blob: Blob, mut put: impl FnMut(&[u8]) -> Result<(), String>) -> Result<(), String> {
        let mut buffer = vec![0u8; CHUNK_BYTES.min(blob.bytes as usize)];
        let mut at = 0;
        while at < blob.bytes {
            let part = CHUNK_BYTES.min((blob.bytes - at) as usize);
            self.pages
                .read_exact_at(&mut buffer[..part], blob.offset + at)
                .map_err(|error| format!("reading the image: {error}"))?;
            put(&buffer[..part])?;
            at += part as u64;
        }
        Ok(())
    }

    fn fill(&self, fd: &OwnedFd, pieces: &[(u64, Blob)]) -> Result<(), String> {
        for (offset, blob) in pieces {
            let mut at = *offset;
            self.read_blob(*blob, |part| {
                let mut done = 0;
                while done < part.len() {
                    done += rustix::io::pwrite(fd, &part[done..], at + done as u64)
                        .map_err(|errno| format!("filling a file: {errno}"))?;
                }
                at += part.len() as u64;
                Ok(())
            })?;
        }
        Ok(())
    }

    fn shared_memory(&self) -> Result<Vec<OwnedFd>, String> {
        let mut made = Vec::new();
        for memory in &self.plan.shared {
            let failed = |errno: rustix::io::Errno| format!("making shared memory: {errno}");
            let name = memory.name.clone().unwrap_or_else(|| b"shared anonymous memory".to_vec());
            let old = set_fs_ids(memory.owner.0, memory.owner.1);
            let fd = rustix::fs::memfd_create(name.as_slice(), MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
            set_fs_ids(old.0, old.1);
            let fd = fd.map_err(failed)?;
            rustix::fs::ftruncate(&fd, memory.size).map_err(failed)?;
            self.fill(&fd, &memory.content)?;
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(memory.mode & 0o7777)).map_err(failed)?;
            if memory.seals != 0 {
                let seals = rustix::fs::SealFlags::from_bits_retain(memory.seals);
                rustix::fs::fcntl_add_seals(&fd, seals).map_err(failed)?;
            }
            made.push(fd);
        }
        Ok(made)
    }

    fn ghosts(&self) -> Result<Vec<OwnedFd>, String> {
        self.plan.ghosts.iter().map(|ghost| self.ghost(ghost)).collect()
    }

    /// Makes a deleted file under its old name (or, when that is taken, beside it), opens it and deletes it again.
    fn ghost(&self, ghost: &Ghost) -> Result<OwnedFd, String> {
        let parent = Path::new(std::ffi::OsStr::from_bytes(&ghost.path)).parent().unwrap_or_else(|| Path::new("/"));
        keeping_times(parent, || self.make_ghost(ghost))
    }

    fn make_ghost(&self, ghost: &Ghost) -> Result<OwnedFd, String> {
        let wanted = Path::new(std::ffi::OsStr::from_bytes(&ghost.path));
        let shown = wanted.display();
        let failed = |what: &str| {
            let what = format!("{what} the deleted {shown}");
            move |errno: rustix::io::Errno| format!("{what}: {errno}")
        };
        let mut path = wanted.to_owned();
        let mut number = 0;
        while rustix::fs::statat(rustix::fs::CWD, &path, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            number += 1;
            path.as_mut_os_string().push(format!(".{number}"));
        }
        let parent = path.parent().unwrap_or_else(|| Path::new("/")).to_owned();
        let made_parents = make_parents(&parent).map_err(failed("making a place for"))?;
        let directory = ghost.mode & 0o170_000 == 0o040_000;
        let mode = Mode::from_raw_mode(ghost.mode & 0o7777);
        let fd = if directory {
            rustix::fs::mkdir(&path, mode).map_err(failed("making"))?;
            rustix::fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        } else {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(&path, flags, Mode::from_raw_mode(0o600))
        };
        let fd = fd.map_err(failed("making"))?;
        if !directory {
            rustix::fs::ftruncate(&fd, ghost.size).map_err(failed("sizing"))?;
            self.fill(&fd, &ghost.content)?;
        }
        let owner = (rustix::fs::Uid::from_raw(ghost.owner.0), rustix::fs::Gid::from_raw(ghost.owner.1));
        rustix::fs::fchown(&fd, Some(owner.0), Some(owner.1)).map_err(failed("giving back"))?;
        rustix::fs::fchmod(&fd, mode).map_err(failed("giving back the mode of"))?;
        let [access, change] = ghost.times.map(|(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec });
        rustix::fs::futimens(&fd, &Timestamps { last_access: access, last_modification: change })
            .map_err(failed("dating"))?;
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        rustix::fs::unlinkat(rustix::fs::CWD, &path, flags).map_err(failed("deleting"))?;
        for parent in made_parents.iter().rev() {
            rustix::fs::unlinkat(rustix::fs::CWD, parent, AtFlags::REMOVEDIR).map_err(failed("clearing up after"))?;
        }
        Ok(fd)
    }

    fn pipes(&self) -> Result<Vec<Ends>, String> {
        let mut made = Vec::new();
        for pipe in &self.plan.pipes {
            let failed = |errno: rustix::io::Errno| format!("making a pipe: {errno}");
            let (reader, writer) = match &pipe.path {
                Some(path) => named_pipe(path)?,
                None => {
                    let old = set_fs_ids(pipe.owner.0, pipe.owner.1);
                    let ends = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC);
                    set_fs_ids(old.0, old.1);
                    ends.map_err(failed)?
                }
            };
            if rustix::pipe::fcntl_getpipe_size(&writer).map_err(failed)? != pipe.capacity as usize {
                rustix::pipe::fcntl_setpipe_size(&writer, pipe.capacity as usize).map_err(failed)?;
            }
            if let Some(data) = pipe.data {
                rustix::io::ioctl_fionbio(&writer, true).map_err(failed)?;
                self.read_blob(data, |part| {
                    let written = rustix::io::write(&writer, part).map_err(failed)?;
                    if written == part.len() { Ok(()) } else { Err("a pipe does not hold what it held".into()) }
                })?;
            }
            made.push(Ends { reader, writer, taken: [pipe.path.is_some(); 2] });
        }
        Ok(made)
    }

    fn file(&mut self, object: &Object, file: &FileObject, ghosts: &[OwnedFd]) -> Result<OwnedFd, String> {
        let shown = String::from_utf8_lossy(&file.path).into_owned();
        let failed = |errno: rustix::io::Errno| format!("opening {shown}: {errno}");
        let mut flags =
            OFlags::from_bits_retain(object.flags.cast_unsigned() & KEPT_FLAGS) | OFlags::CLOEXEC | OFlags::NOCTTY;
        if file.file_type != 0o040_000 {
            // Also part of O_TMPFILE, which says how a file came to be and not how it is open.
            flags -= OFlags::DIRECTORY;
        }
        if file.file_type == 0o120_000 {
            flags |= OFlags::NOFOLLOW;
        }
        let fd = match file.ghost {
            Some(index) => reopen(&ghosts[index as usize], flags).map_err(failed)?,
            None => rustix::fs::open(file.path.as_slice(), flags, Mode::empty()).map_err(failed)?,
        };
        let facts = rustix::fs::fstat(&fd).map_err(failed)?;
        if facts.st_mode & 0o170_000 != file.file_type {
            return Err(format!("{shown} is of another kind now"));
        }
        let is_regular = file.file_type == 0o100_000;
        if is_regular && file.ghost.is_none() && file.identity != (0, 0, 0) {
            let now = (facts.st_size.cast_unsigned(), facts.st_mtime as i64, facts.st_mtime_nsec as i64);
            if now != file.identity {
                self.changed.get_or_insert(shown.clone());
            }
            if facts.st_ino != file.inode {
                self.moved.push(shown.clone());
            }
        }
        if file.offset != 0 && !flags.contains(OFlags::PATH) {
            rustix::fs::seek(&fd, SeekFrom::Start(file.offset)).map_err(failed)?;
        }
        Ok(fd)
    }
}

/// Runs `work`, which makes and removes entries of a directory, and puts the directory's times back.
pub(super) fn keeping_times<T>(directory: &Path, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let before = rustix::fs::stat(directory).ok();
    let made = work()?;
    if let Some(before) = before {
        let time = |tv_sec: i64, tv_nsec: i64| Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time(before.st_atime, before.st_atime_nsec as i64),
            last_modification: time(before.st_mtime, before.st_mtime_nsec as i64),
        };
        rustix::fs::utimensat(rustix::fs::CWD, directory, &times, AtFlags::empty())
            .map_err(|errno| format!("dating {}: {errno}", directory.display()))?;
    }
    Ok(made)
}

fn make_parents(path: &Path) -> Result<Vec<std::path::PathBuf>, rustix::io::Errno> {
    let mut missing: Vec<_> = path.ancestors().take_while(|part| !part.exists()).map(Path::to_owned).collect();
    missing.reverse();
    for part in &missing {
        rustix::fs::mkdir(part, Mode::from_raw_mode(0o755))?;
    }
    Ok(missing)
}

fn shared_description(object: &Object, shared: &[OwnedFd], index: u32, offset: u64) -> Result<OwnedFd, String> {
    let failed = |errno: rustix::io::Errno| format!("opening shared memory: {errno}");
    let flags = OFlags::from_bits_retain(object.flags.cast_unsigned() & KEPT_FLAGS);
    let fd = reopen(&shared[index as usize], flags).map_err(failed)?;
    if offset != 0 {
        rustix::fs::seek(&fd, SeekFrom::Start(offset)).map_err(failed)?;
    }
    Ok(fd)
}

/// Both ends of a named pipe, opened so that neither waits for the other.
fn named_pipe(path: &[u8]) -> Result<(OwnedFd, OwnedFd), String> {
    let failed = |errno: rustix::io::Errno| format!("opening the pipe {}: {errno}", String::from_utf8_lossy(path));
    let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let reader = rustix::fs::open(path, flags | OFlags::RDONLY, Mode::empty()).map_err(failed)?;
    if rustix::fs::fstat(&reader).map_err(failed)?.st_mode & 0o170_000 != 0o010_000 {
        return Err(format!("{} is no pipe any more", String::from_utf8_lossy(path)));
    }
    let writer = rustix::fs::open(path, flags | OFlags::WRONLY, Mode::empty()).map_err(failed)?;
    Ok((reader, writer))
}

/// The first description of an end of an unnamed pipe is the pipe's own; every other one is opened through it.
fn pipe_end(object: &Object, pipe: &mut Ends, writes: bool) -> Result<OwnedFd, String> {
    let failed = |errno: rustix::io::Errno| format!("opening a pipe: {errno}");
    let flags = OFlags::from_bits_retain(object.flags.cast_unsigned() & KEPT_FLAGS);
    let own = if writes { &pipe.writer } else { &pipe.reader };
    let both = flags.bits() & 3 == OFlags::RDWR.bits();
    let fd = if !both && !std::mem::replace(&mut pipe.taken[usize::from(writes)], true) {
        rustix::io::fcntl_dupfd_cloexec(own, 0).map_err(failed)?
    } else {
        reopen(own, (flags & (OFlags::RDWR | OFlags::WRONLY)) | OFlags::NONBLOCK).map_err(failed)?
    };
    rustix::fs::fcntl_setfl(&fd, flags & OFlags::NONBLOCK).map_err(failed)?;
    Ok(fd)
}

fn event_descriptor(kind: &ObjectKind, flags: i32) -> Result<Option<OwnedFd>, String> {
    let nonblocking = flags.cast_unsigned() & OFlags::NONBLOCK.bits() != 0;
    let failed = |error: std::io::Error| format!("making a descriptor: {error}");
    let fd = match kind {
        ObjectKind::Event { count, semaphore } => event::eventfd(*count, *semaphore).map_err(failed)?,
        ObjectKind::Signal { mask } => event::signalfd(*mask).map_err(failed)?,
        ObjectKind::Timer { clock, ticks, settime_flags, value_ns, interval_ns } => {
            event::timerfd(*clock, *ticks, *settime_flags, *value_ns, *interval_ns).map_err(failed)?
        }
        ObjectKind::Epoll { .. } => rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
            .map_err(|errno| failed(errno.into()))?,
        // Its watches come last: what a restore does to files is no event.
        ObjectKind::Inotify { .. } => branchbox_sys::inotify::make().map_err(failed)?,
        _ => return Ok(None),
    };
    if nonblocking {
        rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| failed(errno.into()))?;
    }
    Ok(Some(fd))
}
