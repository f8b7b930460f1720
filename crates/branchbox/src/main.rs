//! The one binary: chooses its mode by the name it was started under, before any thread starts.
//!
//! Keeper and guest are modes of this file because the sandbox must run exactly what the node was built with, and
//! because a static file runs in any image. Nothing else belongs here: each mode is a crate.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let name = Path::new(&name).file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "branchbox-keeper" => branchbox_keeper::main(),
        "branchbox-guest" => branchbox_guest::main(),
        name => {
            branchbox_guest::tools::run(name, &words.collect::<Vec<OsString>>()).unwrap_or_else(branchbox_cli::main)
        }
    }
}
