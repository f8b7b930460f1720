//! Finding a command's program, and the words of a shell for one that cannot be run.
//!
//! A program that is missing is no failure of the guest: the command has run and ended, with the code and the message
//! that a shell gives.

use branchbox_sys::spawn::Step;
use rustix::io::Errno;
use std::ffi::CString;
use std::path::Path;

/// Not found.
const CODE_NOT_FOUND: i32 = 127;
/// Found, and cannot be run.
const CODE_CANNOT_RUN: i32 = 126;
/// The working directory cannot be entered.
const CODE_CWD: i32 = 1;

/// How a command that never ran has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    /// Its exit code.
    pub code: i32,
    /// What it leaves on standard error.
    pub message: String,
}

/// Paths to try for a program, in order.
#[must_use]
pub fn candidates(program: &str, path: &str) -> Vec<CString> {
    let paths: Vec<String> = if program.contains('/') || program.is_empty() {
        vec![program.to_owned()]
    } else {
        path.split(':')
            .map(|dir| if dir.is_empty() { program.to_owned() } else { format!("{dir}/{program}") })
            .collect()
    };
    paths.into_iter().filter_map(|path| CString::new(path).ok()).collect()
}

/// Says how a command ended that could not be started.
#[must_use]
pub fn ending(program: &str, cwd: &str, candidates: &[CString], step: Step, error: &std::io::Error) -> Ending {
    let why = reason(error);
    match step {
        Step::Exec => exec_ending(program, cwd, candidates, error),
        Step::Cwd => Ending { code: CODE_CWD, message: format!("cannot change directory to {cwd}: {why}\n") },
        Step::User => Ending { code: CODE_CANNOT_RUN, message: format!("cannot become the user: {why}\n") },
        Step::Cgroup => {
            Ending { code: CODE_CANNOT_RUN, message: format!("cannot enter the command's cgroup: {why}\n") }
        }
        Step::Setup => Ending { code: CODE_CANNOT_RUN, message: format!("cannot set up the command: {why}\n") },
    }
}

/// How a command ended for which there was no process to be had.
#[must_use]
pub fn no_process(error: &std::io::Error) -> Ending {
    Ending { code: CODE_CANNOT_RUN, message: format!("cannot start a process: {}\n", reason(error)) }
}

fn exec_ending(program: &str, cwd: &str, candidates: &[CString], error: &std::io::Error) -> Ending {
    let found = candidates.iter().filter_map(|path| path.to_str().ok()).find(|path| {
        let path = Path::new(cwd).join(path);
        path.exists() && (program.contains('/') || !path.is_dir())
    });
    let is_dir = found.is_some_and(|path| Path::new(cwd).join(path).is_dir());
    let (code, what) = match (error.raw_os_error().map(Errno::from_raw_os_error), found) {
        (Some(Errno::ACCESS), None) | (Some(Errno::NOENT), None) if !program.contains('/') => {
            (CODE_NOT_FOUND, "command not found".to_owned())
        }
        // It is there, but what interprets or loads it is not.
        (Some(Errno::NOENT), Some(_)) => (CODE_NOT_FOUND, "cannot execute: required file not found".to_owned()),
        (Some(Errno::NOENT), None) => (CODE_NOT_FOUND, reason(error)),
        (Some(Errno::ACCESS), Some(_)) if is_dir => (CODE_CANNOT_RUN, "Is a directory".to_owned()),
        (Some(Errno::NOEXEC), _) => (CODE_CANNOT_RUN, format!("cannot execute binary file: {}", reason(error))),
        _ => (CODE_CANNOT_RUN, reason(error)),
    };
    let subject = if what == "command not found" { program } else { found.unwrap_or(program) };
    Ending { code, message: format!("{subject}: {what}\n") }
}

/// The C library's words, without Rust's suffix.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(program: &str, errno: Errno) -> Ending {
        let candidates = candidates(program, "/usr/bin:/tmp");
        ending(program, "/", &candidates, Step::Exec, &std::io::Error::from(errno))
    }

    #[test]
    fn a_missing_program_reads_as_in_a_shell() {
        let missing = why("no-such-program", Errno::NOENT);
        assert_eq!(missing, Ending { code: 127, message: "no-such-program: command not found\n".into() });
        assert_eq!(why("./no/such", Errno::NOENT).message, "./no/such: No such file or directory\n");
        assert_eq!(why("/tmp", Errno::ACCESS), Ending { code: 126, message: "/tmp: Is a directory\n".into() });
        assert_eq!(why("/etc/hostname", Errno::ACCESS).message, "/etc/hostname: Permission denied\n");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = std::io::Error::from(Errno::NOENT);
        let ending = ending("true", "/gone", &[], Step::Cwd, &error);
        assert_eq!(
            (ending.code, ending.message.as_str()),
            (1, "cannot change directory to /gone: No such file or directory\n")
        );
    }

    #[test]
    fn programs_are_searched_in_path_order() {
        let texts = |program, path| {
            candidates(program, path).iter().map(|c| c.to_str().expect("text").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(texts("x", "/a:/b:"), ["/a/x", "/b/x", "x"]);
        assert_eq!(texts("./x", "/a"), ["./x"]);
    }
}
