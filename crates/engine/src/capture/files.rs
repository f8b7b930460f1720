//! Files: by path when the path still leads to them, by content when they were deleted.

use super::memory::identity;
use super::objects::Registry;
use super::{Context, Member, refuse};
use crate::error::CaptureError;
use crate::procfs;
use branchbox_snapshot::{FileObject, Ghost, Object, ObjectId, ObjectKind};
use rustix::fs::{Mode, OFlags, ResolveFlags, SeekFrom};
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

const CHUNK_BYTES: usize = 1 << 20;
/// A deleted file that is still open travels with the snapshot as a whole; larger ones are refused by name.
const GHOST_BYTES_MAX: u64 = 4 << 30;
const PROC_SUPER_MAGIC: u64 = 0x9fa0;
const DEVICES: &[&[u8]] = &[b"/dev/null", b"/dev/zero", b"/dev/full", b"/dev/random", b"/dev/urandom"];

/// How the keeper gets at a file of a process: a magic link below its `/proc` directory.
pub(crate) struct Handle<'a> {
    pub member: &'a Member,
    /// Below `/proc/<pid>`.
    pub link: String,
    /// For people.
    pub what: String,
}

impl<'a> Handle<'a> {
    pub(crate) fn link(member: &'a Member, link: &str, what: &str) -> Self {
        Self { member, link: link.into(), what: what.into() }
    }

