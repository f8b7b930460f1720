//! Logical lines: directives, comments, continuations and heredocs.

use crate::error::ParseError;
use crate::file::Keyword;
use crate::limits::WORDS_MAX;
use crate::words;

/// One instruction's text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub number: u32,
    pub keyword: Keyword,
    /// What follows the keyword, continued lines joined.
    pub rest: String,
    pub heredocs: Vec<Heredoc>,
}

/// `<<NAME` and what follows up to that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heredoc {
    pub name: String,
    /// The name was not quoted.
    pub expand: bool,
    /// `<<-`: leading tabs do not count.
    pub chomp: bool,
    /// The lines as written, each with its newline.
    pub raw: String,
}

impl Heredoc {
    /// What the program reads.
    pub(crate) fn content(&self) -> String {
        if !self.chomp {
            return self.raw.clone();
        }
        self.raw.split_inclusive('\n').map(|line| line.trim_start_matches('\t')).collect()
    }
}

/// The instructions of a text, one after the other.
pub(crate) struct Lines<'t> {
    lines: std::iter::Enumerate<std::str::Lines<'t>>,
    pub escape: char,
}

impl<'t> Lines<'t> {
    /// Reads the directives at the top.
    pub(crate) fn open(text: &'t str) -> Result<Self, ParseError> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut escape = '\\';
        for (at, line) in text.lines().enumerate() {
            let Some((key, value)) = directive(line) else { break };
            match (key.as_str(), value) {
                ("escape", "\\") => escape = '\\',
                ("escape", "`") => escape = '`',
                ("escape", _) => return Err(ParseError::new(number(at), "`escape` must be `\\` or a backtick")),
                ("syntax" | "check", _) => {}
                _ => break,
            }
        }
        Ok(Self { lines: text.lines().enumerate(), escape })
    }

    pub(crate) fn next(&mut self) -> Result<Option<Line>, ParseError> {
        let Some((at, first)) = self.lines.by_ref().find(|(_, line)| !is_comment(line) && !line.trim().is_empty())
        else {
            return Ok(None);
        };
        let text = self.continued(first.trim_start());
        let line = number(at);
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
        let Some(keyword) = Keyword::of(word) else {
            let word: String = word.chars().take(40).collect();
            return Err(ParseError::new(line, format!("unknown instruction `{word}`")));
        };
        let rest = rest.trim().to_owned();
        let heredocs = match keyword {
            Keyword::Run | Keyword::Copy | Keyword::Add => self.heredocs(&rest, line)?,
            _ => Vec::new(),
        };
        Ok(Some(Line { number: line, keyword, rest, heredocs }))
    }

    /// Joins the lines that follow as long as each ends with the escape character.
    fn continued(&mut self, first: &str) -> String {
        let mut text = String::new();
        let mut part = first;
        loop {
            let Some(kept) = without_continuation(part, self.escape) else {
                text.push_str(part);
                return text;
            };
            text.push_str(kept);
            let Some((_, next)) = self.lines.by_ref().find(|(_, line)| !is_comment(line) && !line.trim().is_empty())
            else {
                return text;
            };
            part = next;
        }
    }

    fn heredocs(&mut self, rest: &str, line: u32) -> Result<Vec<Heredoc>, ParseError> {
        let mut found = Vec::new();
        if !rest.contains("<<") || rest.starts_with('[') {
            return Ok(found);
        }
        for word in words::split(rest, self.escape, usize::MAX) {
            let Some(mut heredoc) = heredoc(word) else { continue };
            if found.len() == WORDS_MAX {
                return Err(ParseError::new(line, format!("more than {WORDS_MAX} heredocs")));
            }
            self.read_heredoc(&mut heredoc, line)?;
            found.push(heredoc);
        }
        Ok(found)
    }

