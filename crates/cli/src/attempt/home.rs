//! What of the user's home a step may see: one list of toolchains, and nothing else.
//!
//! A step needs the compilers and package caches the user has; it does not need the user. So the step's home is empty but
//! for the directories below, each the read-only lower of an overlay: tools may write beside themselves, the host never
//! sees it. Allow-list, not deny-list: what nobody thought of is hidden.
//!
//! Invariant: nothing that can hold a credential is on [`TOOLCHAINS`], and a `PATH` entry that lies in or above a place of
//! [`NEVER`] is not shown. Files of a name in [`NEVER_FILES`] inside what is shown are covered.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// One toolchain's place in a home.
#[derive(Debug)]
pub struct Toolchain {
    /// The variable that moves it elsewhere.
    pub variable: Option<&'static str>,
    /// Where it is in a home when no variable says otherwise.
    pub home: &'static str,
    /// The parts of it that are shown; an empty text is all of it.
    pub shown: &'static [&'static str],
}

const fn tool(variable: Option<&'static str>, home: &'static str, shown: &'static [&'static str]) -> Toolchain {
    Toolchain { variable, home, shown }
}

const WHOLE: &[&str] = &[""];

/// The list.
pub const TOOLCHAINS: &[Toolchain] = &[
    tool(Some("CARGO_HOME"), ".cargo", &["bin", "registry", "git"]),
    tool(Some("RUSTUP_HOME"), ".rustup", WHOLE),
    tool(Some("NVM_DIR"), ".nvm", WHOLE),
    tool(Some("VOLTA_HOME"), ".volta", WHOLE),
    tool(Some("FNM_DIR"), ".local/share/fnm", WHOLE),
    tool(Some("PYENV_ROOT"), ".pyenv", WHOLE),
    tool(None, ".local", &["bin", "lib"]),
    tool(None, ".local/share/uv", WHOLE),
    tool(Some("UV_CACHE_DIR"), ".cache/uv", WHOLE),
    tool(Some("PIP_CACHE_DIR"), ".cache/pip", WHOLE),
    tool(None, ".local/share/pipx", &["venvs", "shared"]),
    tool(Some("MISE_DATA_DIR"), ".local/share/mise", WHOLE),
    tool(Some("ASDF_DATA_DIR"), ".asdf", WHOLE),
    tool(Some("GOPATH"), "go", &["bin", "pkg"]),
    tool(Some("GOCACHE"), ".cache/go-build", WHOLE),
    tool(Some("BUN_INSTALL"), ".bun", &["bin", "install"]),
    tool(Some("DENO_INSTALL"), ".deno", &["bin"]),
    tool(Some("DENO_DIR"), ".cache/deno", WHOLE),
    tool(None, ".npm", &["_cacache"]),
    tool(Some("PNPM_HOME"), ".local/share/pnpm", WHOLE),
    tool(None, ".sdkman", &["candidates"]),
    tool(None, "miniconda3", WHOLE),
    tool(None, "anaconda3", WHOLE),
    tool(None, "miniforge3", WHOLE),
    tool(None, "mambaforge", WHOLE),
    tool(None, ".conda", &["envs", "pkgs"]),
];

/// Places of a home that are never shown, whatever names them.
pub const NEVER: &[&str] = &[
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config",
    ".docker",
    ".kube",
    ".password-store",
    ".mozilla",
    ".terraform.d",
    ".local/share/keyrings",
    ".vault-token",
    ".oci",
    ".boto",
    ".s3cfg",
    ".pki",
    ".thunderbird",
    ".gsutil",
];

/// Names of files that are covered wherever a shown toolchain holds them near its top.
pub const NEVER_FILES: &[&str] = &[
    "credentials",
    "credentials.toml",
    "credentials.json",
    "credentials.tfrc.json",
    ".npmrc",
    ".pypirc",
    ".netrc",
    "_netrc",
    ".git-credentials",
    ".condarc",
    ".env",
];

/// Host directories outside any home that the image brings already, or that are not for showing.
const SYSTEM: &[&str] = &[
    "/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/run", "/var", "/boot", "/tmp",
];

/// How deep below a shown directory [`NEVER_FILES`] are looked for; deeper ones belong to packages, not to people.
const COVER_DEPTH: usize = 2;
/// Most directories looked into for it.
const COVER_DIRECTORIES_MAX: usize = 4096;

/// A directory of the host that the step sees.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shown {
    /// Where the step sees it.
    pub target: PathBuf,
    /// What it is on the host, symlinks resolved.
    pub source: PathBuf,
}

