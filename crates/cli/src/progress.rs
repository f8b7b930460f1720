//! A line that moves while something takes long: on standard error, only on a terminal, only for people, and gone
//! without a trace before anything else is written.

use crate::output::Form;
use std::future::Future;
use std::io::{IsTerminal as _, Write};
use std::time::{Duration, Instant};

/// What is done by then needs no line.
const QUIET: Duration = Duration::from_millis(700);
/// Between two lines.
const STEP: Duration = Duration::from_millis(200);

/// Waits for `work`, and says what it is that takes so long.
pub async fn during<T>(form: Form, what: &str, work: impl Future<Output = T>) -> T {
    if form == Form::Text && std::io::stderr().is_terminal() {
        watched(&mut std::io::stderr(), what, work).await
    } else {
        work.await
    }
}

async fn watched<T>(to: &mut dyn Write, what: &str, work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let mut work = Box::pin(work);
    let mut wait = QUIET;
    let mut said = false;
    loop {
        tokio::select! {
            done = &mut work => {
                if said {
                    write(to, "\r\x1b[K");
                }
                return done;
            }
            () = tokio::time::sleep(wait) => {
                said = true;
                wait = STEP;
                write(to, &format!("\r\x1b[K{what} … {} s", started.elapsed().as_secs()));
            }
        }
    }
}

fn write(to: &mut dyn Write, text: &str) {
    // A terminal that is gone shows nothing to anybody.
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_quick_says_nothing() {
        let mut out = Vec::new();
        assert_eq!(watched(&mut out, "waking", async { 7 }).await, 7);
        assert!(out.is_empty());
    }

    #[tokio::test]
    async fn what_takes_long_has_a_line_that_goes_away() {
        let mut out = Vec::new();
        watched(&mut out, "waking", tokio::time::sleep(QUIET + STEP * 2)).await;
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("\r\x1b[Kwaking … 0 s") && text.ends_with("\r\x1b[K"), "{text:?}");
    }
}
