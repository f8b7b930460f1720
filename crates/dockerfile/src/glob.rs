//! What `COPY` names: files and folders by a pattern.

use crate::matcher::{Pattern, names};

/// One source of a `COPY`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Pattern);

impl Glob {
    /// Reads it; the root it is looked up in is a context, a stage or an image.
    ///
    /// # Errors
    /// A `[` without its end.
    pub fn new(text: &str) -> Result<Self, String> {
        // `**` means no more than `*` here, so that a match is as deep as the pattern.
        Pattern::parse(&text.split('/').map(|name| if name == "**" { "*" } else { name }).collect::<Vec<_>>().join("/"))
            .map(Self)
    }

    /// Whether it can name one thing only.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.0.is_literal()
    }

    /// Whether a path, or a folder that it is in, is what it names: then the path below that, which is empty for the thing
    /// itself, and the thing's own name.
    #[must_use]
    pub fn below<'p>(&self, path: &'p str) -> Option<(Vec<&'p str>, &'p str)> {
        let names = names(path);
        let depth = self.0.len();
        let matched = names.get(..depth).filter(|matched| self.0.matches(matched))?;
        Some((names[depth..].to_vec(), matched.last().copied().unwrap_or_default()))
    }
}

/// The folder in which all is that a source can name: what stands before its first pattern.
#[must_use]
pub fn parent_of(text: &str) -> String {
    let is_pattern = |name: &&str| name.contains(['*', '?', '[', '\\']);
    let all: Vec<&str> = names(text);
    let literal = all.iter().take_while(|name| !is_pattern(name)).count();
    // The last name is the thing itself.
    format!("/{}", all[..literal.min(all.len().saturating_sub(1))].join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_match_is_copied_with_it() {
        let below = |glob: &str, path: &'static str| Glob::new(glob).expect("a glob").below(path);
        assert_eq!(below("./src/", "src/a/b"), Some((vec!["a", "b"], "src")));
        assert_eq!(below("src", "src"), Some((vec![], "src")));
        assert_eq!(below("src", "srcs"), None);
        assert_eq!(below(".", "a"), Some((vec!["a"], "")));
        assert_eq!(below("*.txt", "a.txt"), Some((vec![], "a.txt")));
        assert_eq!(below("../../etc/passwd", "etc/passwd"), Some((vec![], "passwd")), "there is nothing above");
        assert_eq!(below("**", "a/b"), Some((vec!["b"], "a")));
    }

    #[test]
    fn the_folder_of_all_matches() {
        assert_eq!(parent_of("/usr/lib/x.so"), "/usr/lib");
        assert_eq!(parent_of("usr/*/x"), "/usr");
        assert_eq!(parent_of("/"), "/");
        assert_eq!(parent_of("*"), "/");
    }
}
