//! Shell patterns for paths: `*` and `?` within one component, `[a-z]` and `[!a-z]`, `**` for any number of components.
//!
//! Matching costs at most pattern length times text length for each `**`-free part, whatever the pattern: a star is tried
//! again only from the last one.

/// Longest pattern looked at; a longer one matches nothing.
const PATTERN_BYTES_MAX: usize = 1024;
/// Most components of a pattern; one with more matches nothing.
const PARTS_MAX: usize = 64;

/// A pattern.
#[derive(Debug)]
pub struct Glob {
    /// Components; `None` is `**`.
    parts: Vec<Option<Vec<char>>>,
    /// No slash in it: matched against the name alone.
    name_only: bool,
    usable: bool,
}

impl Glob {
    /// Takes a pattern apart.
    pub fn new(pattern: &str) -> Self {
        let trimmed = pattern.trim_start_matches("./").trim_start_matches('/');
        let usable = pattern.len() <= PATTERN_BYTES_MAX && trimmed.split('/').count() <= PARTS_MAX;
        let part = |part: &str| (part != "**").then(|| part.chars().collect());
        let mut parts: Vec<Option<Vec<char>>> =
            if usable { trimmed.split('/').map(part).collect() } else { Vec::new() };
        parts.dedup_by(|a, b| a.is_none() && b.is_none());
        Self { name_only: !trimmed.contains('/') && trimmed != "**", parts, usable }
    }

    /// Whether a relative path matches.
    pub fn matches(&self, path: &str) -> bool {
        if !self.usable {
            return false;
        }
        let path = if self.name_only { path.rsplit('/').next().unwrap_or(path) } else { path };
        let components: Vec<Vec<char>> = path.split('/').map(|part| part.chars().collect()).collect();
        components_match(&self.parts, &components)
    }
}

/// The same way of going back as within a component: only to the last `**`.
fn components_match(parts: &[Option<Vec<char>>], components: &[Vec<char>]) -> bool {
    let (mut p, mut c, mut back) = (0, 0, None);
    while c < components.len() {
        match parts.get(p) {
            Some(None) => {
                back = Some((p + 1, c));
                p += 1;
            }
            Some(Some(part)) if part_matches(part, &components[c]) => {
                (p, c) = (p + 1, c + 1);
            }
            _ => match back {
                Some((after, from)) => {
                    back = Some((after, from + 1));
                    (p, c) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    parts[p..].iter().all(Option::is_none)
}

fn part_matches(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t, mut back) = (0, 0, None);
    while t < text.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                back = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern[p..], text[t]),
            Some(wanted) => (*wanted == text[t]).then_some(1),
            None => None,
        };
        match (step, back) {
            (Some(used), _) => (p, t) = (p + used, t + 1),
            (None, Some((after, from))) => {
                back = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|left| *left == '*')
}

/// How much of the pattern a matching `[…]` uses; one that is never closed is an ordinary character.
fn class(pattern: &[char], found: char) -> Option<usize> {
    let negated = matches!(pattern.get(1), Some('!' | '^'));
    let first = if negated { 2 } else { 1 };
    // A `]` directly behind the opening stands for itself.
    let Some(close) = pattern.iter().skip(first + 1).position(|c| *c == ']').map(|at| at + first + 1) else {
        return (found == '[').then_some(1);
    };
    let members = &pattern[first..close];
    let (mut at, mut within) = (0, false);
    while at < members.len() {
        if at + 2 < members.len() && members[at + 1] == '-' {
            within |= (members[at]..=members[at + 2]).contains(&found);
            at += 3;
        } else {
            within |= members[at] == found;
            at += 1;
        }
    }
    (within != negated).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::Glob;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases = [
            ("*.py", "a.py", true),
            ("*.py", "src/a.py", true),
            ("*.py", "a.pyc", false),
            ("src/*.py", "src/a.py", true),
            ("src/*.py", "src/x/a.py", false),
            ("src/*.py", "a.py", false),
            ("**/*.py", "a.py", true),
            ("**/*.py", "x/y/z/a.py", true),
            ("src/**", "src/a/b", true),
            ("src/**", "lib/a", false),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/z/c/z", true),
            ("**", "any/thing", true),
            ("?.[ch]", "x.c", true),
            ("?.[!ch]", "x.c", false),
            ("[a-c]*[0-9]", "bxx7", true),
            ("[]x]", "]", true),
            ("[", "[", true),
            ("ü*", "über", true),
            ("", "a", false),
            ("./src/*", "src/a", true),
        ];
        for (pattern, path, expected) in cases {
            assert_eq!(Glob::new(pattern).matches(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn hostile_patterns_are_cheap() {
        let text = "a".repeat(250);
        assert!(!Glob::new(&format!("{}b", "*a".repeat(400))).matches(&text));
        assert!(!Glob::new(&"**/a/".repeat(200)).matches(&"a/".repeat(1000)));
        assert!(!Glob::new(&format!("{}b", "**/a/".repeat(60))).matches(&"a/".repeat(1000)));
    }
}
