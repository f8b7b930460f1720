//! What went wrong, as people and scripts read it.
//!
//! ```text
//! error: cannot capture sandbox `web-3`
//!   cause: process 4123 (gdb) traces process 4140 (python3)
//! hint: end the debugger and try again: `branchbox ps web-3`
//! ```

use crate::exit::Exit;
use branchbox_model::{Code, Coded};
use serde_json::json;
use std::fmt::Write as _;

/// Longest chain of causes that is shown.
const CAUSES_MAX: usize = 8;

/// A command's failure: what, why, what next, and how the process ends.
#[derive(Debug)]
pub struct Fault(Box<Parts>);

#[derive(Debug)]
struct Parts {
    what: String,
    causes: Vec<String>,
    hint: Option<String>,
    code: String,
    request_id: Option<String>,
    exit: Exit,
}

impl Fault {
    /// A failure described by one sentence fragment.
    #[must_use]
    pub fn new(exit: Exit, what: impl Into<String>) -> Self {
        let code = match exit {
            Exit::Usage => Code::InvalidRequest.as_str(),
            Exit::CannotRun => Code::HostUnsupported.as_str(),
            Exit::Internal => Code::InternalError.as_str(),
            Exit::Interrupted => "interrupted",
            _ => "failed",
        };
        let (causes, hint, request_id) = (Vec::new(), None, None);
        Self(Box::new(Parts { what: what.into(), causes, hint, code: code.into(), request_id, exit }))
    }

    /// The words of the command line are wrong.
    #[must_use]
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(Exit::Usage, what)
    }

    /// This machine cannot do it, or no node answers.
    #[must_use]
    pub fn cannot_run(what: impl Into<String>) -> Self {
        Self::new(Exit::CannotRun, what)
    }

    /// The user or the sandbox failed.
    #[must_use]
    pub fn failed(what: impl Into<String>) -> Self {
        Self::new(Exit::Failed, what)
    }

    /// The user pressed Ctrl-C.
    #[must_use]
    pub fn interrupted() -> Self {
        Self::new(Exit::Interrupted, "interrupted")
    }

    /// Adds an error and everything below it as causes.
    #[must_use]
    pub fn because(mut self, error: &dyn std::error::Error) -> Self {
        let mut next = Some(error);
        while let Some(error) = next.filter(|_| self.0.causes.len() < CAUSES_MAX) {
            self.0.causes.push(error.to_string());
            next = error.source();
        }
        self
    }

    /// Adds one cause in words.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.0.causes.push(cause.into());
        self
    }

    /// Says what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Says what to do next, if anything is known.
    #[must_use]
    pub fn hint_opt(mut self, hint: Option<String>) -> Self {
        self.0.hint = hint.or(self.0.hint);
        self
    }

    /// Sets the stable code.
    #[must_use]
    pub fn coded(mut self, code: impl Into<String>) -> Self {
        self.0.code = code.into();
        self
    }

    /// Names the request, for the node's log.
    #[must_use]
    pub fn request(mut self, id: Option<String>) -> Self {
        self.0.request_id = id;
        self
    }

    /// A library's error: its code and hint come along.
    #[must_use]
    pub fn of(exit: Exit, what: impl Into<String>, error: &dyn Coded) -> Self {
        let fault = Self::new(exit, what).coded(error.code().as_str()).cause(error.to_string());
        let fault = match std::error::Error::source(error) {
            Some(source) => fault.because(source),
            None => fault,
        };
        fault.hint_opt(error.hint())
    }

    /// How the process ends.
    #[must_use]
    pub fn exit(&self) -> Exit {
        self.0.exit
    }

    /// The stable code.
    #[must_use]
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// For people, with colours that the writer may strip.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("\x1b[1;31merror\x1b[0m: {}\n", paragraph(&self.0.what));
        for cause in &self.0.causes {
            let _ = writeln!(text, "  cause: {}", paragraph(cause));
        }
        if let Some(hint) = &self.0.hint {
            let _ = writeln!(text, "\x1b[1mhint\x1b[0m: {}", paragraph(hint));
        }
        if let Some(id) = self.0.request_id.as_ref().filter(|_| self.0.exit == Exit::Internal) {
            let _ = writeln!(text, "request: {}", printable(id));
        }
        text
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let message =
            std::iter::once(&self.0.what).chain(&self.0.causes).map(String::as_str).collect::<Vec<_>>().join(": ");
        let mut error = json!({ "code": self.0.code, "message": message });
        if let Some(hint) = &self.0.hint {
            error["hint"] = json!(hint);
        }
        if let Some(id) = &self.0.request_id {
            error["requestId"] = json!(id);
        }
        json!({ "error": error })
    }
}

/// Text from elsewhere as one line that is safe for a terminal: control characters become visible.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// The same for a message, whose line breaks are kept and indented.
fn paragraph(text: &str) -> String {
    text.trim_end().lines().map(printable).collect::<Vec<_>>().join("\n    ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn an_error_is_three_lines_what_why_what_next() {
        let fault = Fault::failed("cannot capture sandbox `web-3`")
            .cause("process 4123 (gdb) traces process 4140 (python3)")
            .hint("end the debugger and try again: `branchbox ps web-3`");
        assert_eq!(
            plain(&fault.text()),
            "error: cannot capture sandbox `web-3`\n  cause: process 4123 (gdb) traces process 4140 (python3)\n\
             hint: end the debugger and try again: `branchbox ps web-3`\n"
        );
    }

    #[test]
    fn a_sandbox_cannot_write_to_the_terminal_through_an_error() {
        let fault = Fault::failed("no file `a\x1b]0;owned\x07`");
        assert_eq!(plain(&fault.text()), "error: no file `a\\u{1b}]0;owned\\u{7}`\n");
    }

    #[test]
    fn scripts_get_the_code_and_the_hint() {
        let fault = Fault::cannot_run("no node").coded("unreachable").hint("start one");
        assert_eq!(fault.json(), json!({"error": {"code": "unreachable", "message": "no node", "hint": "start one"}}));
    }
}
