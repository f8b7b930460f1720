//! A test harness for programs that must have one thread: a room, a tracer or a fork can be made only by those.
//!
//! The usual harness runs every test on a thread of its own. This one runs them on the main thread, one after the other,
//! and speaks the few words that `cargo test` and `cargo nextest` say to a test program.

use crate::needs;
use std::panic::catch_unwind;
use std::process::ExitCode;

/// A test's name and the test; it fails by panicking.
pub type Test = (&'static str, fn());

/// What the program was asked to do.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    list: bool,
    ignored: bool,
    exact: bool,
    names: Vec<String>,
}

impl Asked {
    fn of(words: impl Iterator<Item = String>) -> Self {
        let mut asked = Self::default();
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--list" => asked.list = true,
                "--ignored" => asked.ignored = true,
                "--exact" => asked.exact = true,
                "--format" | "--test-threads" | "--color" | "-Z" => drop(words.next()),
                word if word.starts_with('-') => {}
                name => asked.names.push(name.to_owned()),
            }
        }
        asked
    }

    fn wants(&self, test: &str) -> bool {
        let matches = |name: &String| {
            if self.exact { test == name } else { test.contains(name.as_str()) }
        };
        !self.ignored && (self.names.is_empty() || self.names.iter().any(matches))
    }
}

/// Does what the program's arguments ask; the tests need root.
#[must_use]
#[expect(clippy::print_stdout, reason = "a test program reports to its caller")]
pub fn run(tests: &[Test]) -> ExitCode {
    let asked = Asked::of(std::env::args().skip(1));
    let chosen: Vec<Test> = tests.iter().copied().filter(|(name, _)| asked.wants(name)).collect();
    if asked.list {
        chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !needs::or_skip(needs::is_root(), "root") {
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let passed = catch_unwind(test).is_ok();
        failed += usize::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {} passed; {failed} failed", chosen.len() - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::Asked;

    fn asked(words: &str) -> Asked {
        Asked::of(words.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn the_words_of_nextest_are_understood() {
        assert!(asked("--list --format terse").list);
        assert!(!asked("--list --format terse --ignored").wants("room::opens"));
        let one = asked("room::opens --nocapture --exact");
        assert!(one.wants("room::opens") && !one.wants("room::opens_twice"));
        assert!(asked("room").wants("room::opens"));
    }
}
