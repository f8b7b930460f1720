//! The reference of the command line as Markdown, from the one definition that parses it.

use crate::args::Cli;
use clap::{Arg, Command, CommandFactory as _};
use std::fmt::Write as _;

/// What begins the reference.
const HEADING: &str = "# The command line\n\n\
    Written by `cargo xtask docs` from the program's own help. Each command on a sandbox can be said below `sandboxes` as well\n\
    (`branchbox sandboxes fork web`), as in scripts for the Runtime command line.\n";

/// The whole reference.
#[must_use]
pub fn markdown() -> String {
    let mut program = Cli::command();
    program.build();
    let mut text = HEADING.to_owned();
    if let Some(help) = program.get_after_help() {
        let _ = write!(text, "\n{}\n", help.to_string().trim());
    }
    text.push_str("\n## Options of every command\n\n");
    program.get_arguments().filter(|arg| arg.is_global_set()).for_each(|arg| option(&mut text, arg));
    for command in program.get_subcommands() {
        describe(&mut text, command, "branchbox");
    }
    text
}

fn describe(text: &mut String, command: &Command, above: &str) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "\n## {name}\n\n{}\n", about.trim());
    if command.has_subcommands() {
        return command.get_subcommands().for_each(|below| describe(text, below, &name));
    }
    let usage = command.clone().render_usage().to_string();
    let _ = write!(text, "\n```text\n{}\n```\n\n", usage.trim_start_matches("Usage: ").trim());
    let own = |arg: &&Arg| {
        !arg.is_global_set() && !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
    };
    command.get_arguments().filter(own).for_each(|arg| option(text, arg));
}

fn option(text: &mut String, arg: &Arg) {
    let mut names: Vec<String> = arg.get_short().map(|short| format!("-{short}")).into_iter().collect();
    names.extend(arg.get_long().map(|long| format!("--{long}")));
    let values: Vec<String> = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect();
    let shown = match (names.is_empty(), arg.get_action().takes_values()) {
        (true, _) => values.join(" "),
        (false, true) => format!("{} {}", names.join(", "), values.join(" ")),
        (false, false) => names.join(", "),
    };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = if defaults.is_empty() || !arg.get_action().takes_values() {
        String::new()
    } else {
        format!(" [default: {}]", defaults.join(" "))
    };
    let _ = writeln!(text, "* `{shown}`: {help}{default}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_that_is_kept_is_the_one_the_words_give() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
        assert!(fs_err::read_to_string(path).unwrap_or_default() == markdown(), "run `cargo xtask docs`");
    }

    #[test]
    fn every_command_has_an_example() {
        fn missing(command: &Command, found: &mut Vec<String>) {
            let about = command.get_long_about().map(ToString::to_string).unwrap_or_default();
            let is_exempt = command.is_hide_set() || command.get_name() == "help" || command.has_subcommands();
            if !is_exempt && !about.contains("Example: `branchbox ") {
                found.push(command.get_name().to_owned());
            }
            command.get_subcommands().for_each(|below| missing(below, found));
        }
        let mut found = Vec::new();
        Cli::command().get_subcommands().for_each(|command| missing(command, &mut found));
        assert_eq!(found, Vec::<String>::new());
    }
}
