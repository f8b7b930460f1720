//! Taking a JSON object apart field by field, remembering everything that is wrong with it.

use crate::shape::Shape;
use branchbox_model::SpecError;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

/// Issues told in one answer; the rest is counted.
const ISSUES_MAX: usize = 50;
/// Entries of any list or map in a request.
const ENTRIES_MAX: usize = 1024;

/// One field that cannot be accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// Where in the request; empty for the whole of it.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// Everything that is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issues(pub Vec<Issue>);

impl Issues {
    /// One issue.
    #[must_use]
    pub fn one(path: &str, message: impl Into<String>) -> Self {
        Self(vec![Issue { path: path.to_owned(), message: message.into() }])
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request cannot be accepted: ")?;
        for (i, issue) in self.0.iter().take(3).enumerate() {
            let comma = if i == 0 { "" } else { "; " };
            let colon = if issue.path.is_empty() { "" } else { ": " };
            write!(f, "{comma}{}{colon}{}", issue.path, issue.message)?;
        }
        if self.0.len() > 3 { write!(f, "; and {} more", self.0.len() - 3) } else { Ok(()) }
    }
}

impl std::error::Error for Issues {}

/// A JSON object being taken apart. `null` counts as absent, except where a method says otherwise.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    prefix: String,
    issues: Vec<Issue>,
    /// What was asked for, while a request is described and not read.
    shape: Option<Shape>,
}

