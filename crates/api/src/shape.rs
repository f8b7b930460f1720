//! What a request looks like, as a JSON schema, told by the very code that reads it.
//!
//! [`Fields`] writes down what it is asked for while it takes nothing apart: names, kinds, ranges, words. So a bound in the
//! API document is the bound that requests are held to. Rules that are checked after the taking are added with
//! [`Fields::refine`], from the constants of the check. A `null` counts as absent, so it is allowed where the field is
//! not required.

use crate::fields::Fields;
use serde_json::{Map, Value, json};

/// The fields of one object, as far as they were asked for.
#[derive(Debug, Default)]
pub(crate) struct Shape {
    properties: Map<String, Value>,
    required: Vec<String>,
    rules: Vec<Value>,
}

impl Shape {
    pub(crate) fn property(&mut self, name: &str, schema: Value) {
        self.properties.insert(name.to_owned(), schema);
    }

    pub(crate) fn require(&mut self, name: &str) {
        self.required.push(name.to_owned());
    }

    /// A rule between fields.
    pub(crate) fn rule(&mut self, schema: Value) {
        self.rules.push(schema);
    }

    /// Adds keywords to a field that was asked for.
    pub(crate) fn refine(&mut self, name: &str, keywords: Value) {
        if let (Some(Value::Object(property)), Value::Object(keywords)) = (self.properties.get_mut(name), keywords) {
            property.extend(keywords);
        }
    }

    pub(crate) fn schema(mut self) -> Value {
        for (name, property) in &mut self.properties {
            if !self.required.contains(name) {
                allow_null(property);
            }
        }
        let mut schema = json!({ "type": "object", "properties": self.properties, "additionalProperties": false });
        if !self.required.is_empty() {
            schema["required"] = json!(self.required);
        }
        if let [rule] = self.rules.as_slice() {
            schema["not"] = rule.clone();
        } else if !self.rules.is_empty() {
            schema["not"] = json!({ "anyOf": self.rules });
        }
        schema
    }
}

fn allow_null(property: &mut Value) {
    let Some(property) = property.as_object_mut() else { return };
    if let Some(kind @ Value::String(_)) = property.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    for list in ["enum", "anyOf"] {
        let null = if list == "enum" { Value::Null } else { json!({ "type": "null" }) };
        if let Some(Value::Array(list)) = property.get_mut(list) {
            list.push(null);
        }
    }
}

/// A field that is there.
pub(crate) fn there(name: &str) -> Value {
    json!({ "required": [name], "properties": { name: { "not": { "type": "null" } } } })
}

/// A field that is not there, or null.
pub(crate) fn absent(name: &str) -> Value {
    json!({ "properties": { name: { "type": "null" } } })
}

impl Fields {
    /// The schema of the object that this read takes apart.
    pub fn describe<T>(read: impl FnOnce(&mut Fields) -> T) -> Value {
        let mut fields = Self::recording();
        read(&mut fields);
        fields.into_shape().unwrap_or_default().schema()
    }

    /// Adds keywords, such as a pattern, to the description of a field that was taken.
    pub fn refine(&mut self, name: &str, keywords: impl FnOnce() -> Value) {
        self.shape(|shape| shape.refine(name, keywords()));
    }

    /// Wants one of two fields; before they are taken.
    pub fn exactly_one(&mut self, field: &str, other: &str) {
        if self.has(field) == self.has(other) {
            self.issue(field, format!("exactly one of `{field}` and `{other}` is needed"));
        }
        self.shape(|shape| {
            shape.rule(json!({ "allOf": [there(field), there(other)] }));
            shape.rule(json!({ "allOf": [absent(field), absent(other)] }));
        });
    }

    /// Wants one of several fields; before they are taken.
    pub fn one_of(&mut self, names: &[&str]) {
        let count = names.iter().filter(|name| self.has(name)).count();
        if let (Some(first), true) = (names.first(), count != 1) {
            let all: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            self.issue(first, format!("exactly one of {} is needed", all.join(", ")));
        }
        self.shape(|shape| {
            for (i, one) in names.iter().enumerate() {
                for other in &names[i + 1..] {
                    shape.rule(json!({ "allOf": [there(one), there(other)] }));
                }
            }
            shape.rule(json!({ "allOf": names.iter().map(|name| absent(name)).collect::<Vec<_>>() }));
        });
    }

    /// Refuses these fields without another; before they are taken.
    pub fn only_with(&mut self, names: &[&str], other: &str) {
        for name in names {
            if self.has(name) && !self.has(other) {
                self.issue(name, format!("goes with `{other}` alone"));
            }
            self.shape(|shape| shape.rule(json!({ "allOf": [there(name), absent(other)] })));
        }
    }

    /// Wants another field when this one is true; before they are taken.
    pub fn true_needs(&mut self, field: &str, other: &str) {
        if self.is_true(field) && !self.has(other) {
            self.issue(field, format!("needs `{other}`"));
        }
        let is_true = json!({ "required": [field], "properties": { field: { "const": true } } });
        self.shape(|shape| shape.rule(json!({ "allOf": [is_true, absent(other)] })));
    }

    /// Refuses two fields at once; before they are taken.
    pub fn not_both(&mut self, field: &str, other: &str) {
        if self.has(field) && self.has(other) {
            self.issue(field, format!("cannot be used together with `{other}`"));
        }
        self.shape(|shape| shape.rule(json!({ "allOf": [there(field), there(other)] })));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_describes_itself() {
        let schema = Fields::describe(|f| {
            f.not_both("a", "b");
            f.required("a");
            f.text("a");
            f.word("b", &[("x", 1), ("y", 2)]);
            f.object("in", |f| f.small_number("n", 1..=3));
            f.refine("a", || json!({ "pattern": "^[a-z]$" }));
        });
        let expected = json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["a"],
            "properties": {
                "a": { "type": "string", "pattern": "^[a-z]$" },
                "b": { "type": ["string", "null"], "enum": ["x", "y", null] },
                "in": {
                    "type": ["object", "null"],
                    "additionalProperties": false,
                    "properties": { "n": { "type": ["integer", "null"], "minimum": 1, "maximum": 3 } },
                },
            },
            "not": { "allOf": [there("a"), there("b")] },
        });
        assert_eq!(schema, expected);
    }
}
