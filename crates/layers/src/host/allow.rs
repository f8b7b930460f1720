//! The one list of what of the host a sandbox of the `host` image may see.
//!
//! `/usr` and `/opt` are shown whole and read-only; of `/etc` only what is listed here is copied, and of that only
//! regular files that everybody on the host may read, without names and contents that look like credentials. All else
//! of the host's root (`/home`, `/root`, `/var`, `/srv`, `/boot`, `/mnt`, `/run` and what else there is) starts empty.

/// Directories shown whole through an overlay of their own, when the host has them as real directories.
/// `bin`, `sbin` and the `lib`s are symlinks into `usr` on most systems and are then copied as symlinks.
pub(super) const WHOLE: &[&str] = &[
    "usr",
    "opt",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "var/lib/dpkg",
    "var/lib/apt",
    "var/lib/rpm",
    "var/lib/pacman",
];

/// Entries of `/etc` that are copied, with everything below them. A trailing `*` stands for any end of the name.
pub(super) const ETC: &[&str] = &[
    // accounts are written anew from the host's: see `accounts`
    "ImageMagick*",
    "OpenCL",
    "R",
    "X11/fonts",
    "X11/rgb.txt",
    "adduser.conf",
    "alpine-release",
    "alternatives",
    "apk/arch",
    "apk/repositories",
    "apk/world",
    "apk/keys",
    "apparmor.d/abi",
    // package sources (without credentials: see `NEVER_NAMES` and `looks_like_credentials`)
    "apt/apt.conf.d",
    "apt/keyrings",
    "apt/preferences",
    "apt/preferences.d",
    "apt/sources.list",
    "apt/sources.list.d",
    "apt/trusted.gpg",
    "apt/trusted.gpg.d",
    "bash.bashrc",
    "bash_completion",
    "bash_completion.d",
    "bashrc",
    "bindresvport.blacklist",
    "binfmt.d",
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "dconf",
    "debconf.conf",
    "debian_version",
    "deluser.conf",
    "default/locale",
    "default/nss",
    "default/useradd",
    "dnf/dnf.conf",
    "dpkg",
    "emacs",
    "ethertypes",
    "fedora-release",
    "fonts",
    "gai.conf",
    "gcrypt",
    "gdb",
    "ghc",
    "glvnd",
    "gnutls",
    "gprofng.rc",
    "groff",
    "gss",
    "gtk-2.0",
    "gtk-3.0",
    "host.conf",
    "init.d",
    "inputrc",
    "insserv.conf.d",
    "iproute2",
    "issue",
    "issue.net",
    "java*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "libaudit.conf",
    "libnl-3",
    "libpaper.d",
    "locale.alias",
    "locale.conf",
    "locale.gen",
    "localtime",
    "logcheck",
    "login.defs",
    "logrotate.d",
    "lsb-release",
    "lua*",
    "magic",
    "magic.mime",
    "mailcap",
    "mailcap.order",
    "manpath.config",
    "maven/m2.conf",
    "maven/logging",
    "mime.types",
    "mke2fs.conf",
    "nanorc",
    "netconfig",
    "networks",
    "nsswitch.conf",
    "openmpi*",
    "os-release",
    "pacman.conf",
    "pacman.d/mirrorlist",
    "pam.conf",
    "pam.d",
    "papersize",
    "perl",
    "php*",
    "pkcs11",
    "pki/ca-trust",
    "pki/rpm-gpg",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "postgresql-common/createcluster.conf",
    "postgresql-common/user_clusters",
    "profile",
    "profile.d/bash_completion.sh",
    "profile.d/debuginfod*",
    "profile.d/lang*",
    "profile.d/vte*",
    "protocols",
    "python*",
    "redhat-release",
    "rmt",
    "rpc",
    "rpm",
    "ruby*",
    "security/access.conf",
    "security/capability.conf",
    "security/faillock.conf",
    "security/group.conf",
    "security/limits.conf",
    "security/limits.d",
    "security/namespace.conf",
    "security/namespace.d",
    "security/namespace.init",
    "security/pam_env.conf",
    "security/sepermit.conf",
    "security/time.conf",
    "selinux/semanage.conf",
    "sensors3.conf",
    "services",
    "sgml",
    "shells",
    "skel",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/ct_log_list.cnf",
    "ssl/openssl.cnf",
    "sysctl.conf",
    "system-release",
    "terminfo",
    "timezone",
    "tmpfiles.d",
    "ucf.conf",
    "vim",
    "vimrc",
    "xattr.conf",
    "xdg",
    "xml",
    "yum.repos.d",
    "zsh*",
];

