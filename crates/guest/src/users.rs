//! Names, homes and groups of users, from the sandbox's own `/etc`.
//!
//! These files belong to whoever is root inside: they are read with a bound, only if they are regular files, and a line
//! that makes no sense is skipped.

use rustix::fs::{FileType, Mode, OFlags};
use std::io::Read;

/// Most bytes read of `/etc/passwd` or `/etc/group`.
const DATABASE_BYTES_MAX: u64 = 256 * 1024;
/// Most supplementary groups given to a process; the kernel takes 65,536.
const GROUPS_MAX: usize = 256;
/// Home directory of the sandbox's user, whatever `/etc/passwd` says.
const HOME: &str = crate::seal::WORKSPACE;
/// Of a user that is in no file.
const DEFAULT_SHELL: &str = "/bin/sh";
/// Uid of the sandbox's user.
const USER_UID: u32 = 1000;

/// What a command or a file operation needs to know of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Uid.
    pub uid: u32,
    /// Gid.
    pub gid: u32,
    /// Name.
    pub name: String,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
    /// All groups, the own one included.
    pub groups: Vec<u32>,
}

/// Looks up a user by numbers; one that is in no file gets a plain account.
#[must_use]
pub fn account(uid: u32, gid: u32) -> Account {
    parse(uid, gid, &read("/etc/passwd"), &read("/etc/group"))
}

/// Looks up a user by name, or by `#uid`.
#[must_use]
pub fn account_named(name: &str) -> Option<Account> {
    let passwd = read("/etc/passwd");
    let wanted = name.strip_prefix('#').and_then(|uid| uid.parse::<u32>().ok());
    let (uid, gid) = passwd
        .lines()
        .filter_map(passwd_line)
        .find_map(|(entry, uid, gid, ..)| (entry == name || wanted == Some(uid)).then_some((uid, gid)))?;
    Some(parse(uid, gid, &passwd, &read("/etc/group")))
}

type PasswdLine<'a> = (&'a str, u32, u32, &'a str, &'a str);

fn passwd_line(line: &str) -> Option<PasswdLine<'_>> {
    let mut fields = line.split(':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((name, uid, gid, fields.nth(1)?, fields.next().unwrap_or_default()))
}

fn parse(uid: u32, gid: u32, passwd: &str, group: &str) -> Account {
    let entry = passwd.lines().filter_map(passwd_line).find(|(_, entry, ..)| *entry == uid);
    let name = match (entry, uid) {
        (Some((name, ..)), _) => name.to_owned(),
        (None, 0) => "root".to_owned(),
        (None, USER_UID) => "runtime".to_owned(),
        (None, uid) => uid.to_string(),
    };
    let home = match (entry, uid) {
        (_, USER_UID) => HOME.to_owned(),
        (_, 0) => "/root".to_owned(),
        (Some((_, _, _, home, _)), _) if home.starts_with('/') => home.to_owned(),
        _ => "/".to_owned(),
    };
    let shell = match entry {
        Some((.., shell)) if shell.starts_with('/') => shell.to_owned(),
        _ => DEFAULT_SHELL.to_owned(),
    };
    let mut groups = vec![gid];
    for line in group.lines() {
        let mut fields = line.split(':');
        let (Some(number), Some(members)) = (fields.nth(2).and_then(|gid| gid.parse().ok()), fields.next()) else {
            continue;
        };
        if members.split(',').any(|member| member == name) && !groups.contains(&number) && groups.len() < GROUPS_MAX {
            groups.push(number);
        }
    }
    Account { uid, gid, name, home, shell, groups }
}

fn read(path: &str) -> String {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let Ok(fd) = rustix::fs::open(path, flags, Mode::empty()) else { return String::new() };
    let regular =
        rustix::fs::fstat(&fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    let mut bytes = Vec::new();
    if regular {
        // A file cut short by an error is used as far as it was read.
        let _ = std::fs::File::from(fd).take(DATABASE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/elsewhere:/bin/bash\nbroken\n:x:1000:1000::/x:\nruntime:x:1000:1000::/home/x:/bin/sh\nweb:x:33:33::/var/www:/bin/false\n";
    const GROUP: &str =
        "root:x:0:\nsudo:x:27:runtime\ndocker:x:999:web,runtime\nself:x:1000:runtime\nbad:x:no:runtime\n";

    #[test]
    fn accounts_have_their_groups_and_homes() {
        let user = parse(1000, 1000, PASSWD, GROUP);
        assert_eq!((user.name.as_str(), user.home.as_str(), user.shell.as_str()), ("runtime", "/workspace", "/bin/sh"));
        assert_eq!(user.groups, [1000, 27, 999]);
        assert_eq!(parse(0, 0, PASSWD, GROUP).home, "/root");
        assert_eq!(parse(33, 33, PASSWD, GROUP).home, "/var/www");
    }

    #[test]
    fn unknown_users_get_a_plain_account() {
        let unknown = parse(4242, 7, "", "");
        assert_eq!(
            (unknown.name.as_str(), unknown.home.as_str(), unknown.groups.as_slice()),
            ("4242", "/", [7].as_slice())
        );
        assert_eq!(parse(1000, 1000, "", "").name, "runtime");
    }
}
