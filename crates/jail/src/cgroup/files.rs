//! Reading and writing the small files of a control group, with the path in every error.

use super::CgroupError;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest file of a control group that is read; the longest we use, `memory.stat`, has 2 KiB.
const FILE_BYTES_MAX: u64 = 64 * 1024;

pub(super) fn error(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CgroupError {
    let path = path.to_path_buf();
    move |source| CgroupError::Io { action, path, source }
}

/// Writes without creating: a file that is not there is an error of its own name.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CgroupError> {
    let mut file = OpenOptions::new().write(true).open(path).map_err(error("open", path))?;
    file.write_all(text.as_bytes()).map_err(error("write", path))
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    let mut text = String::new();
    let file = File::open(path).map_err(error("open", path))?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(error("read", path))?;
    Ok(text)
}

/// The number behind `key` in a file of `key value` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

/// Waits until `cgroup.events` of this group says `key value`.
pub(super) fn wait_event(
    dir: &Path,
    key: &str,
    value: u64,
    state: &'static str,
    limit: Duration,
) -> Result<(), CgroupError> {
    let path = dir.join("cgroup.events");
    let mut file = File::open(&path).map_err(error("open", &path))?;
    let started = Instant::now();
    loop {
        let mut text = String::new();
        file.rewind().map_err(error("rewind", &path))?;
        (&file).take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(error("read", &path))?;
        if keyed(&text, key) == Some(value) {
            return Ok(());
        }
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            let waited_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            return Err(CgroupError::Timeout { path: dir.to_path_buf(), state, waited_ms });
        }
        // The kernel marks the file with POLLPRI when it changes; the read above takes the mark away.
        let timeout = Timespec::try_from(left).unwrap_or_default();
        match rustix::event::poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(error("poll", &path)(errno.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::keyed;

    #[test]
    fn keyed_matches_whole_keys_only() {
        let text = "oom 3\noom_kill 2\npopulated 1\n";
        assert_eq!(keyed(text, "oom_kill"), Some(2));
        assert_eq!(keyed(text, "oom"), Some(3));
        assert_eq!(keyed(text, "oom_"), None);
    }
}
