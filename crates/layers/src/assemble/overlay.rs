//! The overlay mount itself, over id-mapped clones of its layers.
//!
//! Options, and why:
//! * `xino=on`: all files of one overlay answer with the overlay's device number and with an inode number made of the
//!   layer's own. It is the same before and after a copy-up, in a fork over a snapshot of the upper, and after a
//!   restore; `auto` would turn it off as soon as a btrfs layer takes part.
//! * `redirect_dir=on`: `rename(2)` of a directory that exists below works as everywhere else instead of `EXDEV`.
//! * `index=off`: the index ties an upper to its inode numbers on disk and would make every copied upper stale.
//! * `metacopy=off`: a file in the upper is whole, so what changed can be read from the upper alone.

use super::credentials::AsSandboxRoot;
use super::{AssembleError, open_below};
use branchbox_model::IdRange;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_fd, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

const OPTIONS: [(&str, &str); 3] = [("redirect_dir", "on"), ("index", "off"), ("metacopy", "off")];
const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();
/// Bytes of the kernel's log of one mount attempt that are kept.
const LOG_BYTES_MAX: usize = 1024;
/// How often, at 0.1 ms, the end of the helper thread is awaited.
const THREAD_END_POLLS_MAX: u32 = 10_000;

/// Detached, id-mapped clones.
pub(super) struct Layers {
    /// Topmost first.
    pub(super) lowers: Vec<OwnedFd>,
    /// Of the directory that holds `up` and `work`.
    pub(super) upper: OwnedFd,
    /// Whose root the overlay works as.
    pub(super) range: IdRange,
}

