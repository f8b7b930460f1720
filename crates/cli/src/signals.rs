//! The signals that end a command which does not end by itself.

use crate::exit::Exit;
use crate::fault::Fault;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes them over; from now on they end nothing by themselves.
    ///
    /// # Errors
    /// When the runtime cannot.
    pub fn listen() -> Result<Self, Fault> {
        let failed = |error| Fault::new(Exit::Internal, "cannot listen for signals").because(&error);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
            terminate: signal(SignalKind::terminate()).map_err(failed)?,
            hangup: signal(SignalKind::hangup()).map_err(failed)?,
        })
    }

    /// Waits for the next.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}
