//! Which directory a step is tried on: the whole git work tree around the current directory, else the directory itself.
//!
//! A directory is refused when showing it would show the machine or a whole home: then `try` would hand the step every key
//! the user has. A `.git` file (a linked work tree, a submodule) names a repository elsewhere, which is shown read-only.

use crate::fault::Fault;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Directories that are no project, though what lies inside may be one.
const TOO_WIDE: &[&str] =
    &["/", "/usr", "/var", "/opt", "/home", "/root", "/srv", "/mnt", "/media", "/tmp", "/var/tmp", "/workspace"];
/// Directories in which nothing is a project.
const SYSTEM: &[&str] =
    &["/etc", "/proc", "/sys", "/dev", "/run", "/boot", "/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/lib"];
/// Largest `.git` or `commondir` file.
const GIT_FILE_BYTES_MAX: u64 = 16 * 1024;

/// What the step works on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// Mounted at this path.
    pub top: PathBuf,
    /// The step's working directory, at or below `top`.
    pub cwd: PathBuf,
    /// Host uid and gid of `top`.
    pub owner: (u32, u32),
    /// A repository outside of `top` that belongs to it.
    pub repository: Option<PathBuf>,
}

impl Directory {
    /// Finds the directory around `cwd`.
    ///
    /// # Errors
    /// A [`Fault`] when it is no place to try a step.
    pub fn find(cwd: &Path, home: &Path) -> Result<Self, Fault> {
        let cwd = fs_err::canonicalize(cwd)
            .map_err(|error| Fault::cannot_run("cannot find the current directory").because(&error))?;
        if let Some(why) = refused(&cwd, home) {
            return Err(Fault::cannot_run(format!("cannot try a step in {}", cwd.display()))
                .cause(why)
                .hint("change to the project's own directory and try again"));
        }
        let top = work_tree(&cwd, home).unwrap_or_else(|| cwd.clone());
        let facts = fs_err::metadata(&top)
            .map_err(|error| Fault::cannot_run("cannot look at the directory").because(&error))?;
        let repository = repository_elsewhere(&top, home);
        Ok(Self { owner: (facts.uid(), facts.gid()), repository, top, cwd })
    }
}

fn refused(path: &Path, home: &Path) -> Option<&'static str> {
    if home.starts_with(path) {
        return Some("it is or holds your home directory, and a step would see every key in it");
    }
    if TOO_WIDE.iter().any(|wide| path == Path::new(wide)) || SYSTEM.iter().any(|system| path.starts_with(system)) {
        return Some("it belongs to the system");
    }
    None
}

/// The nearest directory upwards that holds `.git`, if it may be shown.
fn work_tree(cwd: &Path, home: &Path) -> Option<PathBuf> {
    let usable = |path: &&Path| refused(path, home).is_none();
    cwd.ancestors().take_while(usable).find(|path| path.join(".git").exists()).map(Path::to_path_buf)
}

/// The repository that a `.git` file names: the common one of a linked work tree, else the directory itself.
fn repository_elsewhere(top: &Path, home: &Path) -> Option<PathBuf> {
    let text = small_file(&top.join(".git"))?;
    let named = text.lines().next()?.strip_prefix("gitdir:")?.trim();
    let git_dir = fs_err::canonicalize(top.join(named)).ok()?;
    let common =
        small_file(&git_dir.join("commondir")).and_then(|text| fs_err::canonicalize(git_dir.join(text.trim())).ok());
    let found = common.filter(|common| git_dir.starts_with(common)).unwrap_or(git_dir);
    // The file is the directory's word: what it names must look like a repository to be shown.
    let is_repository = found.join("HEAD").is_file() && found.join("objects").is_dir();
    (is_repository && refused(&found, home).is_none() && !found.starts_with(top)).then_some(found)
}

fn small_file(path: &Path) -> Option<String> {
    let facts = fs_err::metadata(path).ok()?;
    (facts.is_file() && facts.len() <= GIT_FILE_BYTES_MAX).then(|| fs_err::read_to_string(path).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene() -> (tempfile::TempDir, PathBuf) {
        let scene = tempfile::tempdir_in("/var/tmp").expect("temporary directory");
        let root = fs_err::canonicalize(scene.path()).expect("path");
        for directory in
            ["home/ada/project/src", "home/ada/main/.git/worktrees/w", "home/ada/main/.git/objects", "home/ada/w"]
        {
            fs_err::create_dir_all(root.join(directory)).expect("directory");
        }
        (scene, root)
    }

    #[test]
    fn the_whole_work_tree_is_taken_and_the_working_directory_kept() {
        let (_scene, root) = scene();
        let home = root.join("home/ada");
        fs_err::create_dir(home.join("project/.git")).expect("directory");
        let found = Directory::find(&home.join("project/src"), &home).expect("finds");
        assert_eq!((found.top, found.cwd), (home.join("project"), home.join("project/src")));
        assert_eq!(found.repository, None);
    }

    #[test]
    fn a_home_that_is_a_work_tree_is_not_shown() {
        let (_scene, root) = scene();
        let home = root.join("home/ada");
        fs_err::create_dir(home.join(".git")).expect("directory");
        assert_eq!(Directory::find(&home.join("project/src"), &home).expect("finds").top, home.join("project/src"));
        assert!(Directory::find(&home, &home).is_err());
        assert!(Directory::find(&root, &home).is_err());
        assert!(Directory::find(Path::new("/etc/ssl"), &home).is_err());
    }

    #[test]
    fn a_linked_work_tree_brings_its_repository() {
        let (_scene, root) = scene();
        let home = root.join("home/ada");
        fs_err::write(home.join("main/.git/HEAD"), "ref: x").expect("file");
        fs_err::write(home.join("main/.git/worktrees/w/commondir"), "../..\n").expect("file");
        fs_err::write(home.join("w/.git"), "gitdir: ../main/.git/worktrees/w\n").expect("file");
        assert_eq!(Directory::find(&home.join("w"), &home).expect("finds").repository, Some(home.join("main/.git")));
    }

    #[test]
    fn a_git_file_cannot_show_what_is_no_repository() {
        let (_scene, root) = scene();
        let home = root.join("home/ada");
        fs_err::create_dir(home.join(".ssh")).expect("directory");
        fs_err::write(home.join("w/.git"), "gitdir: ../.ssh\n").expect("file");
        assert_eq!(Directory::find(&home.join("w"), &home).expect("finds").repository, None);
    }
}
