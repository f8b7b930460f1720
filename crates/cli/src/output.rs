//! Where words go: data to standard output, everything else to standard error.
//!
//! Colours are written always and taken out by the writer when the stream is no terminal or `NO_COLOR` is set. A reader
//! that went away (`| head`) ends the writing quietly: no output is worth a panic.

use crate::fault::Fault;
use serde::Serialize;
use std::io::Write;

/// How a command shows its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text for people.
    Text,
    /// One JSON value.
    Json,
}

impl Form {
    /// The form that `--json` asks for.
    #[must_use]
    pub fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// Writes data to standard output.
pub fn data(text: &str) {
    write(&mut anstream::stdout(), text.as_bytes());
}

/// Writes raw bytes of a command's output, as they are.
pub fn raw(stderr: bool, bytes: &[u8]) {
    if stderr {
        write(&mut std::io::stderr(), bytes);
    } else {
        write(&mut std::io::stdout(), bytes);
    }
}

/// Writes a remark to standard error.
pub fn note(text: &str) {
    write(&mut anstream::stderr(), text.as_bytes());
}

/// Writes one JSON value to standard output.
pub fn json(value: &impl Serialize) {
    let mut text = serde_json::to_string_pretty(value).unwrap_or_else(|_| "null".into());
    text.push('\n');
    data(&text);
}

/// Shows a failure.
pub fn fault(form: Form, fault: &Fault) {
    match form {
        Form::Text => note(&fault.text()),
        Form::Json => note(&format!("{}\n", fault.json())),
    }
}

fn write(to: &mut dyn Write, bytes: &[u8]) {
    // The reader may have gone away; then nobody misses the rest.
    let _ = to.write_all(bytes).and_then(|()| to.flush());
}
