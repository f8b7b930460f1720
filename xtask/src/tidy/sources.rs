//! Rules on the text of source files, each with the reason why it is a rule.

use crate::run::{command, output, root};
use anyhow::Result;
use std::path::{Path, PathBuf};

/// A file longer than this holds two things.
const LINES_MAX: usize = 600;
/// Words of work that was left for later; nobody finds them again.
const LEFTOVERS: &[&str] = &["TODO", "FIXME", "XXX", "todo!(", "unimplemented!("];

/// Every Rust source file that git knows or could add.
pub fn rust_files() -> Result<Vec<PathBuf>> {
    let words = ["ls-files", "--cached", "--others", "--exclude-standard", "--", "*.rs"];
    let text = output(&mut command("git", &words))?;
    let files = text.lines().map(|line| root().join(line)).filter(|path| path.is_file());
    Ok(files.collect())
}

/// Findings in all files, one line each.
pub fn check(files: &[PathBuf]) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in files {
        let text = fs_err::read_to_string(file)?;
        let name = file.strip_prefix(root()).unwrap_or(file);
        findings.extend(check_file(name, &text));
    }
    Ok(findings)
}

fn check_file(name: &Path, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut found = |what: String| findings.push(format!("{}: {what}", name.display()));
    if !text.trim_start().starts_with("//!") {
        found("no module doc: what is it responsible for, and why so?".into());
    }
    if text.lines().count() > LINES_MAX {
        found(format!("more than {LINES_MAX} lines: look for two things in one"));
    }
    let is_rule = name.starts_with("xtask/src/tidy");
    for (number, line) in text.lines().enumerate() {
        if !is_rule && LEFTOVERS.iter().any(|word| holds_word(line, word)) {
            found(format!("line {}: leftover work", number + 1));
        }
        if line.contains("#[allow(") && !is_rule {
            found(format!("line {}: `allow` instead of `expect` with a reason", number + 1));
        }
    }
    findings.extend(check_unsafe(name, text));
    findings
}

/// `unsafe` lives in `sys` alone, and each block has its proof above it.
fn check_unsafe(name: &Path, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut findings = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let is_block = code.contains("unsafe {") || code.contains("unsafe impl");
        if !is_block && !code.contains("unsafe fn") || name.starts_with("xtask/src/tidy") {
            continue;
        }
        if !name.starts_with("crates/sys") {
            findings.push(format!("{}: line {}: unsafe outside sys", name.display(), number + 1));
        } else if is_block && !has_proof(&lines[..number]) {
            findings.push(format!("{}: line {}: no SAFETY comment", name.display(), number + 1));
        }
    }
    findings
}

/// A `// SAFETY:` comment directly above, or above the statement's first lines.
fn has_proof(above: &[&str]) -> bool {
    above.iter().rev().take(12).any(|line| line.contains("// SAFETY:"))
}

fn holds_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let joins = |letter: Option<char>| letter.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !joins(before) && (word.ends_with('(') || !joins(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_are_words_not_parts_of_words() {
        assert!(holds_word("// TODO: later", "TODO"));
        assert!(!holds_word("mktemp -p TODOS", "TODO"));
        assert!(holds_word("    todo!(\"x\")", "todo!("));
    }

    #[test]
    fn unsafe_needs_its_place_and_its_proof() {
        let bare = "//! doc\nfn f() {\n    unsafe { g() }\n}\n";
        let proven = "//! doc\nfn f() {\n    // SAFETY: g has no preconditions.\n    unsafe { g() }\n}\n";
        assert_eq!(check_unsafe(Path::new("crates/sys/src/a.rs"), bare).len(), 1);
        assert_eq!(check_unsafe(Path::new("crates/sys/src/a.rs"), proven).len(), 0);
        assert_eq!(check_unsafe(Path::new("crates/node/src/a.rs"), proven).len(), 1);
    }
}
