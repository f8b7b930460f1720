//! Carrying out a plan: stage, check again, commit, rename; or put back.
//!
//! Operations can be done twice without harm, which is what recovery relies on: what was staged under a number is moved
//! from there exactly once, and what was replaced or removed lies in the staging directory as `old-<number>` until the
//! journal says that all is done.

use super::journal::{Journal, raw_path};
use super::{Action, MODE_MASK, Plan, STAGING_PREFIX, Seen, Step, WriteBackError};
use crate::beneath::Beneath;
use crate::copy;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Staged files that are flushed one by one; more are flushed with their file system.
const SYNC_FILES_MAX: usize = 1_000;

/// What to do with steps that write files the host runs by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarded {
    /// They are left out.
    Leave,
    /// They are written like the others.
    Write,
}

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// Paths written, made or removed.
    pub paths: usize,
    /// Guarded paths left out.
    pub guarded_left_out: usize,
}

/// One operation of a journal; numbers name staged entries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Operation {
    /// Moves what is there away.
    Remove {
        #[serde(with = "raw_path")]
        path: PathBuf,
        number: usize,
    },
    /// Moves a staged directory (empty), file or symlink in; `over` keeps what it replaces.
    Place {
        #[serde(with = "raw_path")]
        path: PathBuf,
        number: usize,
        over: bool,
    },
    /// Sets permission bits.
    Mode {
        #[serde(with = "raw_path")]
        path: PathBuf,
        mode: u32,
        before: u32,
    },
}

impl Operation {
    fn path(&self) -> &Path {
        match self {
            Self::Remove { path, .. } | Self::Place { path, .. } | Self::Mode { path, .. } => path,
        }
    }
}

impl Plan {
    /// Does what the plan says, all or nothing. `journals` is a directory of ours that outlives this process.
    ///
    /// # Errors
    /// [`WriteBackError::Conflict`] when the host changed something meanwhile, also since the plan was made; else what
    /// failed. Nothing is changed then, unless the error says so.
    pub fn apply(&self, journals: &Path, guarded: Guarded) -> Result<Applied, WriteBackError> {
        if !self.conflicts.is_empty() {
            return Err(WriteBackError::Conflict { paths: self.conflicts.clone() });
        }
        let (steps, left): (Vec<&Step>, Vec<&Step>) =
            self.steps.iter().partition(|step| guarded == Guarded::Write || !step.guarded);
        let applied = Applied { paths: steps.len(), guarded_left_out: left.len() };
        if steps.is_empty() {
            return Ok(applied);
        }
        let root = &self.trees.lowers[0];
        let staging = staging_name();
        let mut journal = Journal::begin(journals, &self.directory, root, &staging)?;
        let staged = self.stage(&staging, &steps).and_then(|operations| {
            self.check_again(&steps)?;
            journal.commit(&operations)?;
            Ok(operations)
        });
        let result = match staged {
            Ok(operations) => self.put_in_place(&staging, &operations, &mut journal),
            Err(error) => Err(error),
        };
        if matches!(result, Err(WriteBackError::Apply { undone: false, .. })) {
            // The journal and what it needs stay: the next start completes it.
            return result.map(|()| applied);
        }
        remove_staging(root, &staging)
            .map_err(|source| WriteBackError::Stage { path: PathBuf::from(&staging), source })?;
        journal.remove()?;
        result.map(|()| applied)
    }

