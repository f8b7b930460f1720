//! The state directory: one node at a time, one version, one key.

use crate::error::NodeError;
use rustix::fs::{FlockOperation, flock};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The version of the layout that this program writes.
const VERSION: u32 = 1;
/// Random bytes of a key: 43 base64url characters.
const KEY_BYTES: usize = 32;
/// What a key begins with.
const KEY_PREFIX: &str = "bbx_";

/// An open state directory; the lock ends with it.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    run_dir: PathBuf,
    key: String,
    _lock: std::fs::File,
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.to_path_buf();
    move |source| NodeError::File { action, path, source }
}

impl StateDir {
    /// Opens or makes it.
    pub(crate) fn open(path: &Path, run_parent: &Path) -> Result<Self, NodeError> {
        make_private(path)?;
        let path = fs_err::canonicalize(path).map_err(file("find", path))?;
        let lock = lock(&path)?;
        check_version(&path)?;
        for name in ["sandboxes", "extents"] {
            make_private(&path.join(name))?;
        }
        let run_dir = run_parent.join(format!("{:08x}", hash(path.as_os_str().as_encoded_bytes())));
        make_private(&run_dir)?;
        let key = admin_key(&path)?;
        Ok(Self { path, run_dir, key, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where sockets lie.
    pub(crate) fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    pub(crate) fn admin_key(&self) -> &str {
        &self.key
    }

    pub(crate) fn catalog(&self) -> PathBuf {
        self.path.join("catalog.db")
    }

    /// A sandbox's own directory: its keeper's configuration, log and records.
    pub(crate) fn sandbox(&self, id: &str) -> PathBuf {
        self.path.join("sandboxes").join(id)
    }

    /// Where a snapshot's memory and records lie.
    pub(crate) fn extents(&self) -> PathBuf {
        self.path.join("extents")
    }
}

pub(crate) fn make_private(path: &Path) -> Result<(), NodeError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(file("make the directory", path))
}

/// Names a run directory; collisions would need two state directories of one machine among 2³² names.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

fn lock(path: &Path) -> Result<std::fs::File, NodeError> {
    let lock_path = path.join("lock");
    let opened =
        std::fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&lock_path);
    let mut lock = opened.map_err(file("open", &lock_path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut text = String::new();
            let _ = (&lock).take(32).read_to_string(&mut text);
            return Err(NodeError::AlreadyRunning { path: path.to_path_buf(), pid: text.trim().parse().unwrap_or(0) });
        }
        Err(errno) => return Err(file("lock", &lock_path)(errno.into())),
    }
    let write = |lock: &mut std::fs::File| {
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())
    };
    write(&mut lock).map_err(file("write", &lock_path))?;
    Ok(lock)
}

fn check_version(path: &Path) -> Result<(), NodeError> {
    let version_path = path.join("VERSION");
    match fs_err::read_to_string(&version_path) {
        Ok(text) => {
            let found = text.trim().to_owned();
            if found.parse::<u32>().is_ok_and(|found| found <= VERSION) {
                return Ok(());
            }
            Err(NodeError::NewerState {
                path: path.to_path_buf(),
                found: found.chars().take(32).collect(),
                known: VERSION,
            })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            fs_err::write(&version_path, format!("{VERSION}\n")).map_err(file("write", &version_path))
        }
        Err(error) => Err(file("read", &version_path)(error)),
    }
}

/// Reads the key, or makes one. Only root may read it.
fn admin_key(path: &Path) -> Result<String, NodeError> {
    let key_path = path.join("admin.key");
    match fs_err::read_to_string(&key_path) {
        Ok(text) if text.trim().starts_with(KEY_PREFIX) => {
            let private = std::fs::Permissions::from_mode(0o600);
            fs_err::set_permissions(&key_path, private).map_err(file("protect", &key_path))?;
            return Ok(text.trim().to_owned());
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(file("read", &key_path)(error)),
    }
    let key = random_key()?;
    let temporary = path.join("admin.key.new");
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{key}")?;
        file.sync_all()?;
        std::fs::rename(&temporary, &key_path)
    };
    write().map_err(file("write", &key_path))?;
    Ok(key)
}

/// A new key.
pub(crate) fn random_key() -> Result<String, NodeError> {
    Ok(format!("{KEY_PREFIX}{}", branchbox_api::base64::encode_url(&random::<KEY_BYTES>()?)))
}

/// Random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], NodeError> {
    let mut bytes = [0u8; N];
    let mut done = 0;
    while done < N {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| file("read randomness from", Path::new("getrandom"))(errno.into()))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<StateDir, NodeError> {
        StateDir::open(&path.join("state"), &path.join("run"))
    }

    #[test]
    fn a_second_node_learns_the_pid_of_the_first() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = open(directory.path()).expect("open");
        let error = open(directory.path()).expect_err("locked");
        assert!(matches!(error, NodeError::AlreadyRunning { pid, .. } if pid == std::process::id()), "{error}");
        let key = first.admin_key().to_owned();
        assert_eq!((key.len(), &key[..4]), (47, "bbx_"));
        drop(first);
        assert_eq!(open(directory.path()).expect("open again").admin_key(), key, "the key stays");
    }

    #[test]
    fn a_newer_directory_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        fs_err::create_dir_all(directory.path().join("state")).expect("directory");
        fs_err::write(directory.path().join("state/VERSION"), "7\n").expect("write");
        let error = open(directory.path()).expect_err("newer");
        assert!(matches!(&error, NodeError::NewerState { found, .. } if found == "7"), "{error}");
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        fs_err::write(directory.path().join("state"), "a file").expect("write");
        let error = open(directory.path()).expect_err("no directory");
        assert!(error.to_string().contains("state"), "{error}");
    }
}
