//! Words: where one ends, and what a variable in it becomes.
//!
//! The rules are Docker's: single quotes keep everything, double quotes keep all but variables and escapes, the escape
//! character takes the next one as it is. Nothing is split after expansion, a word stays one word.

use crate::limits::{NESTING_MAX, VALUE_MAX};

/// How quotes are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quotes {
    /// They group, and are taken away.
    Group,
    /// They are text, as in a heredoc.
    Text,
}

/// Splits at white space that is not quoted; quotes stay in the words. At most `max` words, the last takes the rest.
pub(crate) fn split(text: &str, escape: char, max: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = if words.len() + 1 < max { word_end(rest, escape) } else { rest.len() };
        words.push(&rest[..end]);
        rest = rest[end..].trim_start();
    }
    words
}

/// Where the word at the beginning of the text ends. A quote that is not closed takes the rest.
fn word_end(text: &str, escape: char) -> usize {
    let mut quote = None;
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match (quote, letter) {
            (None, letter) if letter.is_whitespace() => return at,
            (None | Some('"'), letter) if letter == escape => {
                letters.next();
            }
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            _ => {}
        }
    }
    text.len()
}

/// Gives variables their values.
pub(crate) fn expand<'v>(
    text: &str,
    escape: char,
    quotes: Quotes,
    value_of: &'v dyn Fn(&str) -> Option<&'v str>,
    budget: &mut usize,
) -> Result<String, String> {
    let mut reader = Reader { letters: text.chars().peekable(), escape, quotes, value_of, budget };
    reader.until(None, 0)
}

struct Reader<'t, 'v, 'b> {
    letters: std::iter::Peekable<std::str::Chars<'t>>,
    escape: char,
    quotes: Quotes,
    value_of: &'v dyn Fn(&str) -> Option<&'v str>,
    budget: &'b mut usize,
}

