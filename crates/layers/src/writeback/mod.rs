//! Carrying a step's changes back to the user's own directory.
//!
//! This is a security boundary: the upper was written by a hostile tree. Every path, on both sides, is resolved by the
//! kernel beneath the directory's own descriptor, through no symlink and into no other mount; only regular files,
//! directories and symlinks are written, with plain permission bits and the owner of the directory they come into; no
//! extended attribute comes along. First everything is planned (a plain value that can be shown), then contents are
//! staged beside their places, journalled, and renamed: a crash is undone before the journal's commit and completed
//! after it ([`recover`]). A path that the host changed since the baseline is a conflict, and then nothing is written.

mod apply;
mod guarded;
mod journal;

pub use apply::{Applied, Guarded};
pub use guarded::{GUARDED, is_guarded};
pub use journal::{Outcome, Recovered, recover};

use crate::changes::{ChangeKind, ChangesError, Facts, FileKind, Item, Owners, Source, Trees, walk};
use rustix::fs::Stat;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Most paths one write-back takes.
pub const STEPS_MAX: usize = 500_000;
/// Lines of a plan that are printed.
const SHOWN_MAX: usize = 100;
/// Longest time between two ticks of the file clock on any kernel (100 a second).
const TICK_MAX: Duration = Duration::from_millis(20);
/// How staging directories begin; nothing of this name is ever written back.
pub(crate) const STAGING_PREFIX: &str = ".branchbox-writeback-";
/// Permission bits that are written: no set-id, no sticky.
pub(crate) const MODE_MASK: u32 = 0o777;