/// Names that are left out wherever they turn up below an entry of [`ETC`]: a second fence.
/// `*` at either end stands for any text; compared without regard to case.
pub(super) const NEVER_NAMES: &[&str] = &[
    "shadow*",
    "gshadow*",
    "opasswd*",
    "sudoers*",
    "ssh",
    "private",
    "private-keys*",
    "*_key",
    "*.key",
    "*.p12",
    "*.pfx",
    "*.jks",
    "*.kdbx",
    "*.keytab",
    "*password*",
    "*passwd*",
    "*secret*",
    "*credential*",
    "*token*",
    "auth.conf*",
    ".netrc",
    "netrc",
    ".git-credentials",
    ".pgpass",
    "networkmanager",
    "docker",
    "kubernetes",
    "wireguard",
    "machine-id",
    "openvpn",
    "ipsec*",
    "krb5*",
    "samba",
    "*htpasswd*",
    ".dockercfg",
    ".npmrc",
    "npmrc",
    ".pypirc",
    "wgetrc",
];

/// Directories of `/etc` whose file names say nothing: PAM's services are called `passwd` and `common-password`.
pub(super) const ANY_NAMES: &[&str] = &["pam.d"];

/// Largest single file copied from `/etc`.
pub(super) const ETC_FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most entries copied from `/etc`.
pub(super) const ETC_ENTRIES_MAX: usize = 100_000;
/// Deepest directory copied from `/etc`.
pub(super) const ETC_DEPTH_MAX: usize = 16;

/// Directories made fresh and empty: path, mode, uid, gid.
pub(super) const EMPTY: &[(&str, u32, u32, u32)] = &[
    ("boot", 0o755, 0, 0),
    ("dev", 0o755, 0, 0),
    ("dev/pts", 0o755, 0, 0),
    ("dev/shm", 0o1777, 0, 0),
    ("dev/mqueue", 0o1777, 0, 0),
    ("etc", 0o755, 0, 0),
    ("home", 0o755, 0, 0),
    ("media", 0o755, 0, 0),
    ("mnt", 0o755, 0, 0),
    ("opt", 0o755, 0, 0),
    ("proc", 0o555, 0, 0),
    ("root", 0o700, 0, 0),
    ("run", 0o755, 0, 0),
    ("run/lock", 0o1777, 0, 0),
    ("srv", 0o755, 0, 0),
    ("sys", 0o555, 0, 0),
    ("tmp", 0o1777, 0, 0),
    ("usr", 0o755, 0, 0),
    ("var", 0o755, 0, 0),
    ("var/backups", 0o755, 0, 0),
    ("var/cache", 0o755, 0, 0),
    ("var/cache/apt", 0o755, 0, 0),
    ("var/cache/apt/archives", 0o755, 0, 0),
    ("var/cache/apt/archives/partial", 0o700, 42, 0),
    ("var/cache/debconf", 0o755, 0, 0),
    ("var/cache/ldconfig", 0o700, 0, 0),
    ("var/lib", 0o755, 0, 0),
    ("var/lib/misc", 0o755, 0, 0),
    ("var/lib/dpkg", 0o755, 0, 0),
    ("var/lib/apt", 0o755, 0, 0),
    ("var/lib/ucf", 0o755, 0, 0),
    ("var/local", 0o755, 0, 0),
    ("var/log", 0o755, 0, 0),
    ("var/log/apt", 0o755, 0, 0),
    ("var/mail", 0o2775, 0, 8),
    ("var/opt", 0o755, 0, 0),
    ("var/spool", 0o755, 0, 0),
    ("var/tmp", 0o1777, 0, 0),
    ("workspace", 0o755, 1000, 1000),
    (".branchbox", 0o755, 0, 0),
];

