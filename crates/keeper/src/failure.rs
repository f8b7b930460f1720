//! A failure of a keeper, in the form in which the node gets it.

use branchbox_model::{Code, Coded};
use branchbox_protocol::keeper::KeeperError;
use std::fmt;

/// Deepest chain of causes that is followed.
const CAUSES_MAX: usize = 8;

/// What failed, its causes, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub KeeperError);

impl Failure {
    /// A failure with a code of ours.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self(KeeperError { code, message: message.into(), hint: None, details: Vec::new() })
    }

    /// A call of the kernel that failed while the sandbox was made or kept.
    pub fn io(action: impl fmt::Display, source: std::io::Error) -> Self {
        let code = if source.kind() == std::io::ErrorKind::StorageFull { Code::DiskFull } else { Code::InternalError };
        Self::new(code, format!("cannot {action}: {source}"))
    }

    /// Any error that has no code of its own.
    pub fn of(code: Code, error: &dyn std::error::Error) -> Self {
        Self::new(code, chain(error))
    }

    /// The same with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// The stable code.
    pub fn code(&self) -> Code {
        self.0.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        self.0.hint.iter().try_for_each(|hint| write!(f, " (hint: {hint})"))
    }
}

impl<E: Coded> From<E> for Failure {
    fn from(error: E) -> Self {
        let details = error.details().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Self(KeeperError { code: error.code(), message: chain(&error), hint: error.hint(), details })
    }
}

/// A fault point of a test; nothing in a product build.
pub fn point(name: &'static str) -> Result<(), Failure> {
    branchbox_engine::fault::point(name).map_err(|e| Failure::io(format_args!("pass {name}"), e))
}

/// An error and its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    for _ in 0..CAUSES_MAX {
        let Some(next) = cause else { break };
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