    pub(crate) fn mapping(member: &'a Member, link: &str, name: &str) -> Self {
        Self { member, link: link.into(), what: format!("a mapping of {name}") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        procfs::path(self.member.host_pid, &self.link)
    }

    pub(crate) fn io(&self) -> impl FnOnce(std::io::Error) -> CaptureError {
        CaptureError::io(format!(
            "looking at {} of process {} ({})",
            self.what,
            self.member.pid,
            procfs::name(self.member.host_pid)
        ))
    }

    pub(crate) fn refuse(&self, why: impl Into<String>, hint: &str) -> CaptureError {
        refuse(self.member, self.what.clone(), why, hint)
    }
}

/// The object for a file that is mapped, run or worked in: shared by all that use it the same way.
pub(crate) fn file_object(
    context: &mut Context<'_>,
    registry: &mut Registry,
    handle: &Handle<'_>,
    flags: i32,
) -> Result<ObjectId, CaptureError> {
    let (device, inode, metadata) = identity(&handle.path()).map_err(handle.io())?;
    let link = procfs::link(handle.member.host_pid, &handle.link).map_err(handle.io())?;
    let key = (device, inode, flags, link.clone());
    if let Some(&id) = registry.by_file.get(&key) {
        return Ok(id);
    }
    let file = describe(context, registry, handle, &metadata, link, 0)?;
    let id = registry.push(Object { flags, kind: ObjectKind::File(file), flock: None, ofd_locks: Vec::new() });
    registry.by_file.insert(key, id);
    Ok(id)
}

/// Describes a file, directory or device and checks that opening its path again gives the same thing.
pub(crate) fn describe(
    context: &mut Context<'_>,
    registry: &mut Registry,
    handle: &Handle<'_>,
    metadata: &Metadata,
    link: Vec<u8>,
    offset: u64,
) -> Result<FileObject, CaptureError> {
    let file_type = metadata.mode() & 0o170_000;
    let shown = String::from_utf8_lossy(&link).into_owned();
    let mut file = FileObject {
        path: link,
        file_type,
        offset,
        inode: metadata.ino(),
        identity: (metadata.len(), metadata.mtime(), metadata.mtime_nsec()),
        ghost: None,
    };
    match file_type {
        0o020_000 if DEVICES.contains(&file.path.as_slice()) => return Ok(file),
        0o020_000 if shown.starts_with("/dev/pts/") => {
            let hint = "end what runs on a terminal (`branchbox ps` shows it), and try again";
            return Err(handle.refuse("terminals are not captured yet", hint));
        }
        0o020_000 => {
            return Err(handle.refuse(format!("the device {shown} is not captured"), "end the process and try again"));
        }
        0o100_000 | 0o040_000 | 0o120_000 => {}
        _ => {
            return Err(
                handle.refuse(format!("{shown} is of a kind that is not captured"), "end the process and try again")
            );
        }
    }
    if file.path.starts_with(b"/proc/") || file.path == b"/proc" {
        if file.path.get(6).is_some_and(u8::is_ascii_digit) || !is_proc(handle) {
            // Programs read their own maps as they start, and close them.
            let why = format!("{shown} is a view of a process");
            return Err(handle.refuse(why, "close it and try again").passing());
        }
        file.identity = (0, 0, 0);
        return Ok(file);
    }
    if leads_to(context, &file.path, metadata) {
        if is_kernel_view(handle) {
            file.identity = (0, 0, 0);
        }
        return Ok(file);
    }
    let Some(path) = file.path.strip_suffix(b" (deleted)").map(<[u8]>::to_vec) else {
        return Err(handle.refuse(format!("the path {shown} leads to another file now"), "close it and try again"));
    };
    if metadata.nlink() > 0 && file_type != 0o040_000 {
        return Err(
            handle.refuse(format!("{shown} was deleted but lives on under another name"), "close it and try again")
        );
    }
    file.ghost = Some(ghost(context, registry, handle, metadata, &path)?);
    file.path = path;
    Ok(file)
}

/// The path of a named pipe, which must still lead to it.
pub(crate) fn fifo_path(
    context: &Context<'_>,
    handle: &Handle<'_>,
    metadata: &Metadata,
    link: &[u8],
) -> Result<Vec<u8>, CaptureError> {
    if leads_to(context, link, metadata) {
        return Ok(link.to_vec());
    }
    Err(handle.refuse("a named pipe that was deleted or renamed is not captured", "close it and try again"))
}

/// Opens what a handle leads to for reading, without waiting for whoever holds a lease on it.
pub(crate) fn open_at_once(handle: &Handle<'_>) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(handle.path())
}

/// Whether a file's content is made up by the kernel as it is read, so that its size and time say nothing.
fn is_kernel_view(handle: &Handle<'_>) -> bool {
    const SYSFS_MAGIC: u64 = 0x6265_6572;
    rustix::fs::statfs(handle.path()).is_ok_and(|facts| facts.f_type as u64 == SYSFS_MAGIC)
}

fn is_proc(handle: &Handle<'_>) -> bool {
    rustix::fs::statfs(handle.path()).is_ok_and(|facts| facts.f_type as u64 == PROC_SUPER_MAGIC)
}

/// Whether opening `path` inside the sandbox gives this very inode.
fn leads_to(context: &Context<'_>, path: &[u8], metadata: &Metadata) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat2(&context.root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)
        .and_then(rustix::fs::fstat)
        .is_ok_and(|found| found.st_dev == metadata.dev() && found.st_ino == metadata.ino())
}

fn ghost(
    context: &mut Context<'_>,
    registry: &mut Registry,
    handle: &Handle<'_>,
    metadata: &Metadata,
    path: &[u8],
) -> Result<u32, CaptureError> {
    let key = (metadata.dev(), metadata.ino());
    if let Some(&index) = registry.by_ghost.get(&key) {
        return Ok(index);
    }
    if metadata.len() > GHOST_BYTES_MAX {
        let why = format!("a deleted file of {} bytes is larger than {GHOST_BYTES_MAX}", metadata.len());
        return Err(handle.refuse(why, "close it and try again"));
    }
    let content = if metadata.is_file() {
        let file = open_at_once(handle).map_err(handle.io())?;
        save_content(context, &file, metadata.len()).map_err(|error| match error {
            Saved::Io(error) => handle.io()(error),
            Saved::Image(error) => CaptureError::Image(error),
        })?
    } else {
        Vec::new()
    };
    let index = registry.ghosts.len() as u32;
    registry.ghosts.push(Ghost {
        path: path.to_vec(),
        mode: metadata.mode(),
        owner: (context.id(metadata.uid()), context.id(metadata.gid())),
        size: metadata.len(),
        content,
        times: [(metadata.atime(), metadata.atime_nsec()), (metadata.mtime(), metadata.mtime_nsec())],
    });
    registry.by_ghost.insert(key, index);
    Ok(index)
}

/// What went wrong while content was saved.
pub(crate) enum Saved {
    Io(std::io::Error),
    Image(branchbox_snapshot::MachineFileError),
}

/// Saves a file's content without its holes: offset and bytes of each piece.
pub(crate) fn save_content(
    context: &mut Context<'_>,
    file: &File,
    size: u64,
) -> Result<Vec<(u64, branchbox_snapshot::Blob)>, Saved> {
    let mut pieces = Vec::new();
    let mut buffer = vec![0u8; CHUNK_BYTES];
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(rustix::io::Errno::INVAL) => at,
            Err(errno) => return Err(Saved::Io(errno.into())),
        };
        let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(size).min(size);
        at = data;
        while at < hole {
            let want = CHUNK_BYTES.min((hole - at) as usize);
            let got = file.read_at(&mut buffer[..want], at).map_err(Saved::Io)?;
            if got == 0 {
                return Ok(pieces);
            }
            pieces.push((at, context.writer.append(&buffer[..got]).map_err(Saved::Image)?));
            at += got as u64;
        }
    }
    Ok(pieces)
}