/// The caller's surroundings, read once.
pub struct Caller<'a> {
    /// The home directory.
    pub home: &'a Path,
    /// `PATH`.
    pub path: &'a str,
    /// A variable's value.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Caller<'_> {
    /// Every directory to show: the toolchains that exist, then what `PATH` names, none inside another.
    #[must_use]
    pub fn shown(&self) -> Vec<Shown> {
        let mut found = BTreeSet::new();
        for toolchain in TOOLCHAINS {
            let root = toolchain.variable.and_then(self.variable).filter(|value| value.starts_with('/'));
            let root = root.map_or_else(|| self.home.join(toolchain.home), PathBuf::from);
            for part in toolchain.shown {
                // `GOPATH` and its like may name the home itself: a part of it then, never all.
                let target = if part.is_empty() { root.clone() } else { root.join(part) };
                found.extend(self.show(&target));
            }
        }
        for entry in self.path.split(':').map(Path::new) {
            found.extend(self.show(&prefix_of(entry)));
        }
        outermost(found)
    }

    /// The directory, if it exists, may be shown and is not in the image anyway.
    fn show(&self, target: &Path) -> Option<Shown> {
        let plain = target.components().all(|part| !matches!(part, std::path::Component::ParentDir));
        if !target.is_absolute() || !plain || !self.may_show(target) {
            return None;
        }
        let source = fs_err::canonicalize(target).ok().filter(|source| source.is_dir())?;
        let known = ["/usr", "/opt"].iter().any(|image| source.starts_with(image)) && source == target;
        (!known && (self.may_show(&source) || source.starts_with("/usr") || source.starts_with("/opt")))
            .then(|| Shown { target: target.components().collect(), source })
    }

    fn may_show(&self, path: &Path) -> bool {
        let above_home = self.home.starts_with(path);
        let secret = NEVER.iter().map(|place| self.home.join(place));
        let mut secret = secret.filter(|secret| path.starts_with(secret) || secret.starts_with(path));
        let system = path.parent().is_none() || SYSTEM.iter().any(|system| path.starts_with(system));
        // Under sudo, `PATH` may name another home, whose secret places have the same names.
        let secret_name = path.components().any(|part| NEVER.iter().any(|place| part.as_os_str() == *place));
        !above_home && !secret_name && secret.next().is_none() && (!system || path.starts_with(self.home))
    }

    /// `bin` directories of toolchains that `PATH` lacks, as under `sudo`, which resets it.
    #[must_use]
    pub fn path_with_tools(&self, shown: &[Shown]) -> String {
        let mut path: Vec<String> =
            self.path.split(':').filter(|entry| entry.starts_with('/')).map(str::to_owned).collect();
        let bins =
            [".local/bin", ".cargo/bin", "go/bin", ".bun/bin", ".deno/bin", ".volta/bin", ".pyenv/shims", ".pyenv/bin"];
        for bin in bins.iter().map(|bin| self.home.join(bin)) {
            let text = bin.to_string_lossy().into_owned();
            if shown.iter().any(|shown| bin.starts_with(&shown.target)) && bin.is_dir() && !path.contains(&text) {
                path.push(text);
            }
        }
        path.join(":")
    }
}

/// A virtual environment's or conda's `bin` is of no use without what is beside it.
fn prefix_of(bin: &Path) -> PathBuf {
    let whole = |prefix: &&Path| prefix.join("pyvenv.cfg").exists() || prefix.join("conda-meta").is_dir();
    bin.parent().filter(|_| bin.ends_with("bin")).filter(whole).unwrap_or(bin).to_path_buf()
}

/// Drops what lies inside something else of the list.
fn outermost(found: BTreeSet<Shown>) -> Vec<Shown> {
    let mut kept: Vec<Shown> = Vec::new();
    for shown in found {
        // Sorted, so that an outer directory comes before what it holds.
        if !kept.iter().any(|outer| shown.target.starts_with(&outer.target)) {
            kept.push(shown);
        }
    }
    kept
}

