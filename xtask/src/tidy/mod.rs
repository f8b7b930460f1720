//! Checks that no compiler makes: the crates' arrows, module docs, safety comments, leftovers, documents that name code, the number of packages.

mod arrows;
mod documents;
mod sources;

use crate::run::root;
use anyhow::{Context, Result, ensure};

/// Runs every check; the error lists all findings.
pub fn run() -> Result<String> {
    let mut findings = arrows::check()?;
    findings.extend(documents::check()?);
    let files = sources::rust_files()?;
    findings.extend(sources::check(&files)?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    ensure!(findings.is_empty(), "{} findings, the first: {}", findings.len(), findings[0]);
    Ok(format!("{} source files, {} packages in Cargo.lock", files.len(), packages()?))
}

/// Writes what is generated from the code.
pub fn write_documents() -> Result<()> {
    documents::write()
}

fn packages() -> Result<usize> {
    let lock = fs_err::read_to_string(root().join("Cargo.lock")).context("count packages")?;
    Ok(lock.lines().filter(|line| *line == "[[package]]").count())
}
