//! `branchbox-watch`: says what changes below a folder, as lines of JSON. What `files/watches` of the API runs in a sandbox.
//!
//! It is an ordinary program with an inotify, so a capture takes it along: a watch goes on in a fork and after a pause.
//! Nothing is lost in silence: what the kernel or a limit dropped is told, and whoever reads has to look for himself then.
//!
//! A new folder is looked into as it appears, since things can be made in it before it is watched. What is found so and
//! told by the kernel as well is told once.

use crate::files::glob::Glob;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Events of one second that are told; more are counted.
const RATE_MAX: usize = 5000;
/// Folders watched when nothing else is said.
const FOLDERS_DEFAULT: usize = 8192;
const BATCH_DEFAULT: Duration = Duration::from_millis(100);
/// Bytes after which a line ends. One event has at most two paths of 4 KiB, each byte written as six.
const LINE_BYTES: usize = 16 * 1024;
/// Of an event beside its paths.
const EVENT_BYTES: usize = 64;
const BUFFER_BYTES: usize = 64 * 1024;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    r#type: &'static str,
    path: String,
    is_dir: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
}

/// One line.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "k", rename_all = "lowercase")]
enum Line {
    /// What happens from here on is told.
    Ready,
    Events {
        events: Vec<Event>,
    },
    /// So many were not told; none if the kernel did not count them.
    Overflow {
        #[serde(skip_serializing_if = "Option::is_none")]
        dropped: Option<usize>,
    },
    /// No more folders can be watched.
    Limit {
        folders: usize,
    },
    End {
        reason: &'static str,
    },
}

/// What to watch, and what to say of it.
#[derive(Debug, Default)]
struct Asked {
    root: PathBuf,
    recursive: bool,
    kinds: Vec<String>,
    include: Vec<Glob>,
    exclude: Vec<Glob>,
    batch: Option<Duration>,
    timeout: Option<Duration>,
    folders_max: Option<usize>,
}

fn parse(args: &[OsString]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        let mut value =
            || rest.next().map(|value| value.to_string_lossy().into_owned()).ok_or(format!("{text} needs a value"));
        let number = |value: String| value.parse::<u64>().map_err(|_| format!("`{value}` is no number"));
        match text.as_ref() {
            "--recursive" => asked.recursive = true,
            "--event" => asked.kinds.push(value()?),
            "--include" => asked.include.push(Glob::new(&value()?)),
            "--exclude" => asked.exclude.push(Glob::new(&value()?)),
            "--batch-ms" => asked.batch = Some(Duration::from_millis(number(value()?)?)),
            "--timeout-ms" => asked.timeout = Some(Duration::from_millis(number(value()?)?)),
            "--max-folders" => asked.folders_max = usize::try_from(number(value()?)?).ok(),
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            _ => asked.root = arg.into(),
        }
    }
    if asked.root.as_os_str().is_empty() { Err("a folder is needed".into()) } else { Ok(asked) }
}

