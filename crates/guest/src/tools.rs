//! The guest's executable under other names inside the sandbox: `sudo`, `systemctl` and `branchbox-watch`.
//!
//! `sudo` is a setuid-root copy without rules: the sandbox's user may become its root, which is root of nothing outside.
//! `systemctl` tells programs and people that there is no service manager, in a way that can be acted upon.

use crate::environment::PATH;
use crate::users::{Account, account, account_named};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Variables that survive `sudo` without `-E`.
const KEPT_ENV: &[&str] = &["TERM", "LANG", "LC_ALL", "COLORTERM", "TZ", "BRANCHBOX_GENERATION"];

/// Runs the tool of that name, if there is one, with the arguments behind the name.
#[must_use]
pub fn run(name: &str, args: &[OsString]) -> Option<ExitCode> {
    match name {
        "sudo" => Some(sudo(args)),
        "systemctl" => Some(systemctl(args)),
        "branchbox-watch" => Some(crate::watch::run(args)),
        _ => None,
    }
}

pub(crate) fn say(text: &str) {
    // If standard error is closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// What a `sudo` command line asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    user: Option<OsString>,
    keep_env: bool,
    shell: bool,
    login: bool,
    /// Only a check of rights or a refresh, nothing to run.
    nothing: bool,
    env: Vec<(OsString, OsString)>,
    command: Vec<OsString>,
}

fn parse(args: &[OsString]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy();
        match text.as_ref() {
            "--" => break,
            "-u" | "--user" => asked.user = Some(rest.next().ok_or("option -u needs a user")?.clone()),
            "-g" | "--group" | "-p" | "--prompt" | "-C" | "-r" | "-t" | "-h" | "-D" | "-T" => drop(rest.next()),
            "-E" | "--preserve-env" => asked.keep_env = true,
            "-s" | "--shell" => asked.shell = true,
            "-i" | "--login" => asked.login = true,
            "-v" | "-k" | "-K" | "-l" | "-V" | "--validate" | "--list" | "--version" => asked.nothing = true,
            "-n" | "-H" | "-S" | "-b" | "-A" | "-B" | "-P" | "--non-interactive" | "--set-home" | "--stdin" => {}
            long if long.starts_with("--user=") => asked.user = Some(long["--user=".len()..].into()),
            long if long.starts_with("--preserve-env=") => asked.keep_env = true,
            short if is_flag_group(short) => {
                asked.keep_env |= short.contains('E');
                asked.shell |= short.contains('s');
                asked.login |= short.contains('i');
            }
            short if short.len() > 2 && short.starts_with("-u") => asked.user = Some(short[2..].into()),
            option if option.starts_with('-') => return Err(format!("unknown option {option}")),
            assignment if is_assignment(assignment) => {
                let (name, value) = assignment.split_once('=').unwrap_or_default();
                asked.env.push((name.into(), value.into()));
            }
            _ => {
                asked.command.push(arg.clone());
                break;
            }
        }
    }
    asked.command.extend(rest.cloned());
    Ok(asked)
}

fn is_flag_group(text: &str) -> bool {
    text.len() > 2 && text.strip_prefix('-').is_some_and(|flags| flags.chars().all(|flag| "nEHSbsiAB".contains(flag)))
}

