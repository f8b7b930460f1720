//! `.dockerignore`: what of a context is not there for a build.

use crate::error::ParseError;
use crate::matcher::{Pattern, names};

/// Patterns of one file.
const PATTERNS_MAX: usize = 10_000;

/// The patterns of a `.dockerignore`, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    /// Whether it takes back what earlier ones left out.
    rules: Vec<(bool, Pattern)>,
}

impl Ignore {
    /// Reads the file.
    ///
    /// # Errors
    /// The first line that is no pattern.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut rules = Vec::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (takes_back, text) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest.trim_start()));
            if rules.len() == PATTERNS_MAX {
                return Err(ParseError::new(line, format!("more than {PATTERNS_MAX} patterns")));
            }
            rules.push((takes_back, Pattern::parse(text).map_err(|problem| ParseError::new(line, problem))?));
        }
        Ok(Self { rules })
    }

    /// Whether a path is left out: the last pattern that matches it, or a folder that it is in, decides.
    #[must_use]
    pub fn leaves_out(&self, path: &str) -> bool {
        let names = names(path);
        let fits = |pattern: &Pattern| (1..=names.len()).any(|depth| pattern.matches(&names[..depth]));
        self.rules.iter().rev().find(|(_, pattern)| fits(pattern)).is_some_and(|(takes_back, _)| !takes_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_match_decides() {
        let ignore = Ignore::parse("# no\n*.log\n/target\n!target/keep\n**/node_modules\n docs/*.md \n!docs/README.md")
            .expect("rules");
        for (path, expected) in [
            ("a.log", true),
            ("d/a.log", false),
            ("target", true),
            ("target/x/y", true),
            ("target/keep", false),
            ("target/keep/x", false),
            ("a/b/node_modules/c", true),
            ("docs/a.md", true),
            ("docs/README.md", false),
            ("src", false),
        ] {
            assert_eq!(ignore.leaves_out(path), expected, "{path}");
        }
        assert!(!Ignore::parse("*\n!a").expect("rules").leaves_out("a"));
        assert_eq!(Ignore::parse("\n[a").expect_err("no pattern").line, 2);
    }
}