impl Fields {
    /// Reads a whole body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn read<T>(body: &[u8], read: impl FnOnce(&mut Self) -> T) -> Result<T, Issues> {
        let mut fields = Self::open(body)?;
        let value = read(&mut fields);
        fields.finish(value)
    }

    /// Reads a body; an empty one is an empty object.
    ///
    /// # Errors
    /// When it is no JSON object.
    pub fn open(body: &[u8]) -> Result<Self, Issues> {
        let map = if body.iter().all(u8::is_ascii_whitespace) {
            Map::new()
        } else {
            match serde_json::from_slice(body) {
                Ok(Value::Object(map)) => map,
                Ok(_) => return Err(Issues::one("", "the body must be a JSON object")),
                Err(error) => return Err(Issues::one("", format!("the body is not JSON: {error}"))),
            }
        };
        Ok(Self { map, prefix: String::new(), issues: Vec::new(), shape: None })
    }

    /// An object without fields that writes down what it is asked for.
    pub(crate) fn recording() -> Self {
        Self { map: Map::new(), prefix: String::new(), issues: Vec::new(), shape: Some(Shape::default()) }
    }

    pub(crate) fn shape(&mut self, note: impl FnOnce(&mut Shape)) {
        if let Some(shape) = &mut self.shape {
            note(shape);
        }
    }

    pub(crate) fn into_shape(self) -> Option<Shape> {
        self.shape
    }

    /// Says that a field must be there.
    pub fn required(&mut self, name: &str) {
        if !self.has(name) {
            self.map.remove(name);
            self.issue(name, "is required");
        }
        self.shape(|shape| shape.require(name));
    }

    /// Notes an issue of a field.
    pub fn issue(&mut self, name: &str, message: impl Into<String>) {
        self.issues.push(Issue { path: format!("{}{name}", self.prefix), message: message.into() });
    }

    /// Notes the error of a check.
    pub fn check(&mut self, checked: Result<(), SpecError>) {
        if let Err(error) = checked {
            self.issue(error.field, error.problem);
        }
    }

    /// Whether the field is there and not null.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Whether the field is there and true.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.map.get(name) == Some(&Value::Bool(true))
    }

    /// Whether the field is there and null.
    #[must_use]
    pub fn is_null(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(Value::is_null)
    }

    /// Takes any value.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.of_kind(name, || json!({}))
    }

    /// Takes a value that the caller checks against this schema.
    pub fn of_kind(&mut self, name: &str, schema: impl FnOnce() -> Value) -> Option<Value> {
        self.shape(|shape| shape.property(name, schema()));
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a text.
    pub fn text(&mut self, name: &str) -> Option<String> {
        match self.of_kind(name, || json!({ "type": "string" }))? {
            Value::String(text) => Some(text),
            _ => self.wrong(name, "must be a text"),
        }
    }

    /// Takes a text that must be there.
    pub fn required_text(&mut self, name: &str) -> String {
        self.required(name);
        self.text(name).unwrap_or_default()
    }

    /// Takes a text or null: `Some(None)` is a null.
    pub fn nullable_text(&mut self, name: &str) -> Option<Option<String>> {
        self.shape(|shape| shape.property(name, json!({ "type": "string" })));
        match self.map.remove(name)? {
            Value::Null => Some(None),
            Value::String(text) => Some(Some(text)),
            _ => self.wrong(name, "must be a text or null"),
        }
    }

    /// Takes a truth value.
    pub fn truth(&mut self, name: &str) -> Option<bool> {
        match self.of_kind(name, || json!({ "type": "boolean" }))? {
            Value::Bool(truth) => Some(truth),
            _ => self.wrong(name, "must be true or false"),
        }
    }

    /// Takes a whole number in a range.
    pub fn number(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let schema = || json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() });
        let value = self.of_kind(name, schema)?;
        match whole_number(&value) {
            Some(number) if range.contains(&number) => Some(number),
            _ => self.wrong(name, format!("must be a whole number from {} to {}", range.start(), range.end())),
        }
    }

    /// As [`Fields::number`], for the ranges that fit.
    pub fn small_number(&mut self, name: &str, range: RangeInclusive<u32>) -> Option<u32> {
        let wide = u64::from(*range.start())..=u64::from(*range.end());
        self.number(name, wide).and_then(|number| u32::try_from(number).ok())
    }

    /// Takes one of several words.
    pub fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let text = self.text(name);
        self.refine(name, || json!({ "enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>() }));
        let text = text?;
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Some(*value),
            None => {
                let known: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
                self.wrong(name, format!("must be one of {}", known.join(", ")))
            }
        }
    }

    /// Takes a list of texts.
    pub fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        self.many_texts(name, ENTRIES_MAX)
    }

    /// Takes a list of so many texts at most.
    pub fn many_texts(&mut self, name: &str, entries_max: usize) -> Option<Vec<String>> {
        let schema = || json!({ "type": "array", "items": { "type": "string" }, "maxItems": entries_max });
        let Value::Array(list) = self.of_kind(name, schema)? else {
            return self.wrong(name, "must be a list of texts");
        };
        if list.len() > entries_max {
            return self.wrong(name, format!("at most {entries_max} entries"));
        }
        let mut texts = Vec::with_capacity(list.len());
        for (i, entry) in list.into_iter().enumerate() {
            match entry {
                Value::String(text) => texts.push(text),
                _ => self.issue(&format!("{name}[{i}]"), "must be a text"),
            }
        }
        Some(texts)
    }

    /// Takes a map of texts.
    pub fn text_map(&mut self, name: &str) -> Option<BTreeMap<String, String>> {
        let nullable = self.nullable_map(name);
        self.refine(name, || json!({ "additionalProperties": { "type": "string" } }));
        let nullable = nullable?;
        let mut map = BTreeMap::new();
        for (key, value) in nullable {
            match value {
                Some(text) => drop(map.insert(key, text)),
                None => self.issue(&format!("{name}.{key}"), "must be a text"),
            }
        }
        Some(map)
    }

    /// Takes a map of texts or nulls.
    pub fn nullable_map(&mut self, name: &str) -> Option<BTreeMap<String, Option<String>>> {
        let values = json!({ "type": ["string", "null"] });
        let schema = || json!({ "type": "object", "additionalProperties": values, "maxProperties": ENTRIES_MAX });
        let Value::Object(object) = self.of_kind(name, schema)? else {
            return self.wrong(name, "must be an object of texts");
        };
        if object.len() > ENTRIES_MAX {
            return self.wrong(name, format!("at most {ENTRIES_MAX} entries"));
        }
        let mut map = BTreeMap::new();
        for (key, value) in object {
            match value {
                Value::String(text) => drop(map.insert(key, Some(text))),
                Value::Null => drop(map.insert(key, None)),
                _ => self.issue(&format!("{name}.{key}"), "must be a text"),
            }
        }
        Some(map)
    }

    /// Takes an object, reads it, and counts its issues as this one's.
    pub fn object<T>(&mut self, name: &str, read: impl FnOnce(&mut Fields) -> T) -> Option<T> {
        if let Some(shape) = &mut self.shape {
            shape.property(name, Fields::describe(read));
            return None;
        }
        let Value::Object(map) = self.value(name)? else { return self.wrong(name, "must be an object") };
        let mut inner = Fields { map, prefix: format!("{}{name}.", self.prefix), issues: Vec::new(), shape: None };
        let read = read(&mut inner);
        self.issues.extend(inner.into_issues());
        Some(read)
    }

    /// Takes a list of objects, reads each, and counts their issues as this one's.
    pub fn objects<T>(&mut self, name: &str, entries_max: usize, read: impl Fn(&mut Fields) -> T) -> Option<Vec<T>> {
        if let Some(shape) = &mut self.shape {
            let items = Fields::describe(read);
            shape.property(name, json!({ "type": "array", "items": items, "maxItems": entries_max }));
            return None;
        }
        let Value::Array(list) = self.value(name)? else { return self.wrong(name, "must be a list of objects") };
        if list.len() > entries_max {
            return self.wrong(name, format!("at most {entries_max} entries"));
        }
        let mut all = Vec::with_capacity(list.len());
        for (i, entry) in list.into_iter().enumerate() {
            let Value::Object(map) = entry else {
                self.issue(&format!("{name}[{i}]"), "must be an object");
                continue;
            };
            let prefix = format!("{}{name}[{i}].", self.prefix);
            let mut inner = Fields { map, prefix, issues: Vec::new(), shape: None };
            all.push(read(&mut inner));
            self.issues.extend(inner.into_issues());
        }
        Some(all)
    }

    /// Ends the reading: what was not taken is unknown.
    ///
    /// # Errors
    /// When anything was wrong.
    pub fn finish<T>(self, value: T) -> Result<T, Issues> {
        let mut issues = self.into_issues();
        if issues.is_empty() {
            return Ok(value);
        }
        if issues.len() > ISSUES_MAX {
            let more = issues.len() - ISSUES_MAX;
            issues.truncate(ISSUES_MAX);
            issues.push(Issue { path: String::new(), message: format!("and {more} more") });
        }
        Err(Issues(issues))
    }

    fn into_issues(mut self) -> Vec<Issue> {
        for name in self.map.keys() {
            let shown: String = name.chars().take(64).collect();
            self.issues.push(Issue { path: format!("{}{shown}", self.prefix), message: "unknown field".into() });
        }
        self.issues
    }

    fn wrong<T>(&mut self, name: &str, message: impl Into<String>) -> Option<T> {
        self.issue(name, message);
        None
    }
}

