//! `/etc/passwd`, `group`, `shadow` and `gshadow` of a sandbox: the host's system accounts, the user `runtime`, no
//! people and no password hashes.

/// The uid and gid of the sandbox's user.
pub(super) const RUNTIME_ID: u32 = 1000;
const RUNTIME: &str = "runtime";
/// Ids below belong to the system on every common distribution.
const SYSTEM_ID_MAX: u32 = 999;
const NOBODY: u32 = 65_534;

/// Texts of the four files.
pub(super) struct Accounts {
    pub(super) passwd: String,
    pub(super) group: String,
    pub(super) shadow: String,
    pub(super) gshadow: String,
}

/// Makes the four files from the host's public two.
pub(super) fn accounts(host_passwd: &str, host_group: &str) -> Accounts {
    let users = kept(host_passwd, 7);
    let groups = kept(host_group, 4);
    let mut out =
        Accounts { passwd: String::new(), group: String::new(), shadow: String::new(), gshadow: String::new() };
    if !users.iter().any(|fields| fields[0] == "root") {
        push_user(&mut out, "root", "0", "0", "root", "/root", "/bin/bash");
    }
    for fields in &users {
        push_user(&mut out, fields[0], fields[2], fields[3], fields[4], fields[5], fields[6]);
    }
    let id = RUNTIME_ID.to_string();
    push_user(&mut out, RUNTIME, &id, &id, "sandbox user", "/workspace", "/bin/bash");
    if !groups.iter().any(|fields| fields[0] == "root") {
        push_group(&mut out, "root", "0");
    }
    for fields in &groups {
        push_group(&mut out, fields[0], fields[2]);
    }
    push_group(&mut out, RUNTIME, &id);
    out
}

/// The entries of the system: well formed, with a system id, not named like our user.
fn kept(text: &str, count: usize) -> Vec<Vec<&str>> {
    text.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| fields.len() == count && !fields[0].is_empty() && fields[0] != RUNTIME)
        .filter(|fields| fields[2].parse().is_ok_and(|id: u32| id <= SYSTEM_ID_MAX || id == NOBODY))
        .collect()
}

fn push_user(out: &mut Accounts, name: &str, uid: &str, gid: &str, gecos: &str, home: &str, shell: &str) {
    out.passwd.push_str(&format!("{name}:x:{uid}:{gid}:{gecos}:{home}:{shell}\n"));
    out.shadow.push_str(&format!("{name}:*:19000:0:99999:7:::\n"));
}

fn push_group(out: &mut Accounts, name: &str, gid: &str) {
    out.group.push_str(&format!("{name}:x:{gid}:\n"));
    out.gshadow.push_str(&format!("{name}:*::\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_and_hashes_do_not_come_along() {
        let passwd = "root:$6$hash:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n_apt:x:42:65534::/x:/y\nbroken\n";
        let made = accounts(passwd, "root:x:0:\nsudo:x:27:ann\nann:x:1000:\n");
        assert!(!made.passwd.contains("hash") && !made.passwd.contains("ann"));
        assert!(made.passwd.contains("runtime:x:1000:1000:") && made.passwd.contains("_apt:x:42:"));
        assert!(made.group.contains("sudo:x:27:\n") && !made.group.contains("ann"));
        assert!(made.shadow.lines().all(|line| line.split(':').nth(1) == Some("*")));
    }
}