/// Empty files made fresh: mount points of single files, and files whose absence upsets programs.
pub(crate) const EMPTY_FILES: &[&str] = &[
    "dev/null",
    "dev/zero",
    "dev/full",
    "dev/random",
    "dev/urandom",
    "dev/tty",
    ".branchbox/guest",
    "etc/machine-id",
    "etc/fstab",
];

/// Symlinks made fresh: path and what it says.
pub(crate) const SYMLINKS: &[(&str, &str)] = &[
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
    ("etc/mtab", "/proc/self/mounts"),
    ("var/run", "/run"),
    ("var/lock", "/run/lock"),
];

/// Files of ours in `/etc`: path and content. Written after the copy, over what the host had.
pub(crate) const OUR_FILES: &[(&str, &str)] = &[
    ("etc/hostname", "branchbox\n"),
    ("etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n"),
    ("etc/resolv.conf", "# this sandbox has no name server\noptions timeout:1 attempts:1\n"),
    ("etc/environment", "LANG=C.UTF-8\n"),
    ("etc/pip.conf", "[global]\nbreak-system-packages = true\ndisable-pip-version-check = true\n"),
    ("etc/gitconfig", "[safe]\n\tdirectory = *\n"),
];

/// Whether `name` matches `pattern`, which may begin or end with `*`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.to_ascii_lowercase(), name.to_ascii_lowercase());
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(rest.strip_suffix('*').unwrap_or(rest)),
        (Some(end), None) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    }
}

/// Whether an entry of this name may be copied at all.
pub(super) fn may_copy(name: &str) -> bool {
    !NEVER_NAMES.iter().any(|pattern| matches(pattern, name))
}

/// Whether the text holds a URL with a user or password in it, a private key, or a secret assigned to a name.
pub(super) fn looks_like_credentials(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let url_with_user = text.match_indices("://").any(|(at, _)| {
        let rest = &text[at + 3..];
        let end = rest.find(|c: char| c == '/' || c.is_whitespace() || c == '"' || c == '\'').unwrap_or(rest.len());
        rest[..end].contains('@')
    });
    url_with_user || text.contains("PRIVATE KEY-----") || text.lines().any(assigns_secret)
}

/// A line such as `password = x` or `FOO_TOKEN=x` that is no comment.
fn assigns_secret(line: &str) -> bool {
    const WORDS: &[&str] = &["password", "passwd", "_token", "secret", "api_key", "apikey", "access_key"];
    let line = line.trim_start();
    // Values of the sample configuration of OpenSSL, references to variables, and comments are no secrets.
    const FINE: &[&str] = &["A challenge password", "pass:insta", "$", "#"];
    let Some((name, value)) = line.split_once('=') else { return false };
    let value = value.trim();
    let name = name.trim().trim_start_matches("export ").to_ascii_lowercase();
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.:".contains(c));
    let is_fine = value.is_empty() || FINE.iter().any(|fine| value.starts_with(fine));
    is_name && !is_fine && WORDS.iter().any(|word| name.ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_at_both_ends() {
        assert!(matches("java*", "java-17-openjdk") && !matches("java*", "ajava"));
        assert!(matches("*.key", "host.KEY") && matches("*secret*", "my-Secrets.txt"));
        assert!(!may_copy("shadow-") && !may_copy("id_rsa_key") && may_copy("ca-certificates.crt"));
    }

    #[test]
    fn credentials_in_text_are_seen() {
        for bad in [
            "deb https://me:pw@repo.example/ stable main",
            "Acquire::http::Proxy \"http://u@proxy:1\";",
            "-----BEGIN RSA PRIVATE KEY-----",
            "export GITHUB_TOKEN=ghp_1",
            "db_password = hunter2",
        ] {
            assert!(looks_like_credentials(bad.as_bytes()), "{bad}");
        }
        for fine in [
            "deb https://deb.debian.org/debian stable main",
            "# password = none",
            "x@y.org",
            "PASS_MAX_DAYS 9",
            "passwd=$(getent passwd)",
        ] {
            assert!(!looks_like_credentials(fine.as_bytes()), "{fine}");
        }
    }
}
