//! What `try` says: a few lines that appear as things happen, then the verdict and what changed.
//!
//! ```text
//! branchbox try  rm -rf ./*
//!   start  ready in 180 ms
//!   fork   paused 1.2 ms, copy ready in 14 ms
//!   step   exit 0 in 31 ms
//!   check  test -f README.md: exit 1 in 4 ms
//!   ✗ failed: the copy was discarded, nothing here was touched (0.4 s)
//!     the step would have changed 214 files:
//!       D  Cargo.toml                   -120
//!       …  and 201 more
//! ```
//!
//! Pure: text out of facts. Names of files come from the step and are printed so that a terminal takes nothing from them.

use crate::exit::Exit;
use crate::fault::printable;
use crate::text::{bytes, duration};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Duration;

/// Most files that are listed.
pub const LISTED_MAX: usize = 12;
/// Longest step shown in the head line.
const STEP_CHARS_MAX: usize = 160;

/// How a command in the copy ended.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Its exit code, -n for signal n.
    pub exit_code: Option<i64>,
    /// Its time was up.
    pub timed_out: bool,
    /// Processes of it that the memory limit killed.
    pub out_of_memory: bool,
    /// It said that a name or network could not be reached.
    pub missed_network: bool,
    /// How long it ran.
    pub duration_ms: u64,
}

impl Outcome {
    /// Whether it ended as commands do that succeed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.exit_code == Some(0) && !self.timed_out
    }

    /// `exit 0 in 31 ms`.
    #[must_use]
    pub fn words(&self) -> String {
        let how = match Exit::of_command(self.exit_code, self.timed_out) {
            Exit::TimedOut => "out of time".to_owned(),
            Exit::Signal(signal) => format!("ended by signal {signal}"),
            Exit::NotStarted => "could not start".to_owned(),
            exit => format!("exit {}", exit.code()),
        };
        format!("{how} in {}", duration(Duration::from_millis(self.duration_ms)))
    }
}

/// One changed path.
#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Changed {
    /// `added`, `changed`, `deleted`, `meta`.
    pub kind: ChangeKind,
    /// Relative to the directory; a directory's ends with a slash.
    pub path: String,
    /// Lines added, of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<u64>,
    /// Lines removed, of a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<u64>,
    /// Size before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_before: Option<u64>,
    /// Size after.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_after: Option<u64>,
}

/// What happened to a path.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// New.
    Added,
    /// Other content.
    Changed,
    /// Gone.
    Deleted,
    /// Other mode or time only.
    Meta,
}

impl Changed {
    fn line(&self, width: usize) -> String {
        let (mark, colour) = match self.kind {
            ChangeKind::Added => ('A', 32),
            ChangeKind::Changed => ('M', 33),
            ChangeKind::Deleted => ('D', 31),
            ChangeKind::Meta => ('m', 36),
        };
        let path = printable(&self.path);
        let text = format!("      \x1b[{colour}m{mark}\x1b[0m  {path:width$}  {}", self.size());
        format!("{}\n", text.trim_end())
    }

    fn size(&self) -> String {
        let lines =
            |sign: char, lines: Option<u64>| lines.filter(|&lines| lines > 0).map(|lines| format!("{sign}{lines}"));
        let parts: Vec<String> = [lines('+', self.added), lines('-', self.removed)].into_iter().flatten().collect();
        match (self.size_before, self.size_after) {
            _ if !parts.is_empty() => parts.join(" "),
            _ if self.added.is_some() || self.kind == ChangeKind::Meta => String::new(),
            (Some(before), Some(after)) => format!("{} → {}", bytes(before), bytes(after)),
            (Some(size), None) | (None, Some(size)) => bytes(size),
            (None, None) => String::new(),
        }
    }
}

/// All changes of a step, those that the host runs by itself apart.
#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// How many files changed in all; directories count only where nothing in them did.
    pub total: u64,
    /// The first of them.
    pub files: Vec<Changed>,
    /// Files that the host runs by itself, such as git hooks.
    pub guarded: Vec<Changed>,
    /// What cannot be written back, and why.
    pub refused: Vec<String>,
}

impl Changes {
    /// The list, under a head such as `the step would have changed`.
    #[must_use]
    pub fn text(&self, head: &str) -> String {
        if self.total == 0 {
            return format!("    {head} nothing\n");
        }
        let files = if self.total == 1 { "file" } else { "files" };
        let mut text = format!("    {head} {} {files}:\n", self.total);
        let of_guarded = self.guarded.len() as u64;
        list(&mut text, &self.files, self.total.saturating_sub(of_guarded));
        if !self.guarded.is_empty() {
            text.push_str("    \x1b[1;33mof these your machine runs by itself\x1b[0m:\n");
            list(&mut text, &self.guarded, of_guarded);
        }
        for refused in self.refused.iter().take(LISTED_MAX) {
            let _ = writeln!(text, "    never written back: {}", printable(refused));
        }
        text
    }
}

