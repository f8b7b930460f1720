//! The variables a command starts with.

use crate::commands::TERM;
use crate::users::Account;
use branchbox_protocol::guest::{GuestConfig, SpawnSpec};
use std::collections::BTreeMap;

/// Where programs are looked for; the user's own come first.
pub const PATH: &str = "/workspace/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Changes with every restore, so that a program can learn that it is a copy.
const GENERATION: &str = "BRANCHBOX_GENERATION";

/// Defaults, over them the sandbox's variables, over them the command's own; or only the last.
#[must_use]
pub fn build(account: &Account, config: &GuestConfig, spec: &SpawnSpec) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    if !spec.env_clear {
        let defaults = [
            ("HOME", account.home.as_str()),
            ("USER", &account.name),
            ("LOGNAME", &account.name),
            ("SHELL", account.shell.as_str()),
            ("PATH", PATH),
            ("LANG", "C.UTF-8"),
            (GENERATION, &config.generation),
        ];
        if spec.pty.is_some() {
            env.insert("TERM".into(), TERM.into());
        }
        env.extend(defaults.map(|(name, value)| (name.to_owned(), value.to_owned())));
        env.extend(config.env.iter().cloned());
    }
    env.extend(spec.env.iter().cloned());
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_protocol::guest::Stdin;

    fn spec(env: &[(&str, &str)], env_clear: bool) -> SpawnSpec {
        SpawnSpec {
            attached: false,
            argv: vec!["true".into()],
            cwd: "/".into(),
            env: env.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
            env_clear,
            user: (1000, 1000),
            stdin: Stdin::Null,
            pty: None,
            timeout_ms: None,
            display: String::new(),
            tag: String::new(),
        }
    }

    #[test]
    fn later_variables_win() {
        let account = Account {
            uid: 1000,
            gid: 1000,
            name: "runtime".into(),
            home: "/workspace".into(),
            shell: "/bin/bash".into(),
            groups: vec![1000],
        };
        let config =
            GuestConfig { env: vec![("LANG".into(), "de".into()), ("A".into(), "1".into())], generation: "g7".into() };
        let env = build(&account, &config, &spec(&[("A", "2")], false));
        assert_eq!((env["LANG"].as_str(), env["A"].as_str(), env["HOME"].as_str()), ("de", "2", "/workspace"));
        assert_eq!(env[GENERATION], "g7");
        assert!(env["PATH"].starts_with("/workspace/.local/bin:"));
        let alone = build(&account, &config, &spec(&[("A", "2")], true));
        assert_eq!(alone.into_iter().collect::<Vec<_>>(), [("A".to_owned(), "2".to_owned())]);
    }
}
