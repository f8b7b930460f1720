//! `--mask`: which files of the directory a step must not read.
//!
//! A pattern without a slash matches a name at any depth, one with a slash matches the path from the directory's top, as
//! people know it from `.gitignore`: `*` within a component, `**` over any number of them, `?` for one character.
//! A matched directory is covered whole. The walk is bounded; a mask that cannot be carried out whole is refused, because
//! half a mask is none.

use std::path::{Path, PathBuf};

/// Most entries the walk looks at.
const ENTRIES_MAX: usize = 2_000_000;
/// Most paths that can be covered: each is a mount.
pub const MASKED_MAX: usize = 128;
/// Longest pattern.
const PATTERN_BYTES_MAX: usize = 1024;

/// Something the mask covers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Masked {
    /// Relative to the directory.
    pub path: PathBuf,
    /// A directory, covered with an empty one.
    pub is_dir: bool,
}

/// A mask that cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum MaskError {
    /// Not a pattern.
    #[error("`{0}` is no pattern: write one of at most {PATTERN_BYTES_MAX} bytes, without `..`")]
    Pattern(String),
    /// Matches more than can be covered.
    #[error("the patterns match more than {MASKED_MAX} paths")]
    TooMany,
    /// Too much to look through.
    #[error("the directory has more than {ENTRIES_MAX} entries")]
    TooLarge,
    /// A directory could not be looked into.
    #[error("cannot look for masked files")]
    Walk(#[source] std::io::Error),
}

/// Finds what the patterns cover below `top`.
///
/// # Errors
/// [`MaskError`] when the mask could not be carried out whole.
pub fn find(top: &Path, patterns: &[String]) -> Result<Vec<Masked>, MaskError> {
    for pattern in patterns {
        let fine =
            !pattern.is_empty() && pattern.len() <= PATTERN_BYTES_MAX && pattern.split('/').all(|part| part != "..");
        if !fine {
            return Err(MaskError::Pattern(pattern.clone()));
        }
    }
    let mut found = Vec::new();
    let mut seen = 0_usize;
    let mut queue = if patterns.is_empty() { Vec::new() } else { vec![PathBuf::new()] };
    while let Some(relative) = queue.pop() {
        for entry in fs_err::read_dir(top.join(&relative)).map_err(MaskError::Walk)? {
            let entry = entry.map_err(MaskError::Walk)?;
            seen += 1;
            let path = relative.join(entry.file_name());
            let is_dir = entry.file_type().map_err(MaskError::Walk)?.is_dir();
            match path.to_str().is_some_and(|text| patterns.iter().any(|pattern| matches(pattern, text))) {
                true => found.push(Masked { path, is_dir }),
                false if is_dir => queue.push(path),
                false => {}
            }
        }
        if seen > ENTRIES_MAX {
            return Err(MaskError::TooLarge);
        }
        if found.len() > MASKED_MAX {
            return Err(MaskError::TooMany);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a pattern covers a path relative to the directory.
#[must_use]
pub fn matches(pattern: &str, path: &str) -> bool {
    let pattern = pattern.strip_suffix('/').unwrap_or(pattern);
    if pattern.contains('/') {
        let parts: Vec<&str> = pattern.trim_start_matches("./").split('/').filter(|part| !part.is_empty()).collect();
        return components(&parts, &path.split('/').collect::<Vec<_>>());
    }
    path.rsplit('/').next().is_some_and(|name| component(pattern.as_bytes(), name.as_bytes()))
}

fn components(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => (0..=path.len()).any(|skipped| components(rest, &path[skipped..])),
        ([first, rest @ ..], [name, more @ ..]) => {
            component(first.as_bytes(), name.as_bytes()) && components(rest, more)
        }
        _ => false,
    }
}

/// One component, with the one backtracking point that `*` needs: linear in practice, quadratic at worst.
fn component(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut read, mut star) = (0, 0, None);
    while read < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[read] => {
                at += 1;
                read += 1;
            }
            _ => match star {
                Some((star_at, from)) => {
                    star = Some((star_at, from + 1));
                    at = star_at + 1;
                    read = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_people_know_them() {
        for (pattern, path, expected) in [
            (".env", ".env", true),
            (".env", "a/b/.env", true),
            (".env*", "x/.env.local", true),
            ("*.pem", "keys/a.pem", true),
            ("keys/", "keys", true),
            ("/keys", "keys", true),
            ("/keys", "a/keys", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/*/b", "a/x/y/b", false),
            ("*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
            ("??", "ab", true),
            (".env", "benv", false),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn a_masked_directory_is_covered_whole_and_not_walked() {
        let top = tempfile::tempdir().expect("temporary directory");
        fs_err::create_dir_all(top.path().join("secrets/deep")).expect("directory");
        fs_err::write(top.path().join("secrets/deep/.env"), "").expect("file");
        fs_err::write(top.path().join(".env"), "").expect("file");
        let found = find(top.path(), &[".env".into(), "secrets".into()]).expect("walks");
        let expected = [(".env", false), ("secrets", true)].map(|(path, is_dir)| Masked { path: path.into(), is_dir });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_mask_upwards_is_refused() {
        assert!(matches!(find(Path::new("/"), &["../x".into()]), Err(MaskError::Pattern(_))));
    }
}
