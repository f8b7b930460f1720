//! Keepers run for real, as root, as the node runs them. Not the usual test harness: this program is also the keeper and
//! the guest, by the name it is started under, as the product's one binary is.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test program reports to its caller and fails by panicking"
)]

mod lives;
mod processes;
mod state;

use std::panic::catch_unwind;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("branchbox-keeper") => return branchbox_keeper::main(),
        Some("branchbox-guest") => return branchbox_guest::main(),
        Some(name) => {
            let arguments: Vec<_> = std::env::args_os().skip(1).collect();
            if let Some(code) = branchbox_guest::tools::run(name, &arguments) {
                return code;
            }
        }
        None => {}
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: every test here needs root");
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<_> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let chosen: Vec<_> = lives::TESTS
        .iter()
        .chain(processes::TESTS)
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| name.contains(w)))
        .collect();
    println!("\nrunning {} tests", chosen.len());
    let mut failed = 0;
    for (name, test) in &chosen {
        let passed = catch_unwind(|| test(&state::State::new())).is_ok();
        failed += usize::from(!passed);
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out\n",
        chosen.len() - failed
    );
    ExitCode::from(u8::from(failed != 0))
}
