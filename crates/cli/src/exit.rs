//! How a command ends, as a type: the numbers are a promise to scripts.

use std::process::ExitCode;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0: done; for `try`: passed, and written back or nothing to write.
    Done,
    /// 1: the user's or the sandbox's failure; for `try`: failed, and nothing was touched.
    Failed,
    /// 2: the words of the command line are wrong.
    Usage,
    /// 3: cannot run here, or no node answers.
    CannotRun,
    /// 4: `try` passed and was not written back.
    NotKept,
    /// 5: `try` passed and the directory changed meanwhile.
    Conflict,
    /// 70: a failure of ours.
    Internal,
    /// 124: the command's time limit ended it.
    TimedOut,
    /// 125: the command could not be started.
    NotStarted,
    /// 130: interrupted.
    Interrupted,
    /// The command's own exit code.
    Child(u8),
    /// 128 + n: signal n ended the command.
    Signal(u8),
}

impl Exit {
    /// The number a shell sees.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::CannotRun => 3,
            Self::NotKept => 4,
            Self::Conflict => 5,
            Self::Internal => 70,
            Self::TimedOut => 124,
            Self::NotStarted => 125,
            Self::Interrupted => 130,
            Self::Child(code) => code,
            Self::Signal(signal) => 128_u8.saturating_add(signal),
        }
    }

    /// The exit of a command inside a sandbox, from the wire's number (`-n` for signal n).
    #[must_use]
    pub fn of_command(exit_code: Option<i64>, timed_out: bool) -> Self {
        match exit_code {
            _ if timed_out => Self::TimedOut,
            None => Self::NotStarted,
            Some(code @ ..=-1) => Self::Signal(u8::try_from(-code).unwrap_or(u8::MAX)),
            Some(code) => Self::Child(u8::try_from(code & 0xff).unwrap_or(u8::MAX)),
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn a_commands_exit_is_its_own_a_signals_is_128_more() {
        assert_eq!(Exit::of_command(Some(7), false).code(), 7);
        assert_eq!(Exit::of_command(Some(-9), false).code(), 137);
        assert_eq!(Exit::of_command(Some(-9), true).code(), 124);
        assert_eq!(Exit::of_command(None, false).code(), 125);
        assert_eq!(Exit::of_command(Some(-1000), false).code(), 255);
    }
}
