//! Documents that name code: every promise has its test, and the errors' reference is the one the code gives.

use crate::run::{command, output, root};
use anyhow::{Context, Result, ensure};
use std::fmt::Write;
use std::path::PathBuf;

/// What begins the errors' reference.
const ERRORS_HEADING: &str = "# Errors\n\n\
    Written by `cargo xtask docs` from `crates/model/src/code.rs`. Every error has a stable code: `error.code` in an answer's\n\
    envelope. The hint that comes with it says what to do about that very case.\n";

/// What is named in a document and is not there, and what is out of date.
pub fn check() -> Result<Vec<String>> {
    let mut findings = promises()?;
    if fs_err::read_to_string(errors_path()).unwrap_or_default() != errors_reference()? {
        findings.push("docs/reference/errors.md is out of date: run `cargo xtask docs`".into());
    }
    Ok(findings)
}

/// Writes the generated documents.
pub fn write() -> Result<()> {
    fs_err::write(errors_path(), errors_reference()?)?;
    // Unit tests of the crates find drift: the tidy check should not have to build the program.
    for (option, name) in [("--markdown", "cli.md"), ("--openapi", "openapi.json")] {
        let words = ["run", "--quiet", "-p", "branchbox", "--", "man", option];
        let reference = output(&mut command("cargo", &words))?;
        fs_err::write(root().join("docs/reference").join(name), reference)?;
    }
    Ok(())
}

/// Each `` `path::test` `` of the specification must be a function in that file.
fn promises() -> Result<Vec<String>> {
    let text = fs_err::read_to_string(root().join("SPECIFICATION.md"))?;
    let mut findings = Vec::new();
    let named = text.split('`').skip(1).step_by(2).filter_map(|word| word.split_once("::"));
    for (path, test) in named {
        let source = fs_err::read_to_string(root().join(path)).unwrap_or_default();
        let keywords = ["def ", "fn "];
        if !keywords.iter().any(|keyword| source.contains(&format!("{keyword}{test}("))) {
            findings.push(format!("SPECIFICATION.md: no test {path}::{test}"));
        }
    }
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with("| ")) {
        if !line.starts_with("| promise ") && !line.contains("::") {
            findings.push(format!("SPECIFICATION.md: line {}: a promise without a test", number + 1));
        }
    }
    Ok(findings)
}

fn errors_path() -> PathBuf {
    root().join("docs/reference/errors.md")
}

/// The reference as the list of codes gives it: each `/// doc` and `Variant = ("code", status)`.
fn errors_reference() -> Result<String> {
    let source = fs_err::read_to_string(root().join("crates/model/src/code.rs"))?;
    let mut reference = ERRORS_HEADING.to_owned();
    let mut doc = String::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc = if doc.is_empty() { text.to_owned() } else { format!("{doc} {text}") };
        } else {
            if let Some((_, pair)) = line.split_once(" = (\"") {
                let (code, status) = pair.split_once("\", ").context("read a code's line")?;
                let status = status.trim_end_matches("),");
                write!(reference, "\n## {code}\n\nHTTP {status}. {doc}\n")?;
            }
            doc.clear();
        }
    }
    ensure!(reference.len() > ERRORS_HEADING.len(), "no error code found");
    Ok(reference)
}