fn is_assignment(text: &str) -> bool {
    text.split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

fn sudo(args: &[OsString]) -> ExitCode {
    let asked = match parse(args) {
        Ok(asked) => asked,
        Err(problem) => {
            say(&format!("sudo: {problem}\nusage: sudo [-nEHis] [-u user] [--] [NAME=value] command"));
            return ExitCode::FAILURE;
        }
    };
    if asked.nothing && asked.command.is_empty() {
        return ExitCode::SUCCESS;
    }
    if !Uid::effective().is_root() {
        say(
            "sudo: effective user id is not 0; it must be owned by root with the setuid bit, on a mount that allows it",
        );
        return ExitCode::FAILURE;
    }
    let wanted = asked.user.as_deref().unwrap_or(OsStr::new("root"));
    let target = if wanted == "root" { Some(account(0, 0)) } else { account_named(&wanted.to_string_lossy()) };
    let Some(target) = target else {
        say(&format!("sudo: unknown user {}", wanted.to_string_lossy()));
        return ExitCode::FAILURE;
    };
    let caller = account(Uid::current().as_raw(), Gid::current().as_raw());
    let Some(mut command) = command(&asked, &target, &caller) else {
        say("usage: sudo [-nEHis] [-u user] [--] [NAME=value] command");
        return ExitCode::FAILURE;
    };
    if let Err(errno) = become_user(&target) {
        say(&format!("sudo: cannot become {}: {errno}", target.name));
        return ExitCode::FAILURE;
    }
    let error = command.exec();
    let program = command.get_program().to_string_lossy().into_owned();
    match error.kind() {
        std::io::ErrorKind::NotFound => say(&format!("sudo: {program}: command not found")),
        _ => say(&format!("sudo: {program}: {error}")),
    }
    ExitCode::FAILURE
}

fn become_user(target: &Account) -> nix::Result<()> {
    let groups: Vec<Gid> = target.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let (uid, gid) = (Uid::from_raw(target.uid), Gid::from_raw(target.gid));
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

fn command(asked: &Asked, target: &Account, caller: &Account) -> Option<Command> {
    let shell = asked.shell || asked.login;
    let mut command = match asked.command.split_first() {
        Some((program, args)) if !shell => {
            let mut command = Command::new(program);
            command.args(args);
            command
        }
        None if !shell => return None,
        _ => {
            let mut command = Command::new(&target.shell);
            if asked.login {
                let name = target.shell.rsplit('/').next().unwrap_or_default();
                command.arg0(format!("-{name}")).current_dir(&target.home);
            }
            if !asked.command.is_empty() {
                command.arg("-c").arg(asked.command.join(OsStr::new(" ")));
            }
            command
        }
    };
    if !asked.keep_env {
        command.env_clear().envs(KEPT_ENV.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.env("PATH", PATH);
    }
    command
        .env("HOME", &target.home)
        .env("USER", &target.name)
        .env("LOGNAME", &target.name)
        .env("SHELL", &target.shell);
    command
        .env("SUDO_USER", &caller.name)
        .env("SUDO_UID", caller.uid.to_string())
        .env("SUDO_GID", caller.gid.to_string());
    command
        .env("SUDO_COMMAND", asked.command.join(OsStr::new(" ")))
        .envs(asked.env.iter().map(|(name, value)| (name, value)));
    Some(command)
}

fn systemctl(args: &[OsString]) -> ExitCode {
    let words: Vec<_> = args.iter().map(|arg| arg.to_string_lossy()).filter(|arg| !arg.starts_with('-')).collect();
    let what = words.get(1).map_or("the service", |name| name.strip_suffix(".service").unwrap_or(name));
    say(&format!(
        "systemctl: there is no systemd in this sandbox. Start {what} as an ordinary process instead: its own command \
         in the background, or `service {what} start` where it has a script in /etc/init.d."
    ));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Asked, String> {
        parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    fn words(asked: &Asked) -> Vec<&str> {
        asked.command.iter().filter_map(|word| word.to_str()).collect()
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let asked = parsed("-n -E -u web -- ls -l -E").expect("fine");
        assert!(asked.keep_env);
        assert_eq!((asked.user, words(&parsed("-nE true").expect("fine"))), (Some("web".into()), vec!["true"]));
        assert_eq!(words(&parsed("-H env -i sh").expect("fine")), ["env", "-i", "sh"]);
        assert_eq!(words(&parsed("A=1 B_2=x make C=3").expect("fine")), ["make", "C=3"]);
        assert_eq!(parsed("A=1 B_2=x make C=3").expect("fine").env.len(), 2);
    }

    #[test]
    fn unknown_options_and_missing_values_are_refused() {
        assert!(parsed("--chroot=/x true").is_err());
        assert!(parsed("-u").is_err());
        assert!(parsed("-v").expect("fine").nothing);
    }
}
