//! What the step's machine is made of beside the host image: the directory, a home, the user's tools.
//!
//! Everything is an overlay whose lower is the host's own directory, so that starting costs the same for ten files or a
//! million and nothing on the host is written. Host owners appear as the sandbox's user, who runs the step.
//!
//! Not here: how the mounts are made (`layers`), and who may see what ([`super::home`], [`super::mask`]).

use super::directory::Directory;
use super::home::{self, Caller, Shown};
use super::mask::Masked;
use super::user::Invoker;
use branchbox_layers::assemble::has_id_mapped_mounts;
use branchbox_layers::{Copied, copy_tree};
use branchbox_model::{Bind, IdRange, Tree};
use branchbox_node::RootExtras;
use std::collections::HashMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

/// Name of the directory's tree: its upper holds what the step changed.
pub const REPO_TREE: &str = "repo";
/// The directory's second name.
pub const SECOND_NAME: &str = "/workspace/repo";
/// The user inside, and its group.
pub const INSIDE: (u32, u32) = (1000, 1000);
/// Most toolchain directories that are shown.
const SHOWN_MAX: usize = 48;
/// Most files of toolchains that are covered.
const COVERED_MAX: usize = 64;
/// Longest value taken from a git configuration.
const IDENTITY_BYTES_MAX: usize = 256;

/// The parts, and what a report says of them.
#[derive(Debug)]
pub struct Machine {
    /// For the node.
    pub extras: RootExtras,
    /// `PATH` as the step gets it.
    pub path: String,
    /// How many toolchain directories are shown.
    pub tools: usize,
    /// What had to be copied because the directory's file system has no id-mapped mounts.
    pub copied: Option<Copied>,
}

/// Describes the machine; makes the empty home and the covers below `scratch`.
///
/// # Errors
/// When those cannot be made.
pub fn describe(
    directory: &Directory,
    invoker: &Invoker,
    caller: &Caller<'_>,
    masked: &[Masked],
    scratch: &Path,
) -> std::io::Result<Machine> {
    let mut shown = caller.shown();
    // What lies inside the directory is there anyway, and what lies over it would hide it.
    shown.retain(|shown| !shown.target.starts_with(&directory.top) && !directory.top.starts_with(&shown.target));
    // Without id-mapped mounts the host's owners would be nobody's inside.
    let mut mappable = Mappable::default();
    shown.retain(|shown| mappable.is(&shown.source));
    shown.truncate(SHOWN_MAX);
    let owner = (invoker.uid, invoker.gid);
    let mut extras = RootExtras::default();
    if invoker.has_home() {
        let repository = directory.repository.as_deref();
        let inside =
            shown.iter().map(|shown| shown.target.as_path()).chain([directory.top.as_path()]).chain(repository);
        let home = empty_home(&scratch.join("home"), &invoker.home, inside)?;
        extras.trees.push(tree("home".into(), home, invoker.home.clone(), INSIDE));
    }
    for (index, Shown { target, source }) in shown.iter().enumerate() {
        extras.trees.push(tree(format!("tools{index}"), source.clone(), target.clone(), owner));
    }
    let (lower, copied) = lower_of(directory, mappable.is(&directory.top), scratch)?;
    extras.trees.push(tree(REPO_TREE.into(), lower, directory.top.clone(), directory.owner));
    if let Some(repository) = &directory.repository {
        extras.binds.push(bind(repository.clone(), repository.clone(), directory.owner));
    }
    let covers = Covers::make(&scratch.join("covers"))?;
    let credentials =
        shown.iter().flat_map(|shown| home::covered(&shown.source).into_iter().map(|path| shown.target.join(path)));
    extras.binds.extend(credentials.take(COVERED_MAX).map(|path| covers.over(path, false)));
    extras.binds.extend(masked.iter().map(|masked| covers.over(directory.top.join(&masked.path), masked.is_dir)));
    let path = caller.path_with_tools(&shown);
    Ok(Machine { extras, path, tools: shown.len(), copied })
}

/// The directory itself, or a copy of it where the kernel cannot show its owners as others.
fn lower_of(directory: &Directory, mappable: bool, scratch: &Path) -> std::io::Result<(PathBuf, Option<Copied>)> {
    if mappable {
        return Ok((directory.top.clone(), None));
    }
    let copy = scratch.join("directory");
    let copied = copy_tree(&directory.top, &copy, &[]).map_err(std::io::Error::other)?;
    Ok((copy, Some(copied)))
}

/// Which file systems have id-mapped mounts, each asked once.
#[derive(Default)]
struct Mappable(HashMap<u64, bool>);

impl Mappable {
    fn is(&mut self, path: &Path) -> bool {
        let Ok(device) = fs_err::metadata(path).map(|facts| facts.dev()) else { return false };
        // What else may be wrong with it, mounting it will say.
        let ask = || IdRange::of_slot(0).is_none_or(|range| has_id_mapped_mounts(path, range).unwrap_or(true));
        *self.0.entry(device).or_insert_with(ask)
    }
}