    /// Removals first, then directories before what goes into them, modes last.
    fn stage(&self, staging: &str, steps: &[&Step]) -> Result<Vec<Operation>, WriteBackError> {
        let root = &self.trees.lowers[0];
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| WriteBackError::Stage { path, source }
        };
        rustix::fs::mkdirat(&root.root, staging, Mode::from_raw_mode(0o700))
            .map_err(|e| failed(Path::new(staging))(e.into()))?;
        let into = root.directory(Path::new(staging)).map_err(|e| failed(Path::new(staging))(e.into()))?;
        let (mut removals, mut places, mut modes) = (Vec::new(), Vec::new(), Vec::new());
        let mut unsynced = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            let path = step.path.clone();
            let keeps_kind = matches!(step.action, Action::Write { .. } | Action::Link) && !self.is_directory(step);
            let exists = step.expected.is_some();
            match step.action {
                Action::Remove { .. } => removals.push(Operation::Remove { path, number }),
                Action::Mode { mode } => {
                    let before = step.before.map_or(mode, |facts| facts.mode & MODE_MASK);
                    modes.push(Operation::Mode { path, mode, before });
                }
                _ => {
                    if exists && !keeps_kind {
                        removals.push(Operation::Remove { path: path.clone(), number });
                    }
                    unsynced.extend(self.stage_entry(&into, number, step).map_err(failed(&path))?);
                    places.push(Operation::Place { path, number, over: exists && keeps_kind });
                }
            }
        }
        flush(&into, &unsynced).map_err(failed(Path::new(staging)))?;
        removals.append(&mut places);
        removals.append(&mut modes);
        Ok(removals)
    }

    fn is_directory(&self, step: &Step) -> bool {
        step.before.is_some_and(|facts| facts.kind == crate::changes::FileKind::Directory)
    }

    /// Makes the entry under its number in the staging directory; returns a file that is to be flushed.
    fn stage_entry(&self, into: &OwnedFd, number: usize, step: &Step) -> io::Result<Option<OwnedFd>> {
        let name = number.to_string();
        let source = step.source.as_ref().ok_or(Errno::INVAL)?;
        let (uid, gid) = self.owner_for(step)?;
        match step.action {
            Action::Directory { mode } => {
                rustix::fs::mkdirat(into, &name, Mode::from_raw_mode(0o700))?;
                let made = rustix::fs::openat(into, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::fs::fchown(&made, Some(uid), Some(gid))?;
                rustix::fs::fchmod(&made, Mode::from_raw_mode(mode))?;
                Ok(None)
            }
            Action::Link => {
                rustix::fs::symlinkat(self.trees.link_target(source)?, into, &name)?;
                rustix::fs::chownat(into, &name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
                Ok(None)
            }
            Action::Write { mode, .. } => {
                let from = OwnedFd::from(self.trees.open_source(source)?);
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let to = rustix::fs::openat(into, &name, flags, Mode::from_raw_mode(0o600))?;
                let stat = rustix::fs::fstat(&from)?;
                copy::copy_data(&from, &to, stat.st_size.cast_unsigned())?;
                rustix::fs::fchown(&to, Some(uid), Some(gid))?;
                rustix::fs::fchmod(&to, Mode::from_raw_mode(mode))?;
                let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() };
                rustix::fs::futimens(&to, &Timestamps { last_access: time, last_modification: time })?;
                Ok(Some(to))
            }
            Action::Remove { .. } | Action::Mode { .. } => Ok(None),
        }
    }

    /// The owner of what is replaced, else of the nearest directory that is there already.
    fn owner_for(&self, step: &Step) -> io::Result<(Uid, Gid)> {
        let root = &self.trees.lowers[0];
        let mut at = Some(step.path.as_path());
        while let Some(path) = at {
            let of_directory = path != step.path;
            if let Some(stat) = root.stat(path)? {
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if is_directory || !of_directory {
                    return Ok((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)));
                }
            }
            at = path.parent();
        }
        let stat = rustix::fs::fstat(&root.root)?;
        Ok((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)))
    }

    /// The host must still look as it did when the plan was made.
    fn check_again(&self, steps: &[&Step]) -> Result<(), WriteBackError> {
        let root = &self.trees.lowers[0];
        let mut paths = Vec::new();
        for step in steps {
            let stat =
                root.stat(&step.path).map_err(|source| WriteBackError::Stage { path: step.path.clone(), source })?;
            let same = match (&stat, step.expected) {
                // Its time moves with its entries, and those are looked at one by one.
                (Some(now), Some(_)) if FileType::from_raw_mode(now.st_mode) == FileType::Directory => true,
                (now, expected) => now.as_ref().map(Seen::of) == expected,
            };
            if !same {
                paths.push(step.path.clone());
            }
        }
        if paths.is_empty() { Ok(()) } else { Err(WriteBackError::Conflict { paths }) }
    }

    fn put_in_place(
        &self,
        staging: &str,
        operations: &[Operation],
        journal: &mut Journal,
    ) -> Result<(), WriteBackError> {
        let root = &self.trees.lowers[0];
        let result = complete(root, staging, operations);
        match result {
            Err(WriteBackError::Apply { path, source, .. }) => {
                let undone = undo(root, staging, operations).is_ok();
                if undone {
                    journal.done()?;
                }
                Err(WriteBackError::Apply { path, undone, source })
            }
            other => other.and_then(|()| journal.done()),
        }
    }
}

