//! `/etc/passwd`, `group`, `shadow` and `gshadow` of a sandbox: the host's system accounts, the user `runtime`, no
//! people and no password hashes.

/// The uid and gid of the sandbox's user.
pub(crate) const RUNTIME_ID: u32 = 1000;
const RUNTIME: &str = "runtime";
const HOME: &str = "/workspace";
/// Ids below belong to the system on every common distribution.
const SYSTEM_ID_MAX: u32 = 999;
const NOBODY: u32 = 65_534;

/// A file, and what it holds once our user is in it, given what it held and the user's shell.
type Addition = (&'static str, fn(&str, &str) -> String);

/// What is added to an image's own accounts.
pub(crate) const ADDITIONS: [Addition; 4] = [
    ("etc/passwd", |text, shell| {
        let id = RUNTIME_ID.to_string();
        let ours = format!("{RUNTIME}:x:{id}:{id}:sandbox user:{HOME}:{shell}");
        let root = format!("root:x:0:0:root:/root:{shell}");
        put_first(&with_root(text, &root), &ours, |fields| fields.get(2) == Some(&id.as_str()))
    }),
    ("etc/group", |text, _| {
        let id = RUNTIME_ID.to_string();
        let ours = format!("{RUNTIME}:x:{id}:");
        put_first(&with_root(text, "root:x:0:"), &ours, |fields| fields.get(2) == Some(&id.as_str()))
    }),
    ("etc/shadow", |text, _| put_first(text, &format!("{RUNTIME}:*:19000:0:99999:7:::"), |_| false)),
    ("etc/gshadow", |text, _| put_first(text, &format!("{RUNTIME}:*::"), |_| false)),
];

fn with_root(text: &str, line: &str) -> String {
    if text.lines().any(|known| known.starts_with("root:")) { text.to_owned() } else { format!("{line}\n{text}") }
}

/// Puts our line in, instead of one of the same name, and before the first that `is_rival` knows: a look-up by number finds
/// the first.
fn put_first(text: &str, ours: &str, is_rival: impl Fn(&[&str]) -> bool) -> String {
    let mut lines: Vec<&str> = text.lines().filter(|line| line.split(':').next() != Some(RUNTIME)).collect();
    let rival = lines.iter().position(|line| is_rival(&line.split(':').collect::<Vec<_>>()));
    lines.insert(rival.unwrap_or(lines.len()), ours);
    lines.join("\n") + "\n"
}

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
    push_user(&mut out, RUNTIME, &id, &id, "sandbox user", HOME, "/bin/bash");
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
    fn our_user_comes_before_others_of_its_number() {
        let [(_, passwd), (_, group), (_, shadow), _] = ADDITIONS;
        let image = "root:x:0:0:root:/root:/bin/ash\nnode:x:1000:1000::/home/node:/bin/sh\n";
        let made = passwd(image, "/bin/sh");
        let names: Vec<&str> = made.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(names, ["root", "runtime", "node"]);
        assert_eq!(passwd(&made, "/bin/sh"), made, "twice is once");
        assert!(passwd("", "/bin/sh").starts_with("root:x:0:0:root:/root:/bin/sh\nruntime:x:1000:1000:"));
        assert_eq!(group("root:x:0:\nnode:x:1000:\n", ""), "root:x:0:\nruntime:x:1000:\nnode:x:1000:\n");
        assert_eq!(shadow("root:!::0:::::\n", "").lines().count(), 2);
    }

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
