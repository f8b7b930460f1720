//! Who asked: under `sudo` the user behind it, for the step is theirs and not root's.

use rustix::process::getuid;
use std::path::{Path, PathBuf};

/// The account database of the host.
const PASSWD: &str = "/etc/passwd";
/// Where a step lives whose user has no home of their own.
const HOME_DEFAULT: &str = "/workspace";

/// The invoking user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invoker {
    /// Account name.
    pub name: String,
    /// Host uid.
    pub uid: u32,
    /// Host gid.
    pub gid: u32,
    /// Home, resolved; [`Invoker::has_home`] says whether it is one.
    pub home: PathBuf,
}

impl Invoker {
    /// Finds the user from the account database and the environment.
    #[must_use]
    pub fn find(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let passwd = fs_err::read_to_string(PASSWD).unwrap_or_default();
        Self::from(&passwd, getuid().as_raw(), variable)
    }

    fn from(passwd: &str, uid: u32, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name).and_then(|text| text.parse::<u32>().ok());
        let behind_sudo = number("SUDO_UID").filter(|_| uid == 0);
        let uid = behind_sudo.unwrap_or(uid);
        let account = account(passwd, uid);
        // `sudo -E` may keep the caller's HOME or set root's: only the account database tells whose it is.
        let home = variable("HOME").filter(|_| behind_sudo.is_none()).map(PathBuf::from);
        let home = home.filter(|home| home.is_absolute()).or(account.as_ref().map(|found| found.home.clone()));
        let home = home.unwrap_or_else(|| HOME_DEFAULT.into());
        let gid = if behind_sudo.is_some() { number("SUDO_GID") } else { Some(rustix::process::getgid().as_raw()) };
        let gid = gid.or(account.as_ref().map(|found| found.gid)).unwrap_or(uid);
        let name = account.map_or_else(|| format!("u{uid}"), |found| found.name);
        Self { name, uid, gid, home: usable(home) }
    }

    /// Whether the home is the user's, rather than the sandbox's own.
    #[must_use]
    pub fn has_home(&self) -> bool {
        self.home != Path::new(HOME_DEFAULT)
    }
}

/// Daemons have homes such as `/` or `/usr/sbin`, over which nothing can be mounted.
fn usable(home: PathBuf) -> PathBuf {
    let home = fs_err::canonicalize(&home).unwrap_or(home);
    let depth = home.components().count();
    let system =
        ["/usr", "/etc", "/proc", "/sys", "/dev", "/bin", "/sbin", "/lib"].iter().any(|place| home.starts_with(place));
    if depth < 2 || system { HOME_DEFAULT.into() } else { home }
}

fn account(passwd: &str, uid: u32) -> Option<Invoker> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, its_uid, gid, _, home, ..] = fields[..] else { return None };
        (its_uid.parse() == Ok(uid)).then(|| Invoker {
            name: name.into(),
            uid,
            gid: gid.parse().unwrap_or(uid),
            home: home.into(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCOUNTS: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nada:x:1001:1002:,,,:/nonexistent/ada:/bin/zsh\n";

    #[test]
    fn under_sudo_the_user_behind_it_is_meant() {
        let variable = |name: &str| match name {
            "SUDO_UID" => Some("1001".to_owned()),
            "SUDO_GID" => Some("1002".to_owned()),
            "HOME" => Some("/root".to_owned()),
            _ => None,
        };
        let invoker = Invoker::from(ACCOUNTS, 0, &variable);
        assert_eq!(invoker, Invoker { name: "ada".into(), uid: 1001, gid: 1002, home: "/nonexistent/ada".into() });
    }

    #[test]
    fn a_user_that_is_not_root_cannot_claim_to_be_another() {
        let variable = |name: &str| (name == "SUDO_UID").then(|| "0".to_owned());
        assert_eq!(Invoker::from(ACCOUNTS, 1001, &variable).uid, 1001);
    }

    #[test]
    fn a_home_that_is_the_root_directory_is_none() {
        let variable = |name: &str| (name == "HOME").then(|| "/".to_owned());
        assert!(!Invoker::from(ACCOUNTS, 7, &variable).has_home());
    }
}
