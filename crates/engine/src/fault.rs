//! Fault points: places where a test makes an operation fail, or kills the process that runs it.
//!
//! Compiled in only with the `faults` feature, which no product build has. `BRANCHBOX_FAULT=<name>[#<passage>]:<error|kill>`
//! arms one, at its first passage unless another is named. `BRANCHBOX_FAULT_FILE=<file>` names a file that holds such a word
//! and is read at every point, so that a test can arm a process that runs; passages count from the moment it was armed, which
//! anything behind a blank tells from another time with the same word.
//! `BRANCHBOX_FAULT_LIST=<file>` appends the name of every point that is passed, so that a test can go over all of them.

#[cfg(feature = "faults")]
use std::{io, sync::Mutex};

/// The word that is armed, and how often its point has been passed since.
#[cfg(feature = "faults")]
static ARMED: Mutex<(String, u32)> = Mutex::new((String::new(), 0));

/// Passes a named fault point.
///
/// # Errors
/// When it is armed with `error`.
#[cfg(feature = "faults")]
pub fn point(name: &'static str) -> io::Result<()> {
    note(name)?;
    match due(name, &armed()).as_deref() {
        Some("kill") => {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
            loop {
                std::thread::park();
            }
        }
        Some("error") => Err(io::Error::other(format!("fault point {name}"))),
        _ => Ok(()),
    }
}

#[cfg(feature = "faults")]
fn note(name: &str) -> io::Result<()> {
    use std::io::Write;
    let Some(path) = std::env::var_os("BRANCHBOX_FAULT_LIST") else { return Ok(()) };
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path)?;
    writeln!(file, "{name}")
}

#[cfg(feature = "faults")]
fn armed() -> String {
    let word = match std::env::var_os("BRANCHBOX_FAULT_FILE") {
        Some(path) => std::fs::read_to_string(path),
        None => Ok(std::env::var("BRANCHBOX_FAULT").unwrap_or_default()),
    };
    word.unwrap_or_default().trim().to_owned()
}

/// What is to happen at this passage.
#[cfg(feature = "faults")]
fn due(name: &str, word: &str) -> Option<String> {
    let (point, action) = word.split(' ').next()?.split_once(':')?;
    let (point, passage) = point.split_once('#').unwrap_or((point, "1"));
    if point != name {
        return None;
    }
    let mut counted = ARMED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if counted.0 != word {
        *counted = (word.to_owned(), 0);
    }
    counted.1 += 1;
    (passage.parse() == Ok(counted.1)).then(|| action.to_owned())
}

/// Passes a named fault point: nothing in a product build.
///
/// # Errors
/// None.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub fn point(_name: &'static str) -> std::io::Result<()> {
    Ok(())
}
