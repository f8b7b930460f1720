//! The process outside one sandbox: makes its room, brings back or starts what runs in it, captures it, and ends it.
//!
//! A keeper is a process of its own because a tracer is a thread and a fork of a threaded process is a trap; it has one
//! thread and no async runtime. It outlives the node (a new node finds it by its socket), and the sandbox outlives it: a
//! new keeper started with the same file adopts what runs ([`start`]).
//!
//! Its life: `config` is read and believed only within bounds; `listen` makes the sockets; `start` boots, restores or
//! adopts; `serve` answers the node until the sandbox is to end or has ended; `end` leaves nothing behind.
//!
//! Invariants: a call of the node is answered once or its connection is closed; everything the guest says is bounded and
//! waited for with a limit; at most one keeper works on a sandbox (a lock on its directory).
//! Deliberately not here: how processes are captured (`engine`), how the room is made (`jail`), which sandboxes there are (`node`).

mod capture;
mod config;
mod end;
mod failure;
mod guest;
mod listen;
mod machine;
mod pause;
mod record;
mod serve;
mod start;

use failure::Failure;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use serve::Left;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Runs a keeper; the only argument is the path of its `keeper.json`.
#[must_use]
pub fn main() -> ExitCode {
    let begun = Instant::now();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_max_level(tracing::Level::INFO).init();
    let mut arguments = std::env::args_os().skip(1);
    let (Some(path), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        tracing::error!("a keeper takes one argument, the path of its keeper.json; the node starts it");
        return ExitCode::from(2);
    };
    match run(&path, begun) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!(code = failure.code().as_str(), "{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &std::path::Path, begun: Instant) -> Result<(), Failure> {
    let config = config::load(path)?;
    let _lock = record::lock(&config.sandbox_dir, record::LOCK_WAIT)?;
    let signals = detach()?;
    let listener = listen::bind(&listen::keeper_path(&config))?;
    let ended = match start::start(&config, begun) {
        Ok(live) => serve::serve(&config, live, &listener, &signals),
        Err(failure) => {
            serve::report_failure(&listener, &failure);
            end::forget_unless_alive(&config);
            Err(failure)
        }
    };
    // While a node is there the directory is its own: it may want to read what a stopped sandbox has written.
    if let (Ok(Left::Nobody), Some(directory)) = (&ended, &config.ephemeral) {
        end::remove_directory(directory);
    }
    ended.map(drop)
}

/// A session of its own, so that no terminal's hang-up reaches it; ends on request come through a descriptor.
fn detach() -> Result<SignalFd, Failure> {
    // A session leader already has what is wanted.
    let _ = rustix::process::setsid();
    rustix::process::chdir("/").map_err(|e| Failure::io("change to the root directory", e.into()))?;
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let mut wanted = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        wanted.add(signal);
    }
    let blocked = wanted
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&wanted, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK));
    blocked.map_err(|e| Failure::io("receive signals by descriptor", e.into()))
}
