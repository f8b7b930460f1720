//! The end-to-end suites in `tests/`: Python programs that use a live node as any user does.
//!
//! The suites decide themselves what a machine cannot run (a test says what it needs); a skip for any other reason
//! fails there. Here the skips are counted and named.

use crate::report::Skips;
use crate::run::{command, root, show};
use crate::{cargo, python};
use anyhow::{Context, Result, ensure};
use std::path::PathBuf;

/// Where state directories of the suites are made; empty again when they end.
pub fn state_directories() -> PathBuf {
    root().join("target/state")
}

/// Characters of a failed test's message that the summary shows.
const MESSAGE_CHARS_MAX: usize = 300;

/// Runs one suite; returns its counts.
pub fn suite(name: &str, words: &[String], skips: &mut Skips) -> Result<String> {
    ensure!(cargo::binary().is_file(), "there is no program: run the build part first");
    fs_err::create_dir_all(state_directories())?;
    let folder = format!("tests/{name}");
    let junit = root().join(format!("target/pytest-{name}.xml"));
    let interpreter = python::of(name);
    let mut pytest =
        command(&interpreter.to_string_lossy(), &["-m", "pytest", "-ra", "--durations=5", "-c", "tests/pytest.ini"]);
    pytest.arg(format!("--junitxml={}", junit.display()));
    match words {
        [] => pytest.arg(&folder),
        words => pytest.args(words),
    };
    pytest.env("BRANCHBOX_BIN", cargo::binary()).env("BRANCHBOX_TEST_STATE", state_directories());
    let ran = show(&mut pytest);
    let counts = read_counts(&fs_err::read_to_string(&junit).unwrap_or_default(), skips);
    match (ran, counts) {
        (Ok(()), counts) => counts,
        (Err(error), Ok(counts)) => Err(error.context(counts)),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Reads the counts and the reasons of skips out of pytest's own report.
fn read_counts(report: &str, skips: &mut Skips) -> Result<String> {
    let suite = report.split("<testsuite ").nth(1).context("pytest wrote no report")?;
    let number = |name: &str| attribute(suite, name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    let (tests, skipped) = (number("tests"), number("skipped"));
    let failed = number("failures") + number("errors");
    let mut broken = Vec::new();
    for case in report.split("<testcase ").skip(1) {
        let problem = ["<failure ", "<error "].iter().find_map(|element| case.split(element).nth(1));
        if let Some(problem) = problem {
            let message = attribute(problem, "message").unwrap_or_default();
            let message: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
            broken.push(format!("{}: {message}", attribute(case, "name").unwrap_or("?")));
        }
        if let Some(skip) = case.split("<skipped ").nth(1) {
            let name = attribute(case, "name").unwrap_or("?");
            skips.add(format!("{name}: {}", attribute(skip, "message").unwrap_or("no reason")));
        }
    }
    ensure!(tests > 0, "no test ran");
    let counts = format!("{} passed, {failed} failed, {skipped} skipped", tests.saturating_sub(skipped + failed));
    // Whoever sees the end of a run only shall know what failed.
    Ok(if broken.is_empty() { counts } else { format!("{counts}: {}", broken.join("; ")) })
}

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let after = element.split(&format!(" {name}=\"")).nth(1).or_else(|| element.strip_prefix(&format!("{name}=\"")))?;
    after.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"<testsuites><testsuite name="pytest" errors="0" failures="1" skipped="1" tests="4" time="1.0">
        <testcase classname="a" name="runs" /><testcase classname="a" name="waits"><skipped type="x" message="needs y" /></testcase>
        <testcase classname="a" name="breaks"><failure message="1 != 2">trace</failure></testcase>
        </testsuite></testsuites>"#;

    #[test]
    fn counts_and_reasons_are_read() {
        let mut skips = Skips::default();
        assert_eq!(read_counts(REPORT, &mut skips).expect("counts"), "2 passed, 1 failed, 1 skipped: breaks: 1 != 2");
        assert!(read_counts("", &mut skips).is_err());
    }
}