/// What happened to a path, before it is told.
struct Watch {
    asked: Asked,
    inotify: OwnedFd,
    /// Folders by their numbers, relative to the root.
    folders: HashMap<i32, PathBuf>,
    batch: Vec<Event>,
    /// Where in the batch a change of this kind of a path stands last.
    known: HashMap<(String, &'static str), usize>,
    /// Where a path was last made, moved or removed.
    turns: HashMap<String, usize>,
    /// First halves of renames, by cookie: where from, and where in the batch they stand.
    leaving: HashMap<u32, (PathBuf, bool)>,
    told_limit: bool,
    dropped: usize,
    window: (Instant, usize),
}

/// Why it ends.
type Ended = &'static str;

pub(crate) fn run(args: &[OsString]) -> ExitCode {
    let asked = match parse(args) {
        Ok(asked) => asked,
        Err(problem) => {
            crate::tools::say(&format!(
                "branchbox-watch: {problem}\nusage: branchbox-watch [--recursive] [--event KIND]... [--include GLOB]... [--exclude GLOB]... \
                 [--batch-ms N] [--timeout-ms N] [--max-folders N] FOLDER"
            ));
            return ExitCode::FAILURE;
        }
    };
    let root = asked.root.clone();
    let ready = |watch: Watch| {
        tell(&Line::Ready);
        watch.watch()
    };
    match Watch::begin(asked).and_then(ready) {
        Ok(reason) => {
            tell(&Line::End { reason });
            ExitCode::SUCCESS
        }
        Err(errno) => {
            crate::tools::say(&format!("branchbox-watch: {}: {errno}", root.display()));
            ExitCode::FAILURE
        }
    }
}

/// Events in lines that whoever reads can take whole.
fn in_lines(events: Vec<Event>) -> Vec<Vec<Event>> {
    let mut lines = Vec::new();
    let (mut line, mut bytes) = (Vec::new(), 0);
    for event in events {
        bytes += event.path.len() + event.old_path.as_ref().map_or(0, String::len) + EVENT_BYTES;
        line.push(event);
        if bytes >= LINE_BYTES {
            lines.push(std::mem::take(&mut line));
            bytes = 0;
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

fn tell(line: &Line) {
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    // Nobody reads any more: then there is nothing to be done either.
    if std::io::stdout().write_all(&text).is_err() {
        std::process::exit(0);
    }
}

impl Watch {
    fn begin(asked: Asked) -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Self {
            asked,
            inotify,
            folders: HashMap::new(),
            batch: Vec::new(),
            known: HashMap::new(),
            turns: HashMap::new(),
            leaving: HashMap::new(),
            told_limit: false,
            dropped: 0,
            window: (Instant::now(), 0),
        };
        watch.add(Path::new(""))?;
        watch.look_into(Path::new(""), false);
        Ok(watch)
    }

    fn watch(mut self) -> Result<Ended, Errno> {
        let end = self.asked.timeout.map(|timeout| Instant::now() + timeout);
        let batch = self.asked.batch.unwrap_or(BATCH_DEFAULT);
        // When what has come is told.
        let mut due: Option<Instant> = None;
        loop {
            let now = Instant::now();
            if end.is_some_and(|end| end <= now) {
                self.flush();
                return Ok("timeout");
            }
            if due.is_some_and(|due| due <= now) {
                self.flush();
                due = None;
            }
            let next = due.into_iter().chain(end).min().map(|at| at.saturating_duration_since(now));
            let timeout = next.map(|left| Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
            if let Some(reason) = self.take()? {
                self.flush();
                return Ok(reason);
            }
            if due.is_none() && (!self.batch.is_empty() || !self.leaving.is_empty() || self.dropped > 0) {
                due = Some(Instant::now() + batch);
            }
        }
    }

    /// Watches one folder.
    fn add(&mut self, folder: &Path) -> Result<(), Errno> {
        let mask = WatchFlags::CREATE
            | WatchFlags::MODIFY
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        let number = inotify::add_watch(&self.inotify, self.asked.root.join(folder), mask)?;
        self.folders.insert(number, folder.to_owned());
        Ok(())
    }

    /// Watches what is below a folder, and tells of it if it is new.
    fn look_into(&mut self, folder: &Path, is_new: bool) {
        if !self.asked.recursive {
            return;
        }
        let mut open = vec![folder.to_owned()];
        while let Some(folder) = open.pop() {
            // One that has gone meanwhile is told as gone.
            let Ok(entries) = std::fs::read_dir(self.asked.root.join(&folder)) else { continue };
            for entry in entries.flatten() {
                let path = folder.join(entry.file_name());
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                if is_new {
                    self.push("create", &path, is_dir, None);
                }
                if is_dir && !self.is_excluded(&path) && self.enter(&path) {
                    open.push(path);
                }
            }
        }
    }

    /// Watches a folder below the root, if there may be more.
    fn enter(&mut self, path: &Path) -> bool {
        let max = self.asked.folders_max.unwrap_or(FOLDERS_DEFAULT);
        let added = if self.folders.len() < max { self.add(path) } else { Err(Errno::NOSPC) };
        match added {
            Ok(()) => true,
            Err(Errno::NOSPC | Errno::MFILE) => {
                if !std::mem::replace(&mut self.told_limit, true) {
                    tell(&Line::Limit { folders: self.folders.len() });
                }
                false
            }
            // It has gone meanwhile, or may not be read.
            Err(_) => false,
        }
    }

    fn is_excluded(&self, path: &Path) -> bool {
        let matches = |path: &Path| {
            let text = path.to_string_lossy();
            self.asked.exclude.iter().any(|glob| glob.matches(&text))
        };
        path.ancestors().take_while(|part| !part.as_os_str().is_empty()).any(matches)
    }

    fn is_wanted(&self, kind: &str, path: &Path) -> bool {
        let text = path.to_string_lossy();
        let includes = &self.asked.include;
        (self.asked.kinds.is_empty() || self.asked.kinds.iter().any(|wanted| wanted == kind))
            && (includes.is_empty() || includes.iter().any(|glob| glob.matches(&text)))
            && !self.is_excluded(path)
    }

    fn push(&mut self, kind: &'static str, path: &Path, is_dir: bool, old: Option<&Path>) {
        let is_wanted = self.is_wanted(kind, path) || old.is_some_and(|old| self.is_wanted(kind, old));
        if !is_wanted {
            return;
        }
        let shown = |path: &Path| self.asked.root.join(path).to_string_lossy().into_owned();
        let event = Event { r#type: kind, path: shown(path), is_dir, old_path: old.map(shown), count: None };
        // Since it was last made or gone, what is the same is told once.
        let turn = self.turns.get(&event.path).copied();
        let known =
            self.known.get(&(event.path.clone(), kind)).copied().filter(|at| turn.is_none_or(|turn| *at >= turn));
        let repeats = matches!(kind, "write" | "chmod");
        match known.and_then(|at| self.batch.get_mut(at)) {
            Some(known) if repeats => known.count = Some(known.count.unwrap_or(1).saturating_add(1)),
            Some(_) => {}
            None => {
                if !repeats {
                    self.turns.insert(event.path.clone(), self.batch.len());
                }
                self.known.insert((event.path.clone(), kind), self.batch.len());
                self.batch.push(event);
            }
        }
    }

    /// Takes what the kernel says.
    fn take(&mut self) -> Result<Option<Ended>, Errno> {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut came = Vec::new();
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                    came.push((event.wd(), event.events(), event.cookie(), name));
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(errno) => return Err(errno),
            }
        }
        let mut ended = None;
        for (number, flags, cookie, name) in came {
            ended = ended.or(self.one(number, flags, cookie, name));
        }
        Ok(ended)
    }

    fn one(&mut self, number: i32, flags: ReadFlags, cookie: u32, name: Option<OsString>) -> Option<Ended> {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            tell(&Line::Overflow { dropped: None });
            // New folders may be among what was dropped.
            self.look_into(Path::new(""), false);
            return None;
        }
        let folder = self.folders.get(&number)?.clone();
        let is_root = folder.as_os_str().is_empty();
        if flags.contains(ReadFlags::IGNORED) {
            self.folders.remove(&number);
            return is_root.then_some("root-removed");
        }
        if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF) {
            return is_root.then_some("root-removed");
        }
        let (path, is_dir) = (folder.join(name?), flags.contains(ReadFlags::ISDIR));
        if flags.contains(ReadFlags::MOVED_FROM) {
            self.leaving.insert(cookie, (path, is_dir));
        } else if flags.contains(ReadFlags::MOVED_TO) {
            self.arrive(cookie, &path, is_dir);
        } else if flags.contains(ReadFlags::CREATE) {
            self.push("create", &path, is_dir, None);
            self.appear(&path, is_dir);
        } else if flags.contains(ReadFlags::DELETE) {
            self.push("remove", &path, is_dir, None);
        } else if flags.contains(ReadFlags::MODIFY) {
            self.push("write", &path, is_dir, None);
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.push("chmod", &path, is_dir, None);
        }
        None
    }

    /// A folder that is new here.
    fn appear(&mut self, path: &Path, is_dir: bool) {
        if is_dir && self.asked.recursive && !self.is_excluded(path) && self.enter(path) {
            self.look_into(path, true);
        }
    }

    fn arrive(&mut self, cookie: u32, path: &Path, is_dir: bool) {
        let Some((old, _)) = self.leaving.remove(&cookie) else {
            self.push("create", path, is_dir, None);
            return self.appear(path, is_dir);
        };
        self.push("rename", path, is_dir, Some(&old));
        if !is_dir {
            return;
        }
        let mut is_known = false;
        for folder in self.folders.values_mut() {
            if let Ok(rest) = folder.strip_prefix(&old) {
                *folder = if rest.as_os_str().is_empty() { path.to_owned() } else { path.join(rest) };
                is_known = true;
            }
        }
        // It was left out where it came from.
        if !is_known {
            self.appear(path, is_dir);
        }
    }

    /// Tells what has come.
    fn flush(&mut self) {
        let gone: Vec<(PathBuf, bool)> = self.leaving.drain().map(|(_, left)| left).collect();
        for (path, is_dir) in gone {
            self.push("remove", &path, is_dir, None);
            self.forget(&path);
        }
        let mut events = std::mem::take(&mut self.batch);
        self.known.clear();
        self.turns.clear();
        if self.window.0.elapsed() >= Duration::from_secs(1) {
            self.window = (Instant::now(), 0);
        }
        let room = RATE_MAX.saturating_sub(self.window.1);
        if events.len() > room {
            self.dropped += events.len() - room;
            events.truncate(room);
        }
        self.window.1 += events.len();
        for events in in_lines(events) {
            tell(&Line::Events { events });
        }
        let dropped = std::mem::take(&mut self.dropped);
        if dropped > 0 {
            tell(&Line::Overflow { dropped: Some(dropped) });
        }
    }

    /// A folder that has left is watched no more, wherever it is.
    fn forget(&mut self, path: &Path) {
        let left: HashSet<i32> =
            self.folders.iter().filter(|(_, folder)| folder.starts_with(path)).map(|(number, _)| *number).collect();
        for number in left {
            self.folders.remove(&number);
            // It may have gone as well.
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(root: &Path, words: &[&str]) -> Watch {
        let mut args: Vec<OsString> = words.iter().map(OsString::from).collect();
        args.push(root.into());
        Watch::begin(parse(&args).expect("options")).expect("a watch")
    }

    /// What was said of, in the order of the batch.
    fn told(watch: &mut Watch) -> Vec<String> {
        assert_eq!(watch.take().expect("read"), None);
        let gone: Vec<(PathBuf, bool)> = watch.leaving.drain().map(|(_, left)| left).collect();
        gone.iter().for_each(|(path, is_dir)| watch.push("remove", path, *is_dir, None));
        let root = format!("{}/", watch.asked.root.display());
        let shown = |event: &Event| {
            let old = event.old_path.as_ref().map_or(String::new(), |old| format!("{}>", old.replace(&root, "")));
            let count = event.count.map_or(String::new(), |count| format!("*{count}"));
            format!("{} {old}{}{count}", event.r#type, event.path.replace(&root, ""))
        };
        watch.known.clear();
        watch.turns.clear();
        std::mem::take(&mut watch.batch).iter().map(shown).collect()
    }

    #[test]
    fn changes_are_told_once_and_in_order() {
        let dir = tempdir();
        let mut seen = watch(&dir, &["--recursive", "--exclude", "skip"]);
        std::fs::create_dir_all(dir.join("a/b")).expect("made");
        std::fs::write(dir.join("a/b/f"), "1").expect("written");
        let first = told(&mut seen);
        assert_eq!(first[0], "create a");
        assert!(first.contains(&"create a/b".to_owned()) && first.contains(&"create a/b/f".to_owned()), "{first:?}");
        std::fs::write(dir.join("a/b/f"), "22").expect("written");
        std::fs::rename(dir.join("a"), dir.join("c")).expect("renamed");
        std::fs::write(dir.join("c/b/f"), "333").expect("written");
        std::fs::create_dir(dir.join("skip")).expect("made");
        std::fs::write(dir.join("skip/x"), "").expect("written");
        std::fs::remove_file(dir.join("c/b/f")).expect("removed");
        let second = told(&mut seen);
        assert!(second[0].starts_with("write a/b/f"), "{second:?}");
        assert_eq!(second[1], "rename a>c");
        assert!(second[2].starts_with("write c/b/f") && second[3] == "remove c/b/f" && second.len() == 4, "{second:?}");
        std::fs::remove_dir_all(&dir).expect("removed");
        assert_eq!(seen.take().expect("read"), Some("root-removed"));
    }

    #[test]
    fn only_what_is_asked_for() {
        let dir = tempdir();
        let mut seen = watch(&dir, &["--event", "create", "--include", "*.rs"]);
        for name in ["a.rs", "b.txt"] {
            std::fs::write(dir.join(name), "x").expect("written");
        }
        std::fs::create_dir(dir.join("sub")).expect("made");
        std::fs::write(dir.join("sub/c.rs"), "x").expect("written");
        assert_eq!(told(&mut seen), ["create a.rs"]);
        std::fs::remove_dir_all(&dir).expect("removed");
    }

    fn tempdir() -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("branchbox-watch-{}-{number}", std::process::id()));
        std::fs::create_dir(&dir).expect("a directory");
        dir
    }
}