/// A whole number, also one written with a fraction of zero, which JSON does not tell apart.
fn whole_number(value: &Value) -> Option<u64> {
    // As many as a double holds exactly.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let written = |number: &f64| number.fract() == 0.0 && (0.0..=EXACT).contains(number);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, and between 0 and 2^53")]
    value.as_u64().or_else(|| value.as_f64().filter(written).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bad_field_is_named() {
        let body = br#"{"a": 1, "b": "x", "n": 70000, "zzz": 1, "in": {"q": 1, "t": true}}"#;
        let mut fields = Fields::open(body).expect("an object");
        assert_eq!(fields.text("a"), None);
        assert_eq!(fields.truth("b"), None);
        assert_eq!(fields.number("n", 1..=10), None);
        assert_eq!(fields.object("in", |inner| inner.truth("t")), Some(Some(true)));
        assert_eq!(fields.required_text("must"), "");
        let issues = fields.finish(()).expect_err("issues");
        let paths: Vec<_> = issues.0.iter().map(|issue| issue.path.as_str()).collect();
        assert_eq!(paths, ["a", "b", "n", "in.q", "must", "zzz"]);
    }

    #[test]
    fn bodies_that_are_no_object() {
        assert!(Fields::open(b"[]").is_err());
        assert!(Fields::open(b"{").is_err());
        assert!(Fields::open(&b"[".repeat(100_000)).is_err(), "depth is bounded");
        assert!(Fields::open(b" \n").expect("empty").finish(()).is_ok());
    }

    #[test]
    fn null_is_absent_or_told_apart() {
        let mut fields = Fields::open(br#"{"name": null, "x": null}"#).expect("an object");
        assert_eq!(fields.nullable_text("name"), Some(None));
        assert_eq!(fields.text("x"), None);
        assert!(fields.finish(()).is_ok());
    }
}
