//! What an image says about the programs that run on it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A command with all its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The program and its arguments; of a shell's text, the shell with its own.
    pub argv: Vec<String>,
    /// It was written as text for a shell.
    pub shell: bool,
}

/// `HEALTHCHECK`; absent times are Docker's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are Docker's")]
pub struct Healthcheck<C = Command> {
    /// What tells whether it is well; nothing with `NONE`.
    pub test: Option<C>,
    pub interval_ms: Option<u64>,
    pub timeout_ms: Option<u64>,
    pub start_period_ms: Option<u64>,
    pub start_interval_ms: Option<u64>,
    pub retries: Option<u32>,
}

impl<C> Healthcheck<C> {
    pub(crate) fn none() -> Self {
        let (interval_ms, timeout_ms, start_period_ms, start_interval_ms) = (None, None, None, None);
        Self { test: None, interval_ms, timeout_ms, start_period_ms, start_interval_ms, retries: None }
    }

    pub(crate) fn with<D>(self, test: Option<D>) -> Healthcheck<D> {
        let Self { interval_ms, timeout_ms, start_period_ms, start_interval_ms, retries, .. } = self;
        Healthcheck { test, interval_ms, timeout_ms, start_period_ms, start_interval_ms, retries }
    }
}

/// What is known while a stage is built; it begins with the base image's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "one per instruction")]
pub struct Config {
    pub env: BTreeMap<String, String>,
    /// Absolute.
    pub workdir: Option<String>,
    /// `name`, `id`, `name:group` or `id:group`.
    pub user: Option<String>,
    pub cmd: Option<Command>,
    pub entrypoint: Option<Command>,
    pub healthcheck: Option<Healthcheck>,
    /// Without the protocol.
    pub exposed: Vec<u16>,
    pub labels: BTreeMap<String, String>,
    /// What reads commands that are text.
    pub shell: Vec<String>,
    pub stop_signal: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            env: BTreeMap::new(),
            workdir: None,
            user: None,
            cmd: None,
            entrypoint: None,
            healthcheck: None,
            exposed: Vec::new(),
            labels: BTreeMap::new(),
            shell: default_shell(),
            stop_signal: None,
        }
    }
}

pub(crate) fn default_shell() -> Vec<String> {
    vec!["/bin/sh".into(), "-c".into()]
}

/// What a sandbox from an image runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// `ENTRYPOINT` and `CMD` as one command.
    pub argv: Vec<String>,
    /// `HEALTHCHECK`: exits with 0 when the command serves.
    pub ready: Option<Vec<String>>,
    /// How long the check may fail before the command counts as unwell.
    pub ready_timeout_ms: Option<u64>,
}

/// What a sandbox from an image with this configuration runs; nothing if it has neither `ENTRYPOINT` nor `CMD`.
#[must_use]
pub fn start_of(config: &Config) -> Option<Start> {
    let words = |command: &Option<Command>| command.as_ref().map(|command| command.argv.clone()).unwrap_or_default();
    let mut argv = words(&config.entrypoint);
    argv.extend(words(&config.cmd));
    if argv.is_empty() {
        return None;
    }
    let check = config.healthcheck.as_ref().filter(|check| check.test.is_some());
    let ready = check.and_then(|check| check.test.as_ref()).map(|test| test.argv.clone());
    Some(Start { argv, ready, ready_timeout_ms: check.map(patience) })
}

/// The start period, then as many checks as may fail.
fn patience(check: &Healthcheck) -> u64 {
    let of = |value: Option<u64>, default: u64| value.filter(|value| *value > 0).unwrap_or(default);
    let retries = u64::from(check.retries.filter(|retries| *retries > 0).unwrap_or(3));
    let period = check.start_period_ms.unwrap_or_default();
    period.saturating_add(of(check.interval_ms, 30_000).saturating_mul(retries))
}
