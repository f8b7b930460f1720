//! Words of the Runtime command line that this node has nothing for: one table, so that a script gets told so, in the
//! form it asked for, and not that it misspelt something.
//!
//! A word is looked up only after it was refused as unknown, so a command that is added wins; a test then asks for its
//! word to be taken out here.

use crate::fault::Fault;
use branchbox_model::Code;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Each word, and what to do instead.
const ABSENT: &[(&str, &str)] = &[
    // Below `sandboxes`.
    ("ssh", "use `branchbox shell`"),
    ("session", "use a key of the node"),
    ("mount", "copy with `branchbox cp`"),
    ("desktop", "use `branchbox shell`, or share a port with `branchbox preview`"),
    ("watch", "run a watcher inside with `branchbox exec`"),
    // Products, and what an account has.
    ("volumes", "copy with `branchbox cp`, or start from a snapshot"),
    ("jobs", "use `branchbox run`"),
    ("domains", "share a port with `branchbox preview`"),
    ("ports", "use `branchbox port-forward`"),
    ("ips", "a sandbox has no address outside"),
    ("networks", "see `branchbox network`"),
    ("secrets", "sandboxes have no way out, so no secret can be put into a request"),
    ("mcp", "use the API"),
    ("docs", "see `branchbox help` and `branchbox man`"),
    ("login", "set BRANCHBOX_API_KEY, or name a file with --key-file"),
    ("logout", "there is no saved login"),
    ("webhooks", "ask GET /v1/events from time to time"),
    ("otel", "see the node's log"),
];

/// What a refused command line asked for, if it is one of these.
#[must_use]
pub fn explain(error: &clap::Error) -> Option<Fault> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let is = |known: &str| known == word || known.strip_suffix('s').is_some_and(|one| one == word);
    let (_, hint) = ABSENT.iter().find(|(known, _)| is(known))?;
    Some(Fault::failed(format!("this node has no `{word}`")).coded(Code::Unavailable.as_str()).hint(*hint))
}

/// Whether the words ask for JSON, for words that could not be understood as a whole.
#[must_use]
pub fn wants_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::{CommandFactory as _, Parser as _};

    #[test]
    fn each_word_is_explained_and_none_is_a_command() {
        for (word, _) in ABSENT {
            let error = Cli::try_parse_from(["branchbox", word, "x"]).expect_err("a command now: take it out here");
            let fault = explain(&error).unwrap_or_else(|| panic!("{word}: {error}"));
            assert_eq!((fault.code(), fault.exit().code()), ("unavailable", 1));
        }
        let below = Cli::try_parse_from(["branchbox", "sandboxes", "ssh", "web"]).expect_err("absent");
        assert!(explain(&below).is_some());
    }

    #[test]
    fn a_misspelt_word_stays_one() {
        let error = Cli::try_parse_from(["branchbox", "frok"]).expect_err("unknown");
        assert!(explain(&error).is_none() && error.to_string().contains("fork"));
        assert!(Cli::command().find_subcommand("fork").is_some());
    }

    #[test]
    fn json_behind_two_dashes_is_the_commands_own() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&words("branchbox ssh web --json")));
        assert!(!wants_json(&words("branchbox ssh web -- --json")));
    }
}