fn staging_name() -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&std::process::id().to_le_bytes());
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    hasher.update(&now.tv_sec.to_le_bytes());
    hasher.update(&now.tv_nsec.to_le_bytes());
    format!("{STAGING_PREFIX}{}", &hasher.finalize().to_hex()[..16])
}

fn flush(staging: &OwnedFd, files: &[OwnedFd]) -> io::Result<()> {
    if files.len() > SYNC_FILES_MAX {
        return Ok(rustix::fs::syncfs(staging)?);
    }
    for file in files {
        rustix::fs::fdatasync(file)?;
    }
    Ok(rustix::fs::fsync(staging)?)
}

/// Does every operation that is not done yet.
pub(super) fn complete(root: &Beneath, staging: &str, operations: &[Operation]) -> Result<(), WriteBackError> {
    let failed = |path: &Path, source| WriteBackError::Apply { path: path.to_path_buf(), undone: false, source };
    let staged = root.directory(Path::new(staging)).map_err(|e| failed(Path::new(staging), e.into()))?;
    for operation in operations {
        perform(root, &staged, operation).map_err(|source| failed(operation.path(), source))?;
    }
    Ok(())
}

fn exists(directory: impl AsFd, name: &str) -> io::Result<bool> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn old(number: usize) -> String {
    format!("old-{number}")
}

