//! The terminal of this process: its size, and its raw mode, which ends however the command does.

use branchbox_api::PtySize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{stdin, stdout};

/// Raw mode for as long as this lives: a return, an error, a caught signal and a panic all put it back.
#[derive(Debug)]
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Switches to raw mode; `None` when there is no terminal to switch.
    #[must_use]
    pub fn begin() -> Option<Self> {
        if !isatty(stdin()) || !isatty(stdout()) {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing put back.
        let _ = tcsetattr(stdin(), OptionalActions::Drain, &self.before);
    }
}

/// The size of the terminal, if there is one that knows it.
#[must_use]
pub fn size() -> Option<PtySize> {
    let known = tcgetwinsize(stdout()).or_else(|_| tcgetwinsize(stdin())).ok()?;
    (known.ws_col > 0 && known.ws_row > 0).then_some(PtySize { cols: known.ws_col, rows: known.ws_row })
}
