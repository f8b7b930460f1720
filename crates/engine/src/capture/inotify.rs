//! inotify: what is watched is known by file handles, from which the path is found.
//!
//! `fdinfo` shows each watch's handle as the overlay gives it out. Inside is the handle that the file system below gives
//! (`struct ovl_fb`, `fs/overlayfs/overlayfs.h`), which can be opened there: the path below the layer's directory is the path
//! in the sandbox. Whether it is, is checked by asking the sandbox for the handle of that path.

use super::Context;
use super::objects::Entry;
use crate::error::CaptureError;
use branchbox_snapshot::InotifyWatch;
use branchbox_sys::handle::{self, HANDLE_BYTES_MAX, Handle};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Watches of one inotify.
const WATCHES_MAX: usize = 65_536;
/// `OVL_FILEID_V1` (`include/linux/exportfs.h`).
const OVERLAY: i32 = 0xf8;
/// Where `struct ovl_fb` has its length, its type, and the handle of the file system below.
const LENGTH_AT: usize = 5;
const KIND_AT: usize = 7;
const BELOW_AT: usize = 24;
const PADDING: usize = 3;
const FIONREAD: u64 = 0x541b;
const HINT: &str = "close it and try again";

/// What an inotify watches.
pub(crate) fn watches(context: &Context<'_>, entry: &Entry) -> Result<Vec<InotifyWatch>, CaptureError> {
    let waiting = branchbox_sys::sock::queue_bytes(&entry.duplicate()?, FIONREAD).map_err(entry.handle().io())?;
    if waiting > 0 {
        let why = "events that nobody has read yet wait on it";
        return Err(entry.handle().refuse(why, "let the program read them and try again").passing());
    }
    let mut found = Vec::new();
    for (_, text) in entry.info.iter().filter(|(key, _)| key == "inotify wd") {
        if found.len() == WATCHES_MAX {
            return Err(entry.handle().refuse(format!("it has more than {WATCHES_MAX} watches"), HINT));
        }
        found.push(watch(context, entry, text)?);
    }
    found.sort_by_key(|watch| watch.number);
    Ok(found)
}

/// `3 ino:528 sdev:2d mask:3c0 ignored_mask:0 fhandle-bytes:2c fhandle-type:f8 f_handle:00…`, all but the first in
/// hexadecimal digits.
fn watch(context: &Context<'_>, entry: &Entry, text: &str) -> Result<InotifyWatch, CaptureError> {
    let unreadable = || entry.handle().refuse(format!("a watch that cannot be read: {text}"), HINT);
    let value = |key: &str| text.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix(':'));
    let number = |key: &str| value(key).and_then(|text| u32::from_str_radix(text, 16).ok());
    let wd =
        text.split_whitespace().next().and_then(|word| i32::from_str_radix(word, 16).ok()).ok_or_else(unreadable)?;
    let mask = number("mask").ok_or_else(unreadable)?;
    let kind = number("fhandle-type").and_then(|kind| i32::try_from(kind).ok()).ok_or_else(unreadable)?;
    let bytes = value("f_handle").and_then(unhex).ok_or_else(unreadable)?;
    let handle = Handle { kind, bytes };
    let Some(path) = path_of(context, &handle) else {
        let why = format!("its watch {wd} is of something deleted, or that lies on no disk of the sandbox");
        return Err(entry.handle().refuse(why, HINT));
    };
    Ok(InotifyWatch { number: wd, mask, path })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() > 2 * HANDLE_BYTES_MAX || !text.is_ascii() {
        return None;
    }
    let digits = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(digits).collect()
}

/// The handle inside an overlay's.
fn below(handle: &Handle) -> Option<Handle> {
    let length = usize::from(*handle.bytes.get(LENGTH_AT)?);
    let bytes = handle.bytes.get(BELOW_AT..PADDING + length)?;
    (handle.kind == OVERLAY).then(|| Handle { kind: i32::from(handle.bytes[KIND_AT]), bytes: bytes.to_vec() })
}

/// The path inside the sandbox of what has this handle.
fn path_of(context: &Context<'_>, handle: &Handle) -> Option<Vec<u8>> {
    let inner = below(handle)?;
    let root = &context.request.root;
    for tree in &root.trees {
        let upper = root.upper.join(&tree.name).join("up");
        for layer in std::iter::once(&upper).chain(&tree.lower) {
            let Some(relative) = relative_path(layer, &inner) else { continue };
            let path = Path::new(&tree.target).join(relative);
            if has_handle(context, &path, handle) {
                return Some(path.as_os_str().as_bytes().to_vec());
            }
        }
    }
    None
}

/// Where a file lies below a layer, if it does.
fn relative_path(layer: &Path, handle: &Handle) -> Option<PathBuf> {
    let layer = layer.canonicalize().ok()?;
    let mount = std::fs::File::open(&layer).ok()?;
    let file = handle::open(&mount, handle).ok()?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    path.strip_prefix(&layer).ok().map(Path::to_owned)
}

/// Whether a path inside the sandbox leads to exactly this file.
fn has_handle(context: &Context<'_>, path: &Path, handle: &Handle) -> bool {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return handle::name_of(&context.root, c".").is_ok_and(|found| found == *handle);
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::openat2(&context.root, parent, flags, Mode::empty(), ResolveFlags::IN_ROOT);
    let (Ok(parent), Ok(name)) = (parent, CString::new(name.as_bytes())) else { return false };
    handle::name_of(&parent, &name).is_ok_and(|found| found == *handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handle_below_is_taken_out() {
        let text = "00000000fb29004d29470d3369fb4128a11b9ea2ee6cc7642805000000000000050000000000000007000000";
        let whole = Handle { kind: OVERLAY, bytes: unhex(text).expect("digits") };
        let inner = below(&whole).expect("a handle");
        assert_eq!((inner.kind, inner.bytes.len(), inner.bytes[0]), (0x4d, 20, 0x28));
        assert_eq!(below(&Handle { kind: 1, ..whole.clone() }), None);
        for length in 0..whole.bytes.len() {
            let cut = Handle { kind: OVERLAY, bytes: whole.bytes[..length].to_vec() };
            assert!(below(&cut).is_none(), "{length}");
        }
        assert_eq!(unhex("0g"), None);
        assert_eq!(unhex("é"), None);
    }
}