fn perform(root: &Beneath, staged: &OwnedFd, operation: &Operation) -> io::Result<()> {
    match operation {
        Operation::Remove { path, number } => {
            let old = old(*number);
            if exists(staged, &old)? {
                return Ok(());
            }
            let (parent, name) = root.parent(path)?;
            match rustix::fs::renameat(parent, name, staged, old) {
                Ok(()) | Err(Errno::NOENT) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
        Operation::Place { path, number, over } => {
            let staged_name = number.to_string();
            if !exists(staged, &staged_name)? {
                return Ok(());
            }
            let (parent, name) = root.parent(path)?;
            if *over {
                match rustix::fs::linkat(&parent, name, staged, old(*number), AtFlags::empty()) {
                    // File systems without hard links go without a way back for this one file.
                    Ok(()) | Err(Errno::EXIST | Errno::PERM | Errno::OPNOTSUPP | Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(rustix::fs::renameat(staged, staged_name, parent, name)?)
        }
        Operation::Mode { path, mode, .. } => set_mode(root, path, *mode),
    }
}

fn set_mode(root: &Beneath, path: &Path, mode: u32) -> io::Result<()> {
    let file = root.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        return Err(Errno::INVAL.into());
    }
    Ok(rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & MODE_MASK))?)
}

/// Puts everything back, last first.
fn undo(root: &Beneath, staging: &str, operations: &[Operation]) -> io::Result<()> {
    let staged = root.directory(Path::new(staging))?;
    let mut first_error = None;
    for operation in operations.iter().rev() {
        if let Err(error) = undo_one(root, &staged, operation) {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

fn undo_one(root: &Beneath, staged: &OwnedFd, operation: &Operation) -> io::Result<()> {
    match operation {
        Operation::Remove { path, number } => {
            let old = old(*number);
            if exists(staged, &old)? {
                let (parent, name) = root.parent(path)?;
                rustix::fs::renameat(staged, old, parent, name)?;
            }
            Ok(())
        }
        Operation::Place { path, number, over } => {
            if exists(staged, &number.to_string())? {
                return Ok(());
            }
            let (parent, name) = root.parent(path)?;
            let old = old(*number);
            if *over && exists(staged, &old)? {
                Ok(rustix::fs::renameat(staged, old, parent, name)?)
            } else {
                Ok(rustix::fs::renameat(parent, name, staged, number.to_string())?)
            }
        }
        Operation::Mode { path, before, .. } => match set_mode(root, path, *before) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        },
    }
}

/// Removes the staging directory, if it is there.
pub(super) fn remove_staging(root: &Beneath, staging: &str) -> io::Result<()> {
    if exists(&root.root, staging)? { copy::remove_tree(&root.root, staging) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, recover};
    use super::*;
    use crate::changes::Owners;
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    /// Content by path; directories have none.
    fn contents(directory: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut pending = vec![directory.to_path_buf()];
        while let Some(at) = pending.pop() {
            for entry in std::fs::read_dir(&at).expect("listed").map(|entry| entry.expect("entry").path()) {
                let below = entry.strip_prefix(directory).expect("below").to_path_buf();
                found.insert(below, entry.is_file().then(|| std::fs::read(&entry).expect("read")));
                if entry.is_dir() {
                    pending.push(entry);
                }
            }
        }
        found
    }

    /// A project, and an upper with a change of every kind; no overlay is needed to plan.
    fn scene(base: &Path) -> (PathBuf, PathBuf) {
        let (up, project) = (base.join("up"), base.join("project"));
        for made in [up.join("new/deep"), project.join("d"), up.join("kind"), project.join("keep")] {
            std::fs::create_dir_all(made).expect("directory");
        }
        for (path, text) in [("edit", "1"), ("kind", "file"), ("gone", "x"), ("d/f", "f"), ("keep/k", "k")] {
            std::fs::write(project.join(path), text).expect("file");
        }
        for (path, text) in [("edit", "22"), ("new/deep/n", "n"), ("kind/k", "now a directory")] {
            std::fs::write(up.join(path), text).expect("file");
        }
        for whiteout in ["gone", "d"] {
            rustix::fs::mknodat(rustix::fs::CWD, up.join(whiteout), FileType::CharacterDevice, Mode::empty(), 0)
                .expect("whiteout");
        }
        (up, project)
    }

    fn plan(up: &Path, project: &Path) -> Plan {
        Plan::new(up, project, Owners::default(), SystemTime::now()).expect("plan")
    }

    /// Stages, commits and does the first operations, then stops as a kill would; returns how many there are.
    fn killed_after(up: &Path, project: &Path, journals: &Path, done: usize, commit: bool) -> usize {
        let plan = plan(up, project);
        assert!(plan.conflicts.is_empty(), "{plan}");
        let root = &plan.trees.lowers[0];
        let staging = staging_name();
        let steps: Vec<&Step> = plan.steps.iter().collect();
        let mut journal = Journal::begin(journals, project, root, &staging).expect("journal");
        let operations = plan.stage(&staging, &steps).expect("staged");
        if commit {
            journal.commit(&operations).expect("committed");
            let staged = root.directory(Path::new(&staging)).expect("staging");
            for operation in operations.iter().take(done) {
                perform(root, &staged, operation).expect("performed");
            }
        }
        operations.len()
    }

    #[test]
    fn a_kill_anywhere_is_completed_after_the_commit_and_undone_before() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let whole = tempfile::tempdir().expect("directory");
        let (up, project) = scene(whole.path());
        let before = contents(&project);
        let journals = whole.path().join("journals");
        plan(&up, &project).apply(&journals, Guarded::Leave).expect("applied");
        let after = contents(&project);
        assert_eq!(after[Path::new("edit")], Some(b"22".to_vec()));
        assert!(!after.contains_key(Path::new("gone")) && after.contains_key(Path::new("kind/k")));
        let mut done = 0;
        loop {
            let dir = tempfile::tempdir().expect("directory");
            let (up, project) = scene(dir.path());
            let journals = dir.path().join("journals");
            let operations = killed_after(&up, &project, &journals, done, true);
            let recovered = recover(&journals).expect("recovered");
            assert_eq!(recovered.len(), 1);
            assert_eq!(recovered[0].outcome, Outcome::Completed);
            assert_eq!(contents(&project), after, "after {done} operations");
            assert_eq!(recover(&journals).expect("nothing left"), []);
            done += 1;
            if done > operations {
                break;
            }
        }
        let dir = tempfile::tempdir().expect("directory");
        let (up, project) = scene(dir.path());
        killed_after(&up, &project, &dir.path().join("journals"), 0, false);
        assert_eq!(recover(&dir.path().join("journals")).expect("recovered")[0].outcome, Outcome::Undone);
        assert_eq!(contents(&project), before);
    }

    #[test]
    fn a_failure_in_the_middle_puts_everything_back() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("directory");
        let (up, project) = scene(dir.path());
        let before = contents(&project);
        let plan = plan(&up, &project);
        let root = &plan.trees.lowers[0];
        let staging = staging_name();
        let steps: Vec<&Step> = plan.steps.iter().collect();
        let mut journal = Journal::begin(&dir.path().join("journals"), &project, root, &staging).expect("journal");
        let mut operations = plan.stage(&staging, &steps).expect("staged");
        operations.push(Operation::Mode { path: "not/there".into(), mode: 0o600, before: 0o600 });
        let error = plan.put_in_place(&staging, &operations, &mut journal).expect_err("cannot");
        assert!(matches!(&error, WriteBackError::Apply { undone: true, .. }), "{error}");
        remove_staging(root, &staging).expect("removed");
        assert_eq!(contents(&project), before);
    }
}