    fn read_heredoc(&mut self, heredoc: &mut Heredoc, line: u32) -> Result<(), ParseError> {
        for (_, text) in self.lines.by_ref() {
            let last = if heredoc.chomp { text.trim_start_matches('\t') } else { text };
            if last == heredoc.name {
                return Ok(());
            }
            heredoc.raw.push_str(text);
            heredoc.raw.push('\n');
        }
        Err(ParseError::new(line, format!("the heredoc `{}` does not end", heredoc.name)))
    }
}

/// `<<NAME`, `<<-NAME`, `<<"NAME"`, with a descriptor's number before it or not.
pub(crate) fn heredoc(word: &str) -> Option<Heredoc> {
    let mark = word.trim_start_matches(|letter: char| letter.is_ascii_digit()).strip_prefix("<<")?;
    let (chomp, quoted) = mark.strip_prefix('-').map_or((false, mark), |name| (true, name));
    let name: String = quoted.chars().filter(|letter| !matches!(letter, '"' | '\'')).collect();
    if name.is_empty() || name.contains('<') {
        return None;
    }
    Some(Heredoc { expand: name.len() == quoted.len(), name, chomp, raw: String::new() })
}

fn number(at: usize) -> u32 {
    u32::try_from(at + 1).unwrap_or(u32::MAX)
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with('#')
}

/// `# key = value`.
fn directive(line: &str) -> Option<(String, &str)> {
    let (key, value) = line.trim_start().strip_prefix('#')?.split_once('=')?;
    let key = key.trim();
    let is_name = !key.is_empty() && key.chars().all(|letter| letter.is_ascii_alphanumeric());
    is_name.then(|| (key.to_ascii_lowercase(), value.trim()))
}

/// The line without the escape character at its end; nothing if there is none, or if it is itself escaped.
fn without_continuation(line: &str, escape: char) -> Option<&str> {
    let kept = line.trim_end_matches([' ', '\t']).strip_suffix(escape)?;
    (!kept.ends_with(escape)).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Line> {
        let mut lines = Lines::open(text).expect("directives");
        std::iter::from_fn(|| lines.next().expect("a line")).collect()
    }

    #[test]
    fn continued_lines_are_joined_and_comments_in_them_skipped() {
        let lines = read("# c\n\nrun a \\  \n# comment \\\n\n  && b \\\n  c\r\nCMD x\\\\\nuser y");
        let seen: Vec<_> = lines.iter().map(|line| (line.number, line.keyword, line.rest.as_str())).collect();
        let run = (3, Keyword::Run, "a   && b   c");
        assert_eq!(seen, [run, (8, Keyword::Cmd, "x\\\\"), (9, Keyword::User, "y")]);
    }

    #[test]
    fn the_escape_directive_counts_only_at_the_top() {
        assert_eq!(read("# syntax=docker/dockerfile:1\n# escape=`\nRUN a `\n b")[0].rest, "a  b");
        assert_eq!(read("# just a comment\n# escape=`\nRUN a \\\n b")[0].rest, "a  b");
        assert!(Lines::open("# escape=x").is_err());
    }

    #[test]
    fn heredocs() {
        let lines =
            read("RUN <<A cat <<-'B'\n1\\\nA\n\t#2\n\tB\nRUN a <<< b $((1<<2))\nCOPY <<\"C\" /x\n$y\nC\nUSER z");
        let [a, b] = &lines[0].heredocs[..] else { panic!("two heredocs") };
        assert_eq!((a.name.as_str(), a.expand, a.content().as_str()), ("A", true, "1\\\n"));
        assert_eq!((b.name.as_str(), b.expand, b.content().as_str()), ("B", false, "#2\n"));
        assert_eq!(lines[1].heredocs, []);
        assert_eq!(lines[2].heredocs[0].content(), "$y\n");
        assert_eq!(lines[3].number, 10);
    }

    #[test]
    fn the_line_of_a_problem_is_told() {
        let mut lines = Lines::open("\nFOO x").expect("directives");
        assert_eq!(lines.next(), Err(ParseError::new(2, "unknown instruction `FOO`")));
        assert!(Lines::open("RUN <<X\na").expect("directives").next().is_err());
    }
}
