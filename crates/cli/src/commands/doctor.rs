//! `doctor`: what this machine can do, each thing tried and not guessed.

use crate::exit::Exit;
use crate::fault::printable;
use crate::output::{self, Form};
use branchbox_jail::check::{Check, check_host};
use serde_json::json;
use std::fmt::Write as _;

/// Prints every check; 3 when something that is needed is missing.
#[must_use]
pub fn run(form: Form) -> Exit {
    let checks = check_host();
    let fit = checks.iter().all(|check| check.ok || !check.required);
    match form {
        Form::Json => output::json(&as_json(&checks, fit)),
        Form::Text => output::data(&text(&checks, fit)),
    }
    if fit { Exit::Done } else { Exit::CannotRun }
}

fn as_json(checks: &[Check], fit: bool) -> serde_json::Value {
    let one = |check: &Check| json!({ "name": check.name, "ok": check.ok, "required": check.required, "detail": check.detail, "hint": check.hint });
    json!({ "fit": fit, "checks": checks.iter().map(one).collect::<Vec<_>>() })
}

fn text(checks: &[Check], fit: bool) -> String {
    let width = checks.iter().map(|check| check.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let mark = match (check.ok, check.required) {
            (true, _) => "\x1b[32m✓\x1b[0m",
            (false, true) => "\x1b[31m✗\x1b[0m",
            (false, false) => "\x1b[33m!\x1b[0m",
        };
        let _ = writeln!(text, "{mark} {:width$}  {}", check.name, printable(&check.detail));
        if !check.ok {
            let _ = writeln!(text, "  {:width$}  \x1b[1mhint\x1b[0m: {}", "", check.hint);
        }
    }
    text.push_str(if fit { "this machine can run sandboxes\n" } else { "this machine cannot run sandboxes\n" });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_says_what_to_do() {
        let check = |name, ok, required| Check { name, ok, detail: "found".into(), hint: "do this", required };
        let checks = [check("root", true, true), check("kernel", false, true), check("inotify", false, false)];
        assert_eq!(
            anstream::adapter::strip_str(&text(&checks, false)).to_string(),
            "✓ root     found\n✗ kernel   found\n           hint: do this\n! inotify  found\n           hint: do this\n\
             this machine cannot run sandboxes\n"
        );
    }
}
