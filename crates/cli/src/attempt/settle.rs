//! What the step changed, and writing it back.
//!
//! The copy's upper is hostile: the layers crate reads it and writes back, under its own rules (beneath the directory's
//! descriptor, files, directories and symlinks only, staged, journalled, all or nothing). Here is only what the user is
//! told and what their flags allow.

use super::directory::Directory;
use super::gone;
use super::machine::{INSIDE, REPO_TREE};
use super::report::{ChangeKind, Changed, Changes, LISTED_MAX, Verdict};
use super::scratch::Scratch;
use super::voice::Voice;
use crate::exit::Exit;
use crate::fault::{Fault, printable};
use crate::text::count;
use branchbox_layers::changes::{self, CHANGES_MAX_DEFAULT, Facts, FileKind, Owners};
use branchbox_layers::writeback::{self, Guarded, Outcome, Plan, WriteBackError};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Journals of write-backs, for the next start after a crash; there only while one is written.
const JOURNALS: &str = "/var/lib/branchbox-try";

/// How an attempt was settled.
#[derive(Debug)]
pub struct Settled {
    /// The word for it.
    pub verdict: Verdict,
    /// How many paths were written.
    pub written: usize,
    /// How many files were left out that the host runs by itself.
    pub left_out: usize,
    /// Paths that the host changed meanwhile.
    pub conflicts: Vec<String>,
    /// Where the copy's files are kept after a conflict.
    pub kept: Option<PathBuf>,
}

impl Settled {
    /// A verdict that wrote nothing.
    #[must_use]
    pub fn of(verdict: Verdict) -> Self {
        Self { verdict, written: 0, left_out: 0, conflicts: Vec::new(), kept: None }
    }

    /// The last lines for people.
    #[must_use]
    pub fn text(&self, top: &Path) -> String {
        let mut text = match self.verdict {
            Verdict::Failed | Verdict::Unchanged => String::new(),
            Verdict::Kept => format!("  \x1b[1;32m✓ written back\x1b[0m to {}\n", top.display()),
            Verdict::NotKept if self.left_out > 0 => "  not written back: nothing here was touched\n".into(),
            Verdict::NotKept => {
                "  not written back: nothing here was touched (--yes writes back without asking)\n".into()
            }
            Verdict::Conflict => self.conflict_text(),
        };
        if self.left_out > 0 {
            let what = count(self.left_out, "file");
            let _ = writeln!(
                text,
                "  left out: {what} that your machine runs by itself (--allow-hooks writes these back too)"
            );
        }
        text
    }

    fn conflict_text(&self) -> String {
        let paths = count(self.conflicts.len(), "path");
        let mut text =
            format!("  \x1b[1;31m✗ not written back\x1b[0m: {paths} changed here meanwhile, nothing was touched\n");
        for path in self.conflicts.iter().take(LISTED_MAX) {
            let _ = writeln!(text, "      {}", printable(path));
        }
        if self.conflicts.len() > LISTED_MAX {
            let _ = writeln!(text, "      …  and {} more", self.conflicts.len() - LISTED_MAX);
        }
        if let Some(kept) = &self.kept {
            let _ = writeln!(text, "  the copy's files are kept for an hour in {}", kept.display());
        }
        text
    }
}

/// What the step did to the directory, and the plan to do it here.
#[derive(Debug)]
pub struct Found {
    changes: Changes,
    plan: Plan,
    up: PathBuf,
}

impl Found {
    /// Finishes or undoes what a killed run left half written.
    pub fn recover(voice: &Voice) {
        match writeback::recover(Path::new(JOURNALS)) {
            Ok(recovered) => recovered.iter().for_each(|one| {
                let done = match one.outcome {
                    Outcome::Completed => "completed",
                    Outcome::Undone => "undone",
                };
                voice.line("note", &format!("an interrupted write-back into {} was {done}", one.directory.display()));
            }),
            Err(error) => voice.line("note", &format!("an interrupted write-back could not be finished: {error}")),
        }
        // Only when empty.
        let _ = std::fs::remove_dir(JOURNALS);
    }

    /// Reads the upper of a copy in which nothing runs any more.
    ///
    /// # Errors
    /// When the upper or the directory cannot be read, or more changed than one write-back takes.
    pub fn read(upper: &Path, directory: &Directory, began: SystemTime) -> Result<Self, Fault> {
        let what = "cannot find out what the step changed";
        let up = upper.join(REPO_TREE).join("up");
        let owners = Owners { outside: directory.owner, inside: INSIDE };
        let lowers = [directory.top.clone()];
        let found = changes::changes(&up, &lowers, owners, CHANGES_MAX_DEFAULT);
        let found = found.map_err(|error| Fault::new(Exit::Internal, what).because(&error))?;
        let plan = Plan::new(&up, &directory.top, owners, began);
        let plan = plan.map_err(|error| Fault::failed(what).because(&error))?;
        Ok(Self { changes: told(&found, &plan), plan, up })
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.plan.is_empty()
    }