/// Why nothing was written, or not all.
#[derive(Debug, thiserror::Error)]
pub enum WriteBackError {
    /// The two sides could not be compared.
    #[error(transparent)]
    Changes(#[from] ChangesError),
    /// More paths than one write-back takes.
    #[error("the step changed more than {STEPS_MAX} paths")]
    TooMany,
    /// The host changed these since the step began.
    #[error("{} was changed on the host meanwhile{}", paths[0].display(), more(paths.len()))]
    Conflict {
        /// At least one.
        paths: Vec<PathBuf>,
    },
    /// The journal's directory cannot be used.
    #[error("cannot keep a journal in {}", path.display())]
    Journal {
        /// The journal or its directory.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A content could not be staged; nothing was changed.
    #[error("cannot stage {}", path.display())]
    Stage {
        /// Relative to the directory.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A path could not be put in place.
    #[error("cannot write {}; {}", path.display(), if *undone { "all was put back" } else { "putting back failed too: run the command again" })]
    Apply {
        /// Relative to the directory.
        path: PathBuf,
        /// Whether everything is as before.
        undone: bool,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

fn more(count: usize) -> String {
    if count > 1 { format!(", and {} more", count - 1) } else { String::new() }
}

/// What is to be done with one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A file gets this content.
    Write {
        /// Bytes.
        size: u64,
        /// Permission bits.
        mode: u32,
    },
    /// A symlink is made.
    Link,
    /// A directory is made.
    Directory {
        /// Permission bits.
        mode: u32,
    },
    /// Only the permission bits change.
    Mode {
        /// Permission bits.
        mode: u32,
    },
    /// It goes, with everything below it.
    Remove {
        /// Entries below.
        entries_below: u64,
    },
}

/// One path of a plan.
#[derive(Debug, Clone)]
pub struct Step {
    /// Relative to the directory.
    pub path: PathBuf,
    /// What is to be done.
    pub action: Action,
    /// The host runs this file by itself.
    pub guarded: bool,
    pub(crate) before: Option<Facts>,
    pub(crate) expected: Option<Seen>,
    pub(crate) source: Option<Source>,
}

/// Something that is not written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Relative to the directory.
    pub path: PathBuf,
    /// Why.
    pub why: &'static str,
}

/// How an entry of the host looked when the plan was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    ino: u64,
    ctime: (i64, u64),
    size: i64,
}

impl Seen {
    pub(crate) fn of(stat: &Stat) -> Self {
        Self { ino: stat.st_ino, ctime: (stat.st_ctime, stat.st_ctime_nsec), size: stat.st_size }
    }
}

/// What a write-back would do.
#[derive(Debug)]
pub struct Plan {
    /// The host's directory.
    pub directory: PathBuf,
    /// Sorted by path.
    pub steps: Vec<Step>,
    /// What is left out, and why.
    pub refused: Vec<Refusal>,
    /// Paths that the host changed since the baseline.
    pub conflicts: Vec<PathBuf>,
    pub(crate) trees: Trees,
}

impl Plan {
    /// Compares the upper directory `up` with the host's `directory`, which must be the only layer below it.
    /// `baseline`: [`baseline`] as it was before the overlay was mounted.
    ///
    /// # Errors
    /// [`WriteBackError::Changes`], [`WriteBackError::TooMany`].
    pub fn new(up: &Path, directory: &Path, owners: Owners, baseline: SystemTime) -> Result<Self, WriteBackError> {
        let trees = Trees::open(up, &[directory.to_path_buf()], owners)?;
        let mut items = Vec::new();
        walk(&trees, &mut |item| {
            if items.len() <= STEPS_MAX {
                items.push(item);
            }
            Ok(())
        })?;
        if items.len() > STEPS_MAX {
            return Err(WriteBackError::TooMany);
        }
        items.sort_by(|a, b| a.path.cmp(&b.path));
        let directory = directory.to_path_buf();
        let mut plan = Self { directory, steps: Vec::new(), refused: Vec::new(), conflicts: Vec::new(), trees };
        let since = baseline.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        for item in items {
            plan.add(item, since)?;
        }
        Ok(plan)
    }

    /// Steps that only an explicit word lets through.
    pub fn guarded(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.guarded)
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    fn add(&mut self, item: Item, since: Duration) -> Result<(), WriteBackError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ChangesError { path, source }
        };
        let ours = item.path.iter().next().is_some_and(|name| name.to_string_lossy().starts_with(STAGING_PREFIX));
        let action = match action(&item) {
            Ok(action) if !ours => action,
            Ok(_) => return self.refuse(item.path, "the name is reserved"),
            Err(why) => return self.refuse(item.path, why),
        };
        let stat = self.trees.lowers[0].stat(&item.path).map_err(failed(&item.path))?;
        if self.in_conflict(&item, action, stat.as_ref(), since).map_err(failed(&item.path))? {
            self.conflicts.push(item.path.clone());
        }
        let makes_directory = matches!(action, Action::Directory { .. } | Action::Remove { .. })
            || matches!((action, item.after), (Action::Mode { .. }, Some(Facts { kind: FileKind::Directory, .. })));
        self.steps.push(Step {
            guarded: is_guarded(&item.path, makes_directory),
            path: item.path,
            action,
            before: item.before,
            expected: stat.as_ref().map(Seen::of),
            source: item.source,
        });
        Ok(())
    }

    fn refuse(&mut self, path: PathBuf, why: &'static str) -> Result<(), WriteBackError> {
        self.refused.push(Refusal { path, why });
        Ok(())
    }

    /// Whether the host touched what this step replaces. A directory's own time also moves when entries come and go, so
    /// for a change of its mode alone it says nothing.
    fn in_conflict(&self, item: &Item, action: Action, stat: Option<&Stat>, since: Duration) -> io::Result<bool> {
        let lower = &self.trees.lowers[0];
        match (stat, item.before) {
            (Some(_), Some(Facts { kind: FileKind::Directory, .. })) if matches!(action, Action::Mode { .. }) => {
                Ok(false)
            }
            (Some(_), Some(Facts { kind: FileKind::Directory, .. })) => self.touched_below(&item.path, since),
            (Some(stat), _) => Ok(is_after(stat, since)),
            (None, _) => {
                // Something copied up that is not there any more was removed on the host, if its directory was touched.
                let Some(Source::Upper(upper)) = &item.source else { return Ok(false) };
                let parent = lower.stat(item.path.parent().unwrap_or(Path::new("")))?;
                Ok(parent.is_some_and(|parent| is_after(&parent, since)) && self.trees.upper.was_copied_up(upper)?)
            }
        }
    }