fn tree(name: String, lower: PathBuf, target: PathBuf, owner: (u32, u32)) -> Tree {
    Tree { name, lower: vec![lower], target, owner_outside: owner, owner_inside: INSIDE }
}

fn bind(source: PathBuf, target: PathBuf, owner: (u32, u32)) -> Bind {
    Bind { source, target, read_only: true, owner_outside: owner, owner_inside: INSIDE }
}

/// An empty file and an empty directory to lay over what must not be read.
struct Covers {
    file: PathBuf,
    directory: PathBuf,
}

impl Covers {
    fn make(place: &Path) -> std::io::Result<Self> {
        let covers = Self { file: place.join("file"), directory: place.join("directory") };
        fs_err::create_dir_all(&covers.directory)?;
        fs_err::write(&covers.file, "")?;
        Ok(covers)
    }

    fn over(&self, target: PathBuf, is_dir: bool) -> Bind {
        let source = if is_dir { &self.directory } else { &self.file };
        Bind { source: source.clone(), target, read_only: true, owner_outside: (0, 0), owner_inside: (0, 0) }
    }
}

/// A home with nothing in it but a git identity and the directories that others are mounted on.
fn empty_home<'a>(place: &Path, home: &Path, inside: impl Iterator<Item = &'a Path>) -> std::io::Result<PathBuf> {
    fs_err::create_dir_all(place)?;
    for relative in inside.filter_map(|target| target.strip_prefix(home).ok()) {
        fs_err::create_dir_all(place.join(relative))?;
    }
    let config = fs_err::read_to_string(home.join(".gitconfig")).unwrap_or_default();
    fs_err::write(place.join(".gitconfig"), git_config(&config))?;
    own(place)?;
    fs_err::set_permissions(place, std::fs::Permissions::from_mode(0o755))?;
    Ok(place.to_path_buf())
}

/// Everything in the home belongs to the user inside.
fn own(path: &Path) -> std::io::Result<()> {
    lchown(path, Some(INSIDE.0), Some(INSIDE.1))?;
    if path.is_dir() {
        for entry in fs_err::read_dir(path)? {
            own(&entry?.path())?;
        }
    }
    Ok(())
}

/// Of a git configuration only name and email: the rest may hold tokens, helpers and commands.
fn git_config(host: &str) -> String {
    let mut section = String::new();
    let mut text = String::from("[safe]\n\tdirectory = *\n[user]\n");
    for line in host.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').trim().to_ascii_lowercase();
        } else if let Some((key, value)) = line.split_once('=').filter(|_| section == "user") {
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            let plain = value.len() <= IDENTITY_BYTES_MAX
                && !value.contains(['"', '\\'])
                && !value.chars().any(char::is_control);
            if (key == "name" || key == "email") && plain {
                text.push_str(&format!("\t{key} = \"{value}\"\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_git_configuration_only_name_and_email_come_along() {
        let host = "[user]\n\tname = Ada L\n\temail = ada@example.org\n\tsigningkey = K\n[credential]\n\thelper = store\n\
            [http]\n\textraheader = Authorization: t\n[alias]\n\tname = !sh\n";
        assert_eq!(
            git_config(host),
            "[safe]\n\tdirectory = *\n[user]\n\tname = \"Ada L\"\n\temail = \"ada@example.org\"\n"
        );
    }

    #[test]
    fn the_machine_is_the_directory_the_home_and_the_tools() {
        let scene = tempfile::tempdir_in("/var/tmp").expect("temporary directory");
        let root = fs_err::canonicalize(scene.path()).expect("path");
        let (home, project) = (root.join("ada"), root.join("ada/project"));
        for directory in [&project, &home.join(".cargo/bin"), &home.join(".nvm"), &home.join(".ssh")] {
            fs_err::create_dir_all(directory).expect("directory");
        }
        fs_err::write(home.join(".nvm/.npmrc"), "token").expect("file");
        let invoker = Invoker { name: "ada".into(), uid: 1001, gid: 1002, home: home.clone() };
        let directory = Directory { top: project.clone(), cwd: project.clone(), owner: (1001, 1002), repository: None };
        let none = |_: &str| None;
        let caller = Caller { home: &home, path: "/usr/bin", variable: &none };
        let masked = [Masked { path: ".env".into(), is_dir: false }];
        let machine = describe(&directory, &invoker, &caller, &masked, &root.join("scratch")).expect("describes");
        let targets: Vec<_> =
            machine.extras.trees.iter().map(|tree| (tree.name.as_str(), tree.target.clone())).collect();
        let expected = [
            ("home", home.clone()),
            ("tools0", home.join(".cargo/bin")),
            ("tools1", home.join(".nvm")),
            ("repo", project.clone()),
        ];
        assert_eq!(targets, expected);
        let covered: Vec<_> = machine.extras.binds.iter().map(|bind| bind.target.clone()).collect();
        assert_eq!(covered, [home.join(".nvm/.npmrc"), project.join(".env")]);
        let made = root.join("scratch/home");
        assert!(made.join("project").is_dir() && made.join(".cargo/bin").is_dir() && !made.join(".ssh").exists());
    }
}