    /// What people are told.
    #[must_use]
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Writes everything back, or nothing.
    ///
    /// # Errors
    /// When it could not be done for another reason than a conflict.
    pub fn write_back(&self, scratch: &Scratch, allow_hooks: bool) -> Result<Settled, Fault> {
        let guarded = if allow_hooks { Guarded::Write } else { Guarded::Leave };
        let applied = self.plan.apply(Path::new(JOURNALS), guarded);
        let _ = std::fs::remove_dir(JOURNALS);
        match applied {
            Ok(done) => {
                let verdict = if done.paths == 0 { Verdict::NotKept } else { Verdict::Kept };
                Ok(Settled { written: done.paths, left_out: done.guarded_left_out, ..Settled::of(verdict) })
            }
            Err(WriteBackError::Conflict { paths }) => {
                let conflicts = paths.iter().map(|path| path.display().to_string()).collect();
                let kept = scratch.keep(&self.up);
                let kept = kept.map_err(|error| {
                    Fault::new(Exit::Conflict, "cannot keep the copy's files after a conflict").because(&error)
                })?;
                Ok(Settled { conflicts, kept: Some(kept), ..Settled::of(Verdict::Conflict) })
            }
            Err(error) => {
                let hint = format!("see that {} can be written and has room", self.plan.directory.display());
                Err(Fault::new(Exit::Internal, "cannot write the changes back").because(&error).hint(hint))
            }
        }
    }
}

/// The changes as people are told them: files, and directories only where nothing in them changed; what the host runs
/// by itself apart.
fn told(found: &changes::Changes, plan: &Plan) -> Changes {
    let guarded: BTreeSet<&Path> = plan.guarded().map(|step| step.path.as_path()).collect();
    let mut told = Changes::default();
    let mut list = found.list.iter().peekable();
    while let Some(change) = list.next() {
        let holds_next = list.peek().is_some_and(|next| next.path.starts_with(&change.path));
        if change.kind == changes::ChangeKind::Added && is_directory(change.after) && holds_next {
            continue;
        }
        let files = match change.entries_below {
            0 => vec![told_one(change)],
            _ => gone::below(&plan.directory, &change.path, &mut told.total),
        };
        told.total += u64::from(change.entries_below == 0);
        let into = if guarded.contains(change.path.as_path()) { &mut told.guarded } else { &mut told.files };
        into.extend(files.into_iter().take(CHANGES_MAX_DEFAULT));
    }
    told.total += found.more;
    told.files.truncate(CHANGES_MAX_DEFAULT);
    // What people look for first, git's own bookkeeping after it.
    told.files.sort_by_key(|changed| changed.path.starts_with(".git/"));
    told.refused = plan.refused.iter().map(|refusal| format!("{}: {}", refusal.path.display(), refusal.why)).collect();
    told
}

fn told_one(change: &changes::Change) -> Changed {
    let kind = match change.kind {
        changes::ChangeKind::Added => ChangeKind::Added,
        changes::ChangeKind::Changed => ChangeKind::Changed,
        changes::ChangeKind::Deleted => ChangeKind::Deleted,
        changes::ChangeKind::Meta => ChangeKind::Meta,
    };
    let directory = is_directory(change.after.or(change.before));
    let size = |facts: Option<Facts>| facts.filter(|facts| facts.kind == FileKind::File).map(|facts| facts.size);
    Changed {
        kind,
        path: format!("{}{}", change.path.display(), if directory { "/" } else { "" }),
        added: change.lines.map(|lines| lines.0),
        removed: change.lines.map(|lines| lines.1),
        size_before: size(change.before),
        size_after: size(change.after),
    }
}

fn is_directory(facts: Option<Facts>) -> bool {
    facts.is_some_and(|facts| facts.kind == FileKind::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(settled: &Settled) -> String {
        anstream::adapter::strip_str(&settled.text(Path::new("/home/ada/project"))).to_string()
    }

    #[test]
    fn each_end_says_what_happened_here() {
        assert_eq!(
            plain(&Settled { written: 3, ..Settled::of(Verdict::Kept) }),
            "  ✓ written back to /home/ada/project\n"
        );
        assert_eq!(
            plain(&Settled { left_out: 1, ..Settled::of(Verdict::NotKept) }),
            "  not written back: nothing here was touched\n  \
               left out: 1 file that your machine runs by itself (--allow-hooks writes these back too)\n"
        );
        let conflict = Settled {
            conflicts: vec!["src/a".into()],
            kept: Some("/var/tmp/k".into()),
            ..Settled::of(Verdict::Conflict)
        };
        assert_eq!(
            plain(&conflict),
            "  ✗ not written back: 1 path changed here meanwhile, nothing was touched\n      src/a\n  \
               the copy's files are kept for an hour in /var/tmp/k\n"
        );
        assert_eq!(plain(&Settled::of(Verdict::Failed)), "");
    }
}
