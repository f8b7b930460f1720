//! Fault points: places where a test makes an operation fail, or kills the process that runs it.
//!
//! Compiled in only with the `faults` feature, which no product build has. `BRANCHBOX_FAULT=<name>:<error|kill>` arms one;
//! `BRANCHBOX_FAULT_LIST=<file>` appends the name of every point that is passed, so that a test can go over all of them.

/// Passes a named fault point; gives an error when it is armed with `error`.
#[cfg(feature = "faults")]
pub(crate) fn point(name: &'static str) -> std::io::Result<()> {
    use std::io::Write;
    if let Some(path) = std::env::var_os("BRANCHBOX_FAULT_LIST")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        writeln!(file, "{name}")?;
    }
    let Ok(armed) = std::env::var("BRANCHBOX_FAULT") else { return Ok(()) };
    match armed.split_once(':') {
        Some((point, "kill")) if point == name => {
            let pid = rustix::process::getpid();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
            loop {
                std::thread::park();
            }
        }
        Some((point, "error")) if point == name => Err(std::io::Error::other(format!("fault point {name}"))),
        _ => Ok(()),
    }
}

/// Passes a named fault point: nothing in a product build.
#[cfg(not(feature = "faults"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as with fault points")]
#[inline(always)]
pub(crate) fn point(_name: &'static str) -> std::io::Result<()> {
    Ok(())
}