    fn touched_below(&self, path: &Path, since: Duration) -> io::Result<bool> {
        let lower = &self.trees.lowers[0];
        let mut pending = vec![path.to_path_buf()];
        while let Some(path) = pending.pop() {
            let Some(stat) = lower.stat(&path)? else { continue };
            if is_after(&stat, since) {
                return Ok(true);
            }
            if rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory {
                pending.extend(lower.names(&path)?.into_iter().map(|name| path.join(name)));
            }
        }
        Ok(false)
    }
}

/// The instant from which changes of the host are conflicts: what came before has file times up to it, and what comes
/// after this returns has later ones.
///
/// File times come from a clock that stands still between two ticks, except that a file whose time somebody looked at gets
/// a finer one, and no other file an earlier one afterwards (multigrain timestamps, `Documentation/filesystems/multigrain-ts.rst`,
/// Linux 6.13). So the fine clock bounds what was given out, and the coarse one has to pass it: that takes up to a tick.
#[must_use]
pub fn baseline() -> SystemTime {
    let read = |clock| {
        let now = rustix::time::clock_gettime(clock);
        let seconds = Duration::from_secs(now.tv_sec.max(0).cast_unsigned());
        SystemTime::UNIX_EPOCH + seconds + Duration::from_nanos(now.tv_nsec.max(0).cast_unsigned())
    };
    let baseline = read(rustix::time::ClockId::Realtime);
    // A clock that is set back meanwhile does not hold this up for long.
    let started = Instant::now();
    while read(rustix::time::ClockId::RealtimeCoarse) <= baseline && started.elapsed() < TICK_MAX {
        std::thread::sleep(Duration::from_micros(500));
    }
    baseline
}

fn is_after(stat: &Stat, since: Duration) -> bool {
    (stat.st_ctime, stat.st_ctime_nsec) > (since.as_secs().cast_signed(), u64::from(since.subsec_nanos()))
}

/// What a difference means for the host, or why it is left out.
fn action(item: &Item) -> Result<Action, &'static str> {
    let Some(after) = item.after else { return Ok(Action::Remove { entries_below: item.entries_below }) };
    let mode = after.mode & MODE_MASK;
    if item.kind == ChangeKind::Meta {
        let same_mode = item.before.is_some_and(|before| before.mode & MODE_MASK == mode);
        return if same_mode { Err("owners and set-id bits are not written back") } else { Ok(Action::Mode { mode }) };
    }
    match after.kind {
        FileKind::File => Ok(Action::Write { size: after.size, mode }),
        FileKind::Directory => Ok(Action::Directory { mode }),
        FileKind::Symlink => Ok(Action::Link),
        FileKind::Special => Err("devices, pipes and sockets are not written back"),
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in self.steps.iter().filter(|step| !step.guarded).take(SHOWN_MAX) {
            writeln!(f, "{step}")?;
        }
        let plain = self.steps.iter().filter(|step| !step.guarded).count();
        if plain > SHOWN_MAX {
            writeln!(f, "and {} more", plain - SHOWN_MAX)?;
        }
        for step in self.guarded().take(SHOWN_MAX) {
            writeln!(f, "run by the host itself: {step}")?;
        }
        for refusal in self.refused.iter().take(SHOWN_MAX) {
            writeln!(f, "left out: {} ({})", refusal.path.display(), refusal.why)?;
        }
        for path in self.conflicts.iter().take(SHOWN_MAX) {
            writeln!(f, "conflict: {}", path.display())?;
        }
        Ok(())
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match (self.action, self.before) {
            (Action::Write { size, .. }, None) => write!(f, "add {path} ({size} bytes)"),
            (Action::Write { size, .. }, Some(before)) => write!(f, "change {path} ({} -> {size} bytes)", before.size),
            (Action::Link, _) => write!(f, "link {path}"),
            (Action::Directory { .. }, _) => write!(f, "make {path}/"),
            (Action::Mode { mode }, _) => write!(f, "mode {path} {mode:03o}"),
            (Action::Remove { entries_below: 0 }, _) => write!(f, "remove {path}"),
            (Action::Remove { entries_below }, _) => write!(f, "remove {path}/ and {entries_below} below it"),
        }
    }
}
