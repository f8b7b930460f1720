//! Patterns of file names: `*`, `?`, `[a-z]`, `[^a-z]`, a backslash before what is meant as it is, and `**` for any depth.

use crate::parse::excerpt;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// `*`: any letters of one name.
    Star,
    /// `?`
    One,
    /// `[…]`
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
    Letter(char),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    /// `**`: any number of names.
    Deep,
    Name(Vec<Token>),
}

/// A pattern for a whole path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Part>);

impl Pattern {
    /// Reads a pattern without its leading slash; `.` and empty names in it count for nothing, `..` takes a name away.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => drop(parts.pop()),
                "**" => parts.push(Part::Deep),
                _ => parts.push(Part::Name(tokens(name)?)),
            }
        }
        Ok(Self(parts))
    }

    /// How many names the paths have that it matches; `**` counts as one.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it can match one path only.
    pub(crate) fn is_literal(&self) -> bool {
        let is_letter = |token: &Token| matches!(token, Token::Letter(_));
        self.0.iter().all(|part| matches!(part, Part::Name(tokens) if tokens.iter().all(is_letter)))
    }

    pub(crate) fn matches(&self, path: &[&str]) -> bool {
        // `open[i]`: the pattern so far can end before name i. One row for each part.
        let mut open = vec![false; path.len() + 1];
        open[0] = true;
        for part in &self.0 {
            let mut next = vec![false; path.len() + 1];
            match part {
                Part::Deep => {
                    let first = open.iter().position(|is_open| *is_open).unwrap_or(next.len());
                    next[first..].fill(true);
                }
                Part::Name(tokens) => {
                    for (at, name) in path.iter().enumerate().filter(|(at, _)| open[*at]) {
                        next[at + 1] = name_matches(tokens, name);
                    }
                }
            }
            open = next;
        }
        open[path.len()]
    }
}

fn tokens(name: &str) -> Result<Vec<Token>, String> {
    let mut made = Vec::new();
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        made.push(match letter {
            '*' if made.last() == Some(&Token::Star) => continue,
            '*' => Token::Star,
            '?' => Token::One,
            '[' => {
                class(&mut letters).ok_or_else(|| format!("the pattern `{}` has no end of its `[`", excerpt(name)))?
            }
            '\\' => Token::Letter(letters.next().unwrap_or('\\')),
            letter => Token::Letter(letter),
        });
    }
    Ok(made)
}

fn class(letters: &mut std::str::Chars<'_>) -> Option<Token> {
    let mut ranges = Vec::new();
    let is_negated = letters.as_str().starts_with(['^', '!']);
    if is_negated {
        letters.next();
    }
    loop {
        let first = match letters.next()? {
            ']' if !ranges.is_empty() => return Some(Token::Class { is_negated, ranges }),
            '\\' => letters.next()?,
            letter => letter,
        };
        let mut last = first;
        let mut after = letters.clone();
        if after.next() == Some('-') && !after.as_str().starts_with(']') {
            last = after.next()?;
            *letters = after;
        }
        ranges.push((first, last));
    }
}

/// Goes back to the last `*` only, which is enough as a later one can take whatever an earlier one could.
fn name_matches(tokens: &[Token], name: &str) -> bool {
    let letters: Vec<char> = name.chars().collect();
    let (mut token, mut letter) = (0, 0);
    let mut star = None;
    while letter < letters.len() {
        let fits = match tokens.get(token) {
            Some(Token::Star) => {
                star = Some((token, letter));
                token += 1;
                continue;
            }
            Some(Token::One) => true,
            Some(Token::Letter(wanted)) => *wanted == letters[letter],
            Some(Token::Class { is_negated, ranges }) => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&letters[letter])) != *is_negated
            }
            None => false,
        };
        match (fits, star) {
            (true, _) => (token, letter) = (token + 1, letter + 1),
            (false, Some((at, from))) => {
                star = Some((at, from + 1));
                (token, letter) = (at + 1, from + 1);
            }
            (false, None) => return false,
        }
    }
    tokens[token..].iter().all(|token| *token == Token::Star)
}

/// The names of a path, those that say nothing left out.
pub(crate) fn names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        let table = [
            ("a/b", "a/b", true),
            ("a/b", "a/b/c", false),
            ("/a/./b/", "a/b", true),
            ("x/../a", "a", true),
            ("*.c", "x.c", true),
            ("*.c", "d/x.c", false),
            ("**/*.c", "x.c", true),
            ("**/*.c", "d/e/x.c", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**", "a/b", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a[0-9b]c", "a7c", true),
            ("a[0-9b]c", "abc", true),
            ("a[^0-9]c", "a7c", false),
            ("a[]]c", "a]c", true),
            ("a[b-]c", "a-c", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("", "", true),
        ];
        for (pattern, path, expected) in table {
            let parsed = Pattern::parse(pattern).expect(pattern);
            assert_eq!(parsed.matches(&names(path)), expected, "{pattern} {path}");
        }
        assert!(Pattern::parse("a[b").is_err());
    }

    #[test]
    fn hostile_patterns_end() {
        let pattern = Pattern::parse(&"*a".repeat(5000)).expect("a pattern");
        assert!(!pattern.matches(&[&"a".repeat(4999)]));
        let pattern = Pattern::parse(&"**/".repeat(500)).expect("a pattern");
        assert!(pattern.matches(&vec!["x"; 500]));
    }
}