impl Reader<'_, '_, '_> {
    fn add(&mut self, made: &mut String, text: &str) -> Result<(), String> {
        if made.len() + text.len() > VALUE_MAX {
            return Err(format!("a value has more than {VALUE_MAX} bytes"));
        }
        *self.budget = self.budget.checked_sub(text.len()).ok_or("the values of this stage are too large together")?;
        made.push_str(text);
        Ok(())
    }

    fn add_letter(&mut self, made: &mut String, letter: char) -> Result<(), String> {
        self.add(made, letter.encode_utf8(&mut [0; 4]))
    }

    fn until(&mut self, stop: Option<char>, depth: usize) -> Result<String, String> {
        if depth > NESTING_MAX {
            return Err(format!("more than {NESTING_MAX} `${{…}}` in one another"));
        }
        let groups = self.quotes == Quotes::Group;
        let mut made = String::new();
        while let Some(letter) = self.letters.next() {
            match letter {
                _ if Some(letter) == stop => return Ok(made),
                '\'' if groups => self.single_quoted(&mut made)?,
                '"' if groups => self.double_quoted(&mut made, depth)?,
                '$' => self.dollar(&mut made, depth)?,
                _ if letter == self.escape && groups => {
                    if let Some(next) = self.letters.next() {
                        self.add_letter(&mut made, next)?;
                    }
                }
                _ if letter == self.escape => self.escaped(&mut made)?,
                _ => self.add_letter(&mut made, letter)?,
            }
        }
        if stop.is_some() { Err("`${` is not closed".into()) } else { Ok(made) }
    }

    fn single_quoted(&mut self, made: &mut String) -> Result<(), String> {
        loop {
            match self.letters.next() {
                Some('\'') => return Ok(()),
                Some(letter) => self.add_letter(made, letter)?,
                None => return Err("a quote is not closed".into()),
            }
        }
    }

    fn double_quoted(&mut self, made: &mut String, depth: usize) -> Result<(), String> {
        loop {
            match self.letters.next() {
                Some('"') => return Ok(()),
                Some('$') => self.dollar(made, depth)?,
                Some(letter) if letter == self.escape => self.escaped(made)?,
                Some(letter) => self.add_letter(made, letter)?,
                None => return Err("a quote is not closed".into()),
            }
        }
    }

    /// After an escape character where it is special only before a few: else it stays.
    fn escaped(&mut self, made: &mut String) -> Result<(), String> {
        let is_quote = self.quotes == Quotes::Group && self.letters.peek() == Some(&'"');
        match self.letters.peek().copied() {
            Some(next) if next == '$' || next == self.escape || is_quote => {
                self.letters.next();
                self.add_letter(made, next)
            }
            _ => self.add_letter(made, self.escape),
        }
    }

    fn dollar(&mut self, made: &mut String, depth: usize) -> Result<(), String> {
        if self.letters.peek() == Some(&'{') {
            self.letters.next();
            return self.braces(made, depth);
        }
        let name = self.name();
        if name.is_empty() {
            return self.add(made, "$");
        }
        self.add(made, (self.value_of)(&name).unwrap_or_default())
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(letter) = self.letters.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '_') {
            name.push(letter);
            if name.len() == 1 && letter.is_ascii_digit() {
                break;
            }
        }
        name
    }

    fn braces(&mut self, made: &mut String, depth: usize) -> Result<(), String> {
        let name = self.name();
        if name.is_empty() {
            return Err("`${` without a name".into());
        }
        let value = (self.value_of)(&name);
        let mut operator = self.letters.next();
        let value = match operator {
            Some('}') => return self.add(made, value.unwrap_or_default()),
            Some(':') => {
                operator = self.letters.next();
                value.filter(|value| !value.is_empty())
            }
            _ => value,
        };
        let Some(operator @ ('-' | '+' | '?')) = operator else {
            return Err(format!(
                "`${{{name}…}}` has an operator that is not supported (`-`, `+`, `?`, `:-`, `:+`, `:?` are)"
            ));
        };
        let word = self.until(Some('}'), depth + 1)?;
        match (operator, value) {
            ('-', None) | ('+', Some(_)) => self.add(made, &word),
            ('+', None) => Ok(()),
            ('?', None) if word.is_empty() => Err(format!("`{name}` has no value")),
            ('?', None) => Err(format!("`{name}`: {word}")),
            (_, Some(value)) => self.add(made, value),
            (_, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(name: &str) -> Option<&'static str> {
        match name {
            "x" => Some("X y"),
            "empty" => Some(""),
            _ => None,
        }
    }

    fn expanded(text: &str) -> Result<String, String> {
        expand(text, '\\', Quotes::Group, &value_of, &mut 10_000)
    }

    #[test]
    fn variables() {
        let table = [
            ("a$x", "aX y"),
            ("${x}b", "X yb"),
            ("$none.", "."),
            ("${none-d}", "d"),
            ("${empty-d}", ""),
            ("${empty:-d}", "d"),
            ("${x:-d}", "X y"),
            ("${x:+a}", "a"),
            ("${x+a}", "a"),
            ("${none:+a}", ""),
            ("${empty:+a}", ""),
            ("${empty+a}", "a"),
            ("${none:-${none:-${x}}}", "X y"),
            ("${none:-\"a}b\"}", "a}b"),
            ("${x:?gone}", "X y"),
            ("\\$x", "$x"),
            ("'$x'", "$x"),
            ("\"$x\"", "X y"),
            ("\"\\$x \\\" \\n\"", "$x \" \\n"),
            ("a\\ b", "a b"),
            ("$", "$"),
            ("$-", "$-"),
            ("$1a", "a"),
            ("é$x", "éX y"),
        ];
        for (text, expected) in table {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_word_is_refused() {
        for text in ["${x", "${", "${}", "'a", "\"a", "${x%a}", "${x/a/b}", "${none:?gone}", &"${n:-".repeat(100_000)] {
            assert!(expanded(text).is_err(), "{}", &text[..text.len().min(20)]);
        }
        assert_eq!(expanded("${none:?gone}"), Err("`none`: gone".into()));
    }

    #[test]
    fn values_and_their_sum_are_bounded() {
        let large = "a".repeat(VALUE_MAX);
        let value_of = |_: &str| Some(large.as_str());
        assert!(expand("$a", '\\', Quotes::Group, &value_of, &mut usize::MAX.clone()).is_ok());
        assert!(expand("$a$a", '\\', Quotes::Group, &value_of, &mut usize::MAX.clone()).is_err());
        assert!(expand("$a", '\\', Quotes::Group, &value_of, &mut 10).is_err());
    }

    #[test]
    fn quotes_are_text_in_a_heredoc() {
        let made = expand("'$x' \"\\$x\" \\n", '\\', Quotes::Text, &value_of, &mut 100);
        assert_eq!(made.as_deref(), Ok("'X y' \"$x\" \\n"));
    }

    #[test]
    fn words_end_at_white_space_outside_quotes() {
        assert_eq!(split(" a=\"b c\"  d='e f'\\ g h ", '\\', 10), ["a=\"b c\"", "d='e f'\\ g", "h"]);
        assert_eq!(split("a b  c d", '\\', 2), ["a", "b  c d"]);
        assert_eq!(split("a 'b c", '\\', 9), ["a", "'b c"]);
    }
}
