//! The variables a step gets: the caller's `PATH`, locale and toolchain variables, and no other.
//!
//! Tokens live in environments. So this too is an allow-list; what the caller wants to hand over beyond it goes into the
//! step itself (`-- 'VAR=x make test'`).

use std::collections::BTreeMap;

/// Variables that are handed over when the caller has them.
pub const HANDED: &[&str] = &[
    // locale
    "LANG",
    "LANGUAGE",
    "TZ",
    // Rust
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CARGO_BUILD_JOBS",
    "RUST_BACKTRACE",
    // Node
    "NVM_DIR",
    "NVM_BIN",
    "VOLTA_HOME",
    "FNM_DIR",
    "NODE_ENV",
    "PNPM_HOME",
    "BUN_INSTALL",
    "DENO_INSTALL",
    "DENO_DIR",
    // Python
    "VIRTUAL_ENV",
    "PYENV_ROOT",
    "PYENV_VERSION",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "UV_CACHE_DIR",
    "PIP_CACHE_DIR",
    "PYTHONPATH",
    "PYTHONUNBUFFERED",
    "PYTHONDONTWRITEBYTECODE",
    // Go, JVM, C
    "GOPATH",
    "GOROOT",
    "GOCACHE",
    "GOFLAGS",
    "GOTOOLCHAIN",
    "JAVA_HOME",
    "CC",
    "CXX",
    "CFLAGS",
    "CXXFLAGS",
    "LDFLAGS",
    "MAKEFLAGS",
    "PKG_CONFIG_PATH",
    "CMAKE_PREFIX_PATH",
    // version managers
    "MISE_DATA_DIR",
    "ASDF_DATA_DIR",
    "ASDF_DIR",
];

/// Prefix of the locale categories.
const LOCALE: &str = "LC_";
/// Most variables handed over: a command takes 64.
const HANDED_MAX: usize = 56;
/// Longest value handed over; longer ones are no toolchain's.
const VALUE_BYTES_MAX: usize = 32 * 1024;

/// What the step's environment is made from.
#[derive(Debug)]
pub struct Given<'a> {
    /// `PATH` as the step gets it.
    pub path: String,
    /// The home.
    pub home: &'a str,
    /// Name of the invoking user.
    pub user: &'a str,
}

/// The step's variables.
#[must_use]
pub fn of_step(caller: impl Iterator<Item = (String, String)>, given: &Given<'_>) -> BTreeMap<String, String> {
    let handed = |name: &str| HANDED.contains(&name) || name.starts_with(LOCALE);
    let fits = |value: &str| value.len() <= VALUE_BYTES_MAX && !value.contains('\0');
    let mut variables: BTreeMap<_, _> =
        caller.filter(|(name, value)| handed(name) && fits(value)).take(HANDED_MAX).collect();
    variables.insert("PATH".into(), given.path.clone());
    variables.insert("HOME".into(), given.home.to_owned());
    variables.insert("USER".into(), given.user.to_owned());
    variables.insert("LOGNAME".into(), given.user.to_owned());
    // A look at the state (`git status`) must not count as a change of `.git/index`.
    variables.insert("GIT_OPTIONAL_LOCKS".into(), "0".into());
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stay_outside() {
        let caller = [
            ("PATH", "/evil"),
            ("LANG", "de_DE.UTF-8"),
            ("LC_ALL", "C"),
            ("GITHUB_TOKEN", "t"),
            ("AWS_SECRET_ACCESS_KEY", "s"),
            ("SSH_AUTH_SOCK", "/s"),
            ("CARGO_HOME", "/c"),
            ("CARGO_REGISTRY_TOKEN", "t"),
            ("LD_PRELOAD", "/x.so"),
            ("BASH_ENV", "/x"),
            ("HOME", "/elsewhere"),
            ("NPM_TOKEN", "t"),
        ];
        let caller = caller.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = Given { path: "/usr/bin".into(), home: "/home/ada", user: "ada" };
        let step = of_step(caller.into_iter(), &given);
        let shown: Vec<_> = step.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            shown,
            [
                "CARGO_HOME=/c",
                "GIT_OPTIONAL_LOCKS=0",
                "HOME=/home/ada",
                "LANG=de_DE.UTF-8",
                "LC_ALL=C",
                "LOGNAME=ada",
                "PATH=/usr/bin",
                "USER=ada"
            ]
        );
    }
}
