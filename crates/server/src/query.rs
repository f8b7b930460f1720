//! Paths and queries: decoded, and read with the same care as bodies.

use branchbox_api::{Issue, Issues, PAGE_DEFAULT, PAGE_MAX};
use std::ops::RangeInclusive;

/// Most pairs of one query.
const PAIRS_MAX: usize = 100;

/// Decodes percent signs; `None` when the result is no text.
pub(crate) fn decoded(text: &str, plus_is_space: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match (first, tail) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |c: &u8| char::from(*c).to_digit(16);
                bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
                rest = after;
            }
            (b'%', _) => return None,
            (b'+', _) if plus_is_space => {
                bytes.push(b' ');
                rest = tail;
            }
            (other, _) => {
                bytes.push(*other);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// The components of a path; `None` for what is none.
pub(crate) fn components(path: &str) -> Option<Vec<String>> {
    path.strip_prefix('/')?.split('/').map(|part| decoded(part, false)).collect()
}

/// A query being read; unknown names are ignored, as intermediaries add some.
#[derive(Debug)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    issues: Vec<Issue>,
}

impl Query {
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, Issues> {
        let mut pairs = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (decoded(name, true), decoded(value, true)) {
                (Some(name), Some(value)) if pairs.len() < PAIRS_MAX => pairs.push((name, value)),
                _ => return Err(Issues::one("", "the query cannot be read")),
            }
        }
        Ok(Self { pairs, issues: Vec::new() })
    }

    fn issue(&mut self, name: &str, message: impl Into<String>) {
        self.issues.push(Issue { path: name.into(), message: message.into() });
    }

    /// Every value of a name.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.pairs.iter().filter(|(n, _)| n == name).map(|(_, value)| value.clone()).collect()
    }

    /// The last value of a name.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.pairs.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    }

    pub(crate) fn number(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let text = self.text(name)?;
        match text.parse() {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                self.issue(name, format!("must be a whole number from {} to {}", range.start(), range.end()));
                None
            }
        }
    }

    pub(crate) fn truth(&mut self, name: &str) -> bool {
        match self.text(name).as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                self.issue(name, "must be true or false");
                false
            }
        }
    }

    /// A value of a unit enum, by its word on the wire.
    pub(crate) fn word<T: serde::de::DeserializeOwned>(&mut self, name: &str, text: &str) -> Option<T> {
        let word = serde_json::from_value(serde_json::Value::String(text.to_owned())).ok();
        if word.is_none() {
            self.issue(name, "is not one of the known words");
        }
        word
    }

    /// An id, such as a cursor.
    pub(crate) fn id<T: std::str::FromStr>(&mut self, name: &str) -> Option<T> {
        let parsed = self.text(name)?.parse().ok();
        if parsed.is_none() {
            self.issue(name, "is none that this node gave out");
        }
        parsed
    }

    /// Things in one page.
    pub(crate) fn page(&mut self) -> u32 {
        let limit = self.number("limit", 1..=u64::from(PAGE_MAX));
        limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(PAGE_DEFAULT)
    }

    /// Ends the reading.
    pub(crate) fn finish(self) -> Result<(), Issues> {
        if self.issues.is_empty() { Ok(()) } else { Err(Issues(self.issues)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_model::SandboxState;

    #[test]
    fn texts_are_decoded_or_refused() {
        assert_eq!(decoded("a%20b+c", true).as_deref(), Some("a b c"));
        assert_eq!(decoded("a+c%3A", false).as_deref(), Some("a+c:"));
        for bad in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decoded(bad, true), None, "{bad}");
        }
        assert_eq!(components("/v1/a%2Fb"), Some(vec!["v1".into(), "a/b".into()]));
        assert_eq!(components("x"), None);
    }

    #[test]
    fn every_bad_value_is_named() {
        let mut query = Query::parse(Some("limit=0&follow=maybe&state=odd&state=running")).expect("readable");
        assert_eq!(query.page(), PAGE_DEFAULT);
        query.truth("follow");
        let states: Vec<Option<SandboxState>> =
            query.all("state").iter().map(|text| query.word("state", text)).collect();
        assert_eq!(states, [None, Some(SandboxState::Running)]);
        let paths: Vec<_> = query.finish().expect_err("issues").0.into_iter().map(|issue| issue.path).collect();
        assert_eq!(paths, ["limit", "follow", "state"]);
    }
}