fn list(text: &mut String, files: &[Changed], total: u64) {
    let listed = &files[..files.len().min(LISTED_MAX)];
    let width = listed.iter().map(|changed| printable(&changed.path).chars().count()).max().unwrap_or(0).min(60);
    for changed in listed {
        text.push_str(&changed.line(width));
    }
    let shown = listed.len() as u64;
    if total > shown {
        let _ = writeln!(text, "      …  and {} more", total - shown);
    }
}

/// How the attempt ended.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// Passed, and there was nothing to write back.
    Unchanged,
    /// Passed and written back.
    Kept,
    /// Passed, and the user said no (or could not be asked).
    NotKept,
    /// Passed, and the directory changed meanwhile.
    Conflict,
    /// Failed.
    Failed,
}

impl Verdict {
    /// The exit code it means.
    #[must_use]
    pub fn exit(self) -> Exit {
        match self {
            Self::Unchanged | Self::Kept => Exit::Done,
            Self::NotKept => Exit::NotKept,
            Self::Conflict => Exit::Conflict,
            Self::Failed => Exit::Failed,
        }
    }
}

/// `branchbox try  rm -rf ./*`
#[must_use]
pub fn head(step: &str) -> String {
    let one_line = step.lines().next().unwrap_or_default();
    let mut shown: String = one_line.chars().take(STEP_CHARS_MAX).collect();
    if shown.len() < step.trim_end().len() {
        shown.push('…');
    }
    format!("\x1b[1mbranchbox try\x1b[0m  {}\n", printable(&shown))
}

/// One line of what is going on, such as `  step   exit 0 in 31 ms`.
#[must_use]
pub fn line(label: &str, words: &str) -> String {
    format!("  \x1b[1m{label:<5}\x1b[0m  {words}\n")
}

/// The line that says it: `✓ passed` or `✗ failed`.
#[must_use]
pub fn verdict(passed: bool, words: &str, total: Duration) -> String {
    let (mark, colour, word) = if passed { ('✓', 32, "passed") } else { ('✗', 31, "failed") };
    format!("  \x1b[1;{colour}m{mark} {word}\x1b[0m{words} ({})\n", duration(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn changed(kind: ChangeKind, path: &str) -> Changed {
        Changed { kind, path: path.into(), added: None, removed: None, size_before: None, size_after: None }
    }

    #[test]
    fn a_failed_step_reads_so() {
        let check = Outcome {
            exit_code: Some(1),
            timed_out: false,
            out_of_memory: false,
            missed_network: false,
            duration_ms: 4,
        };
        let deleted =
            Changed { removed: Some(120), size_before: Some(4000), ..changed(ChangeKind::Deleted, "Cargo.toml") };
        let binary =
            Changed { size_before: Some(2048), size_after: Some(4096), ..changed(ChangeKind::Changed, "logo.png") };
        let both = Changed { added: Some(3), removed: Some(1), ..changed(ChangeKind::Changed, "src/main.rs") };
        let changes = Changes { total: 214, files: vec![deleted, binary, both], ..Changes::default() };
        let text = head("rm -rf ./*")
            + &line("fork", "paused 1.2 ms, copy ready in 14 ms")
            + &line("check", &format!("test -f README.md: {}", check.words()))
            + &verdict(false, ": the copy was discarded, nothing here was touched", Duration::from_millis(420))
            + &changes.text("the step would have changed");
        assert_eq!(
            plain(&text),
            "branchbox try  rm -rf ./*\n  \
               fork   paused 1.2 ms, copy ready in 14 ms\n  \
               check  test -f README.md: exit 1 in 4.0 ms\n  \
               ✗ failed: the copy was discarded, nothing here was touched (420 ms)\n    \
                 the step would have changed 214 files:\n      \
                   D  Cargo.toml   -120\n      \
                   M  logo.png     2.0 KiB → 4.0 KiB\n      \
                   M  src/main.rs  +3 -1\n      \
                   …  and 211 more\n"
        );
    }

    #[test]
    fn what_the_host_runs_by_itself_stands_apart() {
        let changes = Changes {
            total: 1,
            guarded: vec![changed(ChangeKind::Added, ".git/hooks/pre-commit")],
            ..Changes::default()
        };
        assert_eq!(
            plain(&changes.text("the step changed")),
            "    the step changed 1 file:\n    of these your machine runs by itself:\n      A  .git/hooks/pre-commit\n"
        );
        assert_eq!(Changes::default().text("the step changed"), "    the step changed nothing\n");
    }

    #[test]
    fn a_file_name_cannot_forge_a_line() {
        let changes =
            Changes {
                total: 1, files: vec![changed(ChangeKind::Added, "a\n  ✓ passed\x1b[2J")], ..Changes::default()
            };
        let text = plain(&changes.text("the step changed"));
        assert!(!text.contains("\n  ✓ passed") && !text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn a_command_that_did_not_exit_says_how_it_ended() {
        let outcome = |exit_code, timed_out| Outcome {
            exit_code,
            timed_out,
            out_of_memory: false,
            missed_network: false,
            duration_ms: 1200,
        };
        assert_eq!(outcome(Some(-9), false).words(), "ended by signal 9 in 1.2 s");
        assert_eq!(outcome(Some(-9), true).words(), "out of time in 1.2 s");
        assert_eq!(outcome(None, false).words(), "could not start in 1.2 s");
    }
}
