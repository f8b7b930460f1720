//! The guest as process 1 of a real pid namespace with a file tree of its own, driven through its socket.
//!
//! Needs root, a version 2 cgroup mount, and `unshare` and `nsenter` of util-linux. The runner prints what libtest prints.
#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr, reason = "a test program")]

mod commands;
mod ends;
mod files;
mod harness;
mod holding;
mod inside;
mod peers;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Instant;

type Test = (&'static str, fn());

fn main() -> ExitCode {
    if let Some(code) = inside::run_mode() {
        return code;
    }
    let filters: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let all: Vec<Test> = [commands::TESTS, ends::TESTS, files::TESTS, holding::TESTS, peers::TESTS].concat();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|filter| name.contains(filter));
    let chosen: Vec<Test> = all.into_iter().filter(|(name, _)| wanted(name)).collect();
    println!("\nrunning {} tests", chosen.len());
    let (start, mut failed) = (Instant::now(), 0);
    for (name, test) in &chosen {
        let began = Instant::now();
        let passed = catch_unwind(test).is_ok();
        failed += usize::from(!passed);
        println!("test {name} ... {} ({} ms)", if passed { "ok" } else { "FAILED" }, began.elapsed().as_millis());
    }
    let (verdict, passed) = (if failed == 0 { "ok" } else { "FAILED" }, chosen.len() - failed);
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in {:.2}s\n",
        start.elapsed().as_secs_f64()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
