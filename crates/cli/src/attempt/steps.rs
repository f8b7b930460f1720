//! The step and its check, run in the copy with their output streaming by.

use super::report::Outcome;
use super::voice::Voice;
use crate::connect::refused;
use crate::exit::Exit;
use crate::fault::Fault;
use branchbox_api::{ExecRequest, StreamEvent, TIMEOUT_MS_MAX};
use branchbox_client::Client;
use std::collections::BTreeMap;

/// How much of the output's end is looked at for why a command failed.
const TAIL_BYTES: usize = 16 * 1024;
/// What tools say that could not reach a name or a network.
const NO_NETWORK: &[&str] = &[
    "could not resolve host",
    "couldn't resolve host",
    "temporary failure in name resolution",
    "temporary failure resolving",
    "network is unreachable",
    "enotfound",
    "eai_again",
    "enetunreach",
    "failed to lookup address information",
    "name or service not known",
    "no such host",
    "getaddrinfo",
    "failed to resolve",
];

/// What is run.
#[derive(Debug, Clone)]
pub struct Steps {
    /// The step as a script.
    pub command: Option<String>,
    /// The step as a program and its arguments.
    pub argv: Option<Vec<String>>,
    /// The check.
    pub verify: Option<String>,
    /// Where.
    pub cwd: Option<String>,
    /// With which variables.
    pub env: BTreeMap<String, String>,
}

/// How step and check ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The step.
    pub step: Outcome,
    /// The check, if there is one and the step passed.
    pub check: Option<Outcome>,
}

impl Ended {
    /// Whether the changes may be kept.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.step.passed() && self.check.as_ref().is_none_or(Outcome::passed)
    }

    /// The last line, when a failure is not the step's own fault.
    #[must_use]
    pub fn excuse(&self) -> Option<&'static str> {
        let failed = self.check.as_ref().filter(|check| !check.passed()).unwrap_or(&self.step);
        if failed.passed() {
            None
        } else if failed.out_of_memory {
            Some("the step ran out of memory: the copy has most of what is free on this machine")
        } else if failed.missed_network {
            Some("the step had no network: fetch what it needs before trying it, since this version cannot give it one")
        } else {
            None
        }
    }
}

impl Steps {
    /// Runs the step in the copy, and the check when it passed.
    ///
    /// # Errors
    /// When a command could not be run to its end.
    pub async fn run(&self, client: &Client, copy: &str, voice: &Voice) -> Result<Ended, Fault> {
        let step = ExecRequest { command: self.command.clone(), argv: self.argv.clone(), ..self.request() };
        let step = run(client, copy, &step, voice).await?;
        voice.line("step", &step.words());
        let Some(verify) = self.verify.as_ref().filter(|_| step.passed()) else {
            let why = if self.verify.is_some() {
                "not run, since the step failed"
            } else {
                "none: the step's own exit decides"
            };
            voice.line("check", why);
            return Ok(Ended { step, check: None });
        };
        let request = ExecRequest { command: Some(verify.clone()), ..self.request() };
        let check = run(client, copy, &request, voice).await?;
        voice.line("check", &format!("{}: {}", crate::fault::printable(verify), check.words()));
        Ok(Ended { step, check: Some(check) })
    }

    fn request(&self) -> ExecRequest {
        ExecRequest {
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            timeout_ms: Some(TIMEOUT_MS_MAX),
            ..ExecRequest::default()
        }
    }
}

async fn run(client: &Client, copy: &str, request: &ExecRequest, voice: &Voice) -> Result<Outcome, Fault> {
    let what = "cannot run the step in the copy";
    let mut stream = client.exec_stream(copy, request).await.map_err(|error| refused(what, error))?;
    let mut tail = String::new();
    while let Some(event) = stream.next().await.map_err(|error| refused(what, error))? {
        match event {
            StreamEvent::Stdout { data, .. } => show(voice, false, &data, &mut tail),
            StreamEvent::Stderr { data, .. } => show(voice, true, &data, &mut tail),
            StreamEvent::Truncated { dropped_bytes, .. } => {
                show(voice, true, &format!("\n({dropped_bytes} bytes of output were lost)\n"), &mut tail);
            }
            StreamEvent::Exit { exit_code, timed_out, duration_ms, out_of_memory, .. } => {
                if !tail.is_empty() && !tail.ends_with('\n') {
                    voice.output(false, "\n");
                }
                return Ok(Outcome {
                    exit_code: exit_code.map(i64::from),
                    timed_out,
                    out_of_memory: out_of_memory.is_some(),
                    missed_network: missed_network(&tail),
                    duration_ms,
                });
            }
            _ => {}
        }
    }
    Err(Fault::new(Exit::Internal, what).cause("the stream ended before the command did"))
}

fn show(voice: &Voice, stderr: bool, text: &str, tail: &mut String) {
    voice.output(stderr, text);
    tail.push_str(text);
    if tail.len() > 2 * TAIL_BYTES {
        let cut = (tail.len() - TAIL_BYTES..).find(|&at| tail.is_char_boundary(at)).unwrap_or(tail.len());
        tail.drain(..cut);
    }
}

fn missed_network(tail: &str) -> bool {
    let tail = tail.to_ascii_lowercase();
    NO_NETWORK.iter().any(|words| tail.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_that_miss_the_network_are_understood() {
        for said in [
            "curl: (6) Could not resolve host: example.org",
            "npm error code EAI_AGAIN",
            "fatal: unable to access 'https://x/': Could not resolve host: x",
            "socket.gaierror: [Errno -3] Temporary failure in name resolution",
            "dns error: failed to lookup address information: Try again",
        ] {
            assert!(missed_network(said), "{said}");
        }
        assert!(!missed_network("assertion failed: left == right"));
    }

    #[test]
    fn a_check_is_what_decides() {
        let outcome = |code| Outcome {
            exit_code: Some(code),
            timed_out: false,
            out_of_memory: false,
            missed_network: false,
            duration_ms: 1,
        };
        assert!(Ended { step: outcome(0), check: None }.passed());
        assert!(!Ended { step: outcome(0), check: Some(outcome(1)) }.passed());
        assert!(!Ended { step: outcome(2), check: None }.passed());
        let offline = Outcome { missed_network: true, ..outcome(1) };
        assert!(
            Ended { step: offline, check: None }
                .excuse()
                .is_some_and(|line| line.starts_with("the step had no network"))
        );
        assert_eq!(Ended { step: outcome(1), check: None }.excuse(), None);
    }
}
