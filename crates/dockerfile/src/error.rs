//! What is wrong with a text, as one sentence for the person who wrote it.

use std::fmt;

/// An instruction that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Its first line, counted from 1; 0 when the problem is in no line (a target that is not there, a recipe).
    pub line: u32,
    /// What is wrong, without a stop at the end.
    pub problem: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, problem: impl Into<String>) -> Self {
        Self { line, problem: problem.into() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 { f.write_str(&self.problem) } else { write!(f, "line {}: {}", self.line, self.problem) }
    }
}

impl std::error::Error for ParseError {}

/// An image's configuration that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// More bytes than any configuration has.
    #[error("the image's configuration has {size} bytes, the most is {max}")]
    Size {
        /// What it has.
        size: usize,
        /// What it may have.
        max: usize,
    },
    /// Not JSON, or a field of another type.
    #[error("the image's configuration is not what OCI says")]
    Json(#[source] serde_json::Error),
    /// A field with a value that cannot be.
    #[error("the image's configuration: {0}")]
    Value(String),
}