/// Makes the overlay: straight from descriptors, or, on kernels that refuse that, in a private mount namespace.
pub(super) fn mount(tree: &str, layers: Layers) -> Result<OwnedFd, AssembleError> {
    let failed = |(source, detail)| AssembleError::Overlay { tree: tree.to_owned(), detail, source };
    match from_descriptors(&layers) {
        Err((error, detail)) if error.raw_os_error() == Some(EINVAL) => {
            tracing::debug!(tree, detail, "this kernel takes no detached overlay layers; attaching them privately");
            in_private_namespace(layers).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

type Logged<T> = Result<T, (io::Error, String)>;

fn plain(error: impl Into<io::Error>) -> (io::Error, String) {
    (error.into(), String::new())
}

fn from_descriptors(layers: &Layers) -> Logged<OwnedFd> {
    let up = open_below(&layers.upper, "up").map_err(plain)?;
    let work = open_below(&layers.upper, "work").map_err(plain)?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(plain)?;
    let configured = || -> rustix::io::Result<()> {
        for lower in &layers.lowers {
            fsconfig_set_fd(&context, "lowerdir+", lower)?;
        }
        fsconfig_set_fd(&context, "upperdir", &up)?;
        fsconfig_set_fd(&context, "workdir", &work)
    }();
    configured.map_err(|e| (e.into(), kernel_log(&context)))?;
    finish(&context, layers)
}

/// Sets the options, creates the file system and returns its detached mount.
fn finish(context: &OwnedFd, layers: &Layers) -> Logged<OwnedFd> {
    let made = || -> io::Result<OwnedFd> {
        fsconfig_set_string(context, "source", "branchbox")?;
        for (key, value) in OPTIONS {
            fsconfig_set_string(context, key, value)?;
        }
        if several_file_systems(layers)? {
            fsconfig_set_string(context, "xino", "on")?;
        }
        let credentials = AsSandboxRoot::take(layers.range)?;
        fsconfig_create(context)?;
        drop(credentials);
        let mount = fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NODEV)?;
        // An overlay that cannot use its work directory mounts all the same, without writes.
        let read_only = rustix::fs::fstatvfs(&mount)?.f_flag.contains(StatVfsMountFlags::RDONLY);
        if read_only { Err(rustix::io::Errno::ROFS.into()) } else { Ok(mount) }
    }();
    made.map_err(|e| (e, kernel_log(context)))
}

/// On one file system inode numbers are the files' own anyway, and the kernel warns of a useless `xino`.
fn several_file_systems(layers: &Layers) -> io::Result<bool> {
    let upper = rustix::fs::fstat(&layers.upper)?.st_dev;
    for lower in &layers.lowers {
        if rustix::fs::fstat(lower)?.st_dev != upper {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the kernel wrote about the attempt, one message a line.
fn kernel_log(context: impl AsFd) -> String {
    let mut text = String::new();
    let mut buffer = [0u8; LOG_BYTES_MAX];
    while text.len() < LOG_BYTES_MAX {
        match rustix::io::read(&context, &mut buffer) {
            Ok(count) if count > 0 => {
                let message = String::from_utf8_lossy(&buffer[..count]);
                text.push_str(message.trim());
                text.push_str("; ");
            }
            _ => break,
        }
    }
    text.trim_end_matches("; ").to_owned()
}

/// The same on older kernels: a thread of its own unshares its mount namespace, attaches the layers on a tmpfs there,
/// mounts the overlay by path and ends; the namespace ends with it, the overlay keeps private clones of its layers.
fn in_private_namespace(layers: Layers) -> Logged<OwnedFd> {
    let worker = std::thread::Builder::new().name("overlay".to_owned());
    let handle = worker.spawn(move || (rustix::thread::gettid(), attached(&layers))).map_err(plain)?;
    let (thread, mounted) = handle.join().map_err(|_| plain(io::Error::other("the mounting thread panicked")))?;
    wait_until_gone(thread);
    mounted
}

/// A joined thread is still listed for an instant, and the caller may be about to fork, which it must do alone.
fn wait_until_gone(thread: rustix::thread::Pid) {
    let task = PathBuf::from(format!("/proc/self/task/{}", thread.as_raw_nonzero()));
    for _ in 0..THREAD_END_POLLS_MAX {
        if !task.exists() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
}

fn attached(layers: &Layers) -> Logged<OwnedFd> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).map_err(plain)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(plain)?;
    // Any directory that surely exists will do: only this thread sees the tmpfs.
    let base = PathBuf::from("/proc");
    rustix::mount::mount("tmpfs", &base, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=700")
        .map_err(plain)?;
    let attach = |name: &str, mount: &OwnedFd| -> io::Result<PathBuf> {
        let path = base.join(name);
        fs_err::create_dir(&path)?;
        move_mount(mount, "", rustix::fs::CWD, &path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        Ok(path)
    };
    let upper = attach("upper", &layers.upper).map_err(plain)?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC).map_err(plain)?;
    for (index, lower) in layers.lowers.iter().enumerate() {
        let path = attach(&index.to_string(), lower).map_err(plain)?;
        fsconfig_set_string(&context, "lowerdir+", path).map_err(|e| (e.into(), kernel_log(&context)))?;
    }
    fsconfig_set_string(&context, "upperdir", upper.join("up")).map_err(|e| (e.into(), kernel_log(&context)))?;
    fsconfig_set_string(&context, "workdir", upper.join("work")).map_err(|e| (e.into(), kernel_log(&context)))?;
    finish(&context, layers)
}

#[cfg(test)]
mod tests {
    use super::super::clone_mapped;
    use super::super::id_map::IdMaps;
    use super::*;
    use branchbox_sys::mount_attr::MountChange;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn the_way_of_older_kernels_works_too() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("directory");
        let (lower, upper) = (dir.path().join("lower"), dir.path().join("upper"));
        for made in [&lower, &upper.join("up"), &upper.join("work")] {
            std::fs::create_dir_all(made).expect("directory");
        }
        std::fs::write(lower.join("file"), "below").expect("file");
        let range = IdRange { base: 131_072 };
        let mut maps = IdMaps::new(range);
        let mut clone = |path, read_only| {
            let id_map = Some(maps.get((0, 0), (0, 0)).expect("map"));
            clone_mapped(path, MountChange { read_only, nosuid_nodev: false, id_map }).expect("clone")
        };
        let layers = Layers { lowers: vec![clone(&lower, true)], upper: clone(&upper, false), range };
        let mount = in_private_namespace(layers).expect("overlay");
        let stat = rustix::fs::statat(&mount, "file", rustix::fs::AtFlags::empty()).expect("stat");
        assert_eq!(stat.st_uid, range.base);
        rustix::fs::unlinkat(&mount, "file", rustix::fs::AtFlags::empty()).expect("unlink");
        let whiteout = upper.join("up/file").symlink_metadata().expect("whiteout");
        assert_eq!((whiteout.rdev(), whiteout.uid()), (0, 0));
        assert!(lower.join("file").exists());
    }
}
