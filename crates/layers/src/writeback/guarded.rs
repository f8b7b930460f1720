//! Files that the host runs by itself: hooks, editor tasks, directory environments, shell start files.
//!
//! A step that passes may still have planted one of these, and it would run outside the sandbox the next time somebody
//! enters the directory. Such changes are shown apart, are not covered by a plain yes and need a word of their own.

use std::path::Path;

/// The one list. A pattern matches at any depth; `*` at an end of a component stands for any text, `**` as the last
/// component for the thing itself and everything below it. Compared without regard to case.
pub const GUARDED: &[&str] = &[
    // git runs or obeys these
    ".git/hooks/**",
    ".git/config",
    ".git/config.worktree",
    ".git/commondir",
    ".git/gitdir",
    ".git/info/attributes",
    ".gitconfig",
    ".gitmodules",
    ".githooks/**",
    ".husky/**",
    ".lefthook/**",
    "lefthook.y*",
    ".pre-commit-config.y*",
    ".hg/hgrc",
    // environments of a directory
    ".envrc",
    ".direnv/**",
    ".mise.toml",
    ".mise.local.toml",
    "mise.toml",
    ".mise/**",
    ".tool-versions",
    ".autoenv*",
    // editors and their tasks
    ".vscode/**",
    ".idea/**",
    ".zed/**",
    ".fleet/**",
    ".devcontainer/**",
    ".devcontainer.json",
    "*.code-workspace",
    ".exrc",
    ".vimrc",
    ".nvimrc",
    ".nvim.lua",
    ".vim/**",
    ".dir-locals.el",
    ".dir-locals-2.el",
    ".sublime-project",
    "*.sublime-project",
    // agents
    ".claude/**",
    ".cursor/**",
    ".mcp.json",
    ".codex/**",
    ".gemini/**",
    ".aider*",
    // tools that load code from the directory they are started in
    ".cargo/config",
    ".cargo/config.toml",
    ".gdbinit",
    ".lldbinit",
    ".npmrc",
    ".yarnrc*",
    ".yarn/releases/**",
    ".pnpmfile.cjs",
    ".bazelrc",
    ".bundle/config",
    ".irbrc",
    ".pryrc",
    "sitecustomize.py",
    "usercustomize.py",
    // shells, when the directory is a home
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
    ".zlogout",
    ".inputrc",
    ".config/fish/**",
    ".config/systemd/**",
    ".config/autostart/**",
    ".config/git/**",
    ".ssh/**",
    ".gnupg/**",
    ".local/bin/**",
    ".pam_environment",
    ".xprofile",
    ".xinitrc",
    ".xsession*",
];

/// Whether writing `path` needs a word of its own. `is_directory`: a plain directory is made, which runs nothing.
#[must_use]
pub fn is_guarded(path: &Path, is_directory: bool) -> bool {
    if is_directory {
        return false;
    }
    let names: Vec<String> =
        path.components().map(|part| part.as_os_str().to_string_lossy().to_ascii_lowercase()).collect();
    in_git_directory(&names)
        || GUARDED.iter().any(|pattern| {
            let parts: Vec<&str> = pattern.split('/').collect();
            (0..names.len()).any(|start| matches_at(&parts, &names[start..]))
        })
}

/// Hooks and configuration of submodules and work trees lie anywhere below `.git`.
fn in_git_directory(names: &[String]) -> bool {
    let Some(git) = names.iter().position(|name| name == ".git") else { return false };
    let below = &names[git + 1..];
    let last = below.last().map_or("", String::as_str);
    below.iter().any(|name| name == "hooks") || matches!(last, "config" | "config.worktree" | "commondir" | "gitdir")
}

/// What is no directory at the place of a pattern's directory (a symlink, or git's `.git` file) could provide the rest.
fn matches_at(pattern: &[&str], names: &[String]) -> bool {
    for (index, part) in pattern.iter().enumerate() {
        if *part == "**" {
            return true;
        }
        match names.get(index) {
            Some(name) if part_matches(part, name) => {}
            Some(_) => return false,
            None => return index > 0,
        }
    }
    names.len() == pattern.len()
}

fn part_matches(part: &str, name: &str) -> bool {
    match (part.strip_prefix('*'), part.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_runs_is_guarded_wherever_it_lies() {
        for path in [
            ".git/hooks/pre-commit",
            ".git/config",
            "sub/.git/hooks/x",
            ".git/modules/lib/hooks/post-checkout",
            ".git/modules/lib/config",
            ".GIT/Config",
            ".envrc",
            "a/.envrc",
            ".vscode/tasks.json",
            ".idea/x/y",
            // a symlink or file in the place of a directory
            ".git",
            ".git/hooks",
            ".vscode",
            ".husky",
            ".config",
        ] {
            assert!(is_guarded(Path::new(path), false), "{path}");
        }
        for path in
            ["src/main.rs", ".git/index", ".git/objects/ab/cd", ".gitignore", "config", "hooks/x", "README.md", ".env"]
        {
            assert!(!is_guarded(Path::new(path), false), "{path}");
        }
        assert!(!is_guarded(Path::new(".git"), true));
    }
}
