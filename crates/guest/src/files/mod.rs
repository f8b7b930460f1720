//! File operations, done as a user of the sandbox and inside its own file tree.
//!
//! Every operation runs with that user's file-system ids and groups, so the kernel decides what is allowed, and without
//! the capabilities that would override it. Links are followed where the user's own programs would follow them; the
//! magic ones of `/proc`, which would lead to the guest's own descriptors, are not.

mod content;
mod entries;
pub(crate) mod glob;
mod identity;
mod listing;
mod remove;

use branchbox_protocol::guest::{CHUNK_BYTES_MAX, FileOp, FileReply, GuestError};
use identity::Identity;
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags};
use rustix::io::Errno;
use std::io;

/// Longest path the kernel takes.
const PATH_BYTES_MAX: usize = 4095;
/// Permission bits that can be set.
const MODE_BITS: u32 = 0o7777;
/// Permissions of directories that an operation makes.
const DIRECTORY_MODE: u32 = 0o755;

/// Does one operation as `user`.
///
/// # Errors
/// [`GuestError::File`] with the kernel's word, [`GuestError::BadCall`] if the user cannot be taken on.
pub fn perform(user: (u32, u32), op: &FileOp) -> Result<FileReply, GuestError> {
    let (name, path) = describe(op);
    let error = |error: io::Error| GuestError::File {
        op: name.to_owned(),
        path: path.to_owned(),
        errno: error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
    };
    check(op).map_err(|errno| error(errno.into()))?;
    let identity = Identity::assume(user)
        .map_err(|source| GuestError::BadCall(format!("cannot act as user {}: {source}", user.0)))?;
    let result = dispatch(op);
    drop(identity);
    result.map_err(error)
}

fn describe(op: &FileOp) -> (&'static str, &str) {
    match op {
        FileOp::Read { path, .. } => ("read", path),
        FileOp::Write { path, .. } | FileOp::WriteAbort { path, .. } => ("write", path),
        FileOp::Stage { path, .. } | FileOp::Part { path, .. } => ("write", path),
        FileOp::Stat { path } => ("stat", path),
        FileOp::List { path, .. } => ("list", path),
        FileOp::Mkdir { path, .. } => ("mkdir", path),
        FileOp::Remove { path, .. } => ("remove", path),
        FileOp::Rename { from, .. } => ("rename", from),
        FileOp::Chmod { path, .. } => ("chmod", path),
    }
}

fn check(op: &FileOp) -> Result<(), Errno> {
    let other = match op {
        FileOp::Rename { to, .. } => Some(to.as_str()),
        _ => None,
    };
    for path in [Some(describe(op).1), other].into_iter().flatten() {
        if !path.starts_with('/') || path.contains('\0') {
            return Err(Errno::INVAL);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
    }
    match op {
        FileOp::Write { bytes, .. } | FileOp::Part { bytes, .. } if bytes.len() > CHUNK_BYTES_MAX => Err(Errno::TOOBIG),
        _ => Ok(()),
    }
}

fn dispatch(op: &FileOp) -> io::Result<FileReply> {
    match op {
        FileOp::Read { path, offset, bytes_max } => content::read(path, *offset, *bytes_max),
        FileOp::Write { path, offset, bytes, last, mode, token } => {
            let piece = content::Piece { offset: *offset, bytes, last: *last, mode: *mode & MODE_BITS };
            content::write(path, *token, &piece).map(|()| FileReply::Done)
        }
        FileOp::WriteAbort { path, token } => content::abort(path, *token).map(|()| FileReply::Done),
        FileOp::Stage { path, token } => content::stage(path, *token),
        FileOp::Part { path, offset, bytes } => content::part(path, *offset, bytes).map(|()| FileReply::Done),
        FileOp::Stat { path } => entries::stat(path).map(FileReply::Entry),
        FileOp::List { path, depth, hidden, glob, limit } => listing::list(
            path,
            &listing::Filter { depth: *depth, hidden: *hidden, glob: glob.as_deref(), limit: *limit },
        ),
        FileOp::Mkdir { path, parents } => mkdir(path, *parents).map(|()| FileReply::Done),
        FileOp::Remove { path, recursive } => remove::remove(path, *recursive).map(FileReply::Removed),
        FileOp::Rename { from, to, overwrite } => rename(from, to, *overwrite).map(|()| FileReply::Done),
        FileOp::Chmod { path, mode } => {
            let mode = Mode::from_raw_mode(*mode & MODE_BITS);
            rustix::fs::chmodat(CWD, path.as_str(), mode, AtFlags::empty())?;
            Ok(FileReply::Done)
        }
    }
}

fn mkdir(path: &str, parents: bool) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(DIRECTORY_MODE).recursive(parents).create(path)
}

fn rename(from: &str, to: &str, overwrite: bool) -> io::Result<()> {
    let flags = if overwrite { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, flags)?)
}
