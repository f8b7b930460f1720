//! How an attempt speaks while it goes on: lines for people, or silence but for one JSON value at the end.

use super::report;
use crate::output::{self, Form};
use std::time::{Duration, Instant};

/// Where the lines of one attempt go.
#[derive(Debug)]
pub struct Voice {
    form: Form,
    aside: bool,
    started: Instant,
}

impl Voice {
    /// A voice whose times count from `started`.
    #[must_use]
    pub fn new(form: Form, started: Instant) -> Self {
        Self { form, aside: form == Form::Json, started }
    }

    /// The same, beside the data: for when standard output is for an id.
    #[must_use]
    pub fn aside(self) -> Self {
        Self { aside: true, ..self }
    }

    /// How results are shown.
    #[must_use]
    pub fn form(&self) -> Form {
        self.form
    }

    /// Since the command began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// The first line, at once.
    pub fn head(&self, step: &str) {
        self.say(&report::head(step));
    }

    /// One line of what is going on.
    pub fn line(&self, label: &str, words: &str) {
        self.say(&report::line(label, words));
    }

    /// Text for people: beside the data when the data is JSON.
    pub fn say(&self, text: &str) {
        if self.aside { output::note(text) } else { output::data(text) }
    }

    /// Output of the step, as it is.
    pub fn output(&self, stderr: bool, text: &str) {
        output::raw(stderr || self.aside, text.as_bytes());
    }
}