/// Files inside what is shown that a step must not read, as paths relative to `source`.
#[must_use]
pub fn covered(source: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = COVER_DIRECTORIES_MAX;
    let mut queue = vec![(PathBuf::new(), 0)];
    while let Some((relative, depth)) = queue.pop().filter(|_| left > 0) {
        left -= 1;
        let Ok(entries) = fs_err::read_dir(source.join(&relative)) else { continue };
        for entry in entries.flatten() {
            let path = relative.join(entry.file_name());
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_dir && depth < COVER_DEPTH {
                queue.push((path, depth + 1));
            } else if !is_dir && entry.file_name().to_str().is_some_and(|name| NEVER_FILES.contains(&name)) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home_with(directories: &[&str]) -> tempfile::TempDir {
        let home = tempfile::tempdir_in("/var/tmp").expect("temporary directory");
        for directory in directories {
            fs_err::create_dir_all(home.path().join(directory)).expect("directory");
        }
        home
    }

    fn shown(home: &Path, path: &str) -> Vec<PathBuf> {
        let none = |_: &str| None;
        let caller = Caller { home, path, variable: &none };
        let relative = |shown: Shown| shown.target.strip_prefix(home).map_or(shown.target.clone(), Path::to_path_buf);
        caller.shown().into_iter().map(relative).collect()
    }

    #[test]
    fn no_toolchain_of_the_list_can_hold_a_credential() {
        for toolchain in TOOLCHAINS {
            for part in toolchain.shown {
                let path = Path::new(toolchain.home).join(part);
                assert!(!toolchain.home.is_empty());
                for secret in
                    NEVER.iter().chain(&[".cargo/credentials.toml", ".npmrc", ".pypirc", ".netrc", ".gitconfig"])
                {
                    assert!(!Path::new(secret).starts_with(&path), "{} would show {secret}", path.display());
                    assert!(!path.starts_with(secret), "{} is inside {secret}", path.display());
                }
            }
        }
    }

    #[test]
    fn only_toolchains_are_shown() {
        let home =
            home_with(&[".cargo/bin", ".cargo/registry", ".ssh", ".aws", "documents", ".config/gh", ".local/bin"]);
        let names: Vec<_> = [".cargo/bin", ".cargo/registry", ".local/bin"].map(PathBuf::from).into();
        assert_eq!(shown(home.path(), "/usr/bin:/bin"), names);
    }

    #[test]
    fn path_entries_are_shown_unless_they_are_secret_or_the_home_itself() {
        let home = home_with(&["tools/bin", "other/.ssh/bin", ".ssh/bin", ".config/x/bin", "env/bin"]);
        fs_err::write(home.path().join("env/pyvenv.cfg"), "").expect("file");
        let at = |part: &str| home.path().join(part).display().to_string();
        let path = [
            at("tools/bin"),
            at("other/.ssh/bin"),
            at(".ssh/bin"),
            at(".config/x/bin"),
            at(""),
            at("env/bin"),
            "/".into(),
            "/etc".into(),
            "relative/bin".into(),
            at("tools/../.ssh"),
        ]
        .join(":");
        assert_eq!(shown(home.path(), &path), [PathBuf::from("env"), PathBuf::from("tools/bin")]);
    }

    #[test]
    fn a_link_into_a_secret_place_is_not_followed() {
        let home = home_with(&[".ssh"]);
        std::os::unix::fs::symlink(".ssh", home.path().join("bin")).expect("link");
        assert_eq!(shown(home.path(), &home.path().join("bin").display().to_string()), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_variable_moves_a_toolchain_and_cannot_show_the_home() {
        let home = home_with(&["cargo/bin", "cargo/credentials"]);
        let cargo = home.path().join("cargo").display().to_string();
        let all = home.path().display().to_string();
        let variable = move |name: &str| match name {
            "CARGO_HOME" => Some(cargo.clone()),
            "RUSTUP_HOME" => Some(all.clone()),
            _ => None,
        };
        let caller = Caller { home: home.path(), path: "", variable: &variable };
        let targets: Vec<_> = caller.shown().into_iter().map(|shown| shown.target).collect();
        assert_eq!(targets, [home.path().join("cargo/bin")]);
    }

    #[test]
    fn credentials_near_the_top_of_a_toolchain_are_covered() {
        let home = home_with(&[".nvm/versions"]);
        fs_err::write(home.path().join(".nvm/.npmrc"), "token").expect("file");
        fs_err::write(home.path().join(".nvm/versions/credentials.json"), "token").expect("file");
        fs_err::write(home.path().join(".nvm/nvm.sh"), "").expect("file");
        let found = covered(&home.path().join(".nvm"));
        assert_eq!(found, [PathBuf::from(".npmrc"), PathBuf::from("versions/credentials.json")]);
    }

    #[test]
    fn sudo_loses_no_tools() {
        let home = home_with(&[".cargo/bin", ".local/bin"]);
        let none = |_: &str| None;
        let caller = Caller { home: home.path(), path: "/usr/bin:.:bin", variable: &none };
        let shown = caller.shown();
        let home = home.path().display();
        assert_eq!(caller.path_with_tools(&shown), format!("/usr/bin:{home}/.local/bin:{home}/.cargo/bin"));
    }
}
