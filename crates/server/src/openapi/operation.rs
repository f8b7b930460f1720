//! How one operation is described: a path, what it takes, what it answers.

use branchbox_api::Fields;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Makes the schema of a type, and remembers it as a component.
type OfType = fn(&mut SchemaGenerator) -> Schema;

/// Statuses that every request with a key can be answered with.
const EVERYWHERE: &[u16] = &[400, 401, 429, 500, 503];
/// Statuses of what is below a path with a name in it.
const OF_SOMETHING: &[u16] = &[404, 409];
/// Statuses of what changes something: an answer can be a kept one of the same key, and bodies have a limit.
const OF_CHANGES: &[u16] = &[409, 413, 422, 507];

/// A schema, now or when the generator is there.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Type(OfType),
    /// One of these types.
    Any(Vec<OfType>),
    List(Box<Kind>),
    Json(Value),
}

impl Kind {
    pub(super) fn schema(self, generator: &mut SchemaGenerator) -> Value {
        match self {
            Self::Type(of) => of(generator).to_value(),
            Self::Any(types) => {
                let types: Vec<Value> = types.iter().map(|of| of(generator).to_value()).collect();
                json!({ "anyOf": types })
            }
            Self::List(items) => json!({ "type": "array", "items": items.schema(generator) }),
            Self::Json(schema) => schema,
        }
    }
}

/// A body that is sent or answered.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Json(Kind),
    /// Lines of JSON, each of this type.
    Lines(Kind),
    /// Bytes, of which at most so many are taken.
    Bytes(Option<usize>),
    Nothing,
}

/// One parameter in the query, or a header.
#[derive(Debug, Clone)]
pub(super) struct Param {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) doc: &'static str,
    pub(super) required: bool,
    pub(super) kind: Kind,
}

/// What a request carries.
#[derive(Debug, Clone)]
pub(super) struct Body {
    /// The component that its schema is, for an object.
    pub(super) name: Option<&'static str>,
    pub(super) content: Content,
    /// Nothing at all is refused.
    pub(super) required: bool,
}

/// One operation.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) id: String,
    pub(super) summary: String,
    pub(super) public: bool,
    pub(super) params: Vec<Param>,
    pub(super) body: Option<Body>,
    pub(super) answers: Vec<(u16, &'static str, Vec<Content>)>,
    pub(super) errors: BTreeSet<u16>,
}

/// Reads something.
pub(super) fn get(path: &str, id: &str, summary: &str) -> Operation {
    Operation::new("get", path, id, summary)
}

/// Makes or does something.
pub(super) fn post(path: &str, id: &str, summary: &str) -> Operation {
    Operation::new("post", path, id, summary)
}

/// Sets something.
pub(super) fn put(path: &str, id: &str, summary: &str) -> Operation {
    Operation::new("put", path, id, summary)
}

/// Removes something.
pub(super) fn delete(path: &str, id: &str, summary: &str) -> Operation {
    Operation::new("delete", path, id, summary)
}

impl Operation {
    fn new(method: &'static str, path: &str, id: &str, summary: &str) -> Self {
        let mut errors: BTreeSet<u16> = EVERYWHERE.iter().copied().collect();
        if path.contains('{') {
            errors.extend(OF_SOMETHING);
        }
        if method != "get" {
            errors.extend(OF_CHANGES);
        }
        Self {
            method,
            path: path.to_owned(),
            id: id.to_owned(),
            summary: summary.to_owned(),
            public: false,
            params: Vec::new(),
            body: None,
            answers: Vec::new(),
            errors,
        }
    }

    /// Needs no key, and cannot fail but by the server's fault.
    pub(super) fn public(mut self) -> Self {
        self.public = true;
        self.errors = [400, 500].into();
        self
    }

    pub(super) fn with(mut self, params: impl IntoIterator<Item = Param>) -> Self {
        self.params.extend(params);
        self
    }

    /// Takes a JSON object that this read takes apart.
    pub(super) fn takes<T>(mut self, name: &'static str, read: impl Fn(&mut Fields) -> T) -> Self {
        let required = Fields::read(b"", &read).is_err();
        let content = Content::Json(Kind::Json(Fields::describe(read)));
        self.body = Some(Body { name: Some(name), content, required });
        self
    }

    pub(super) fn takes_bytes(mut self, bytes_max: usize) -> Self {
        self.body = Some(Body { name: None, content: Content::Bytes(Some(bytes_max)), required: false });
        self
    }

    /// Answers with JSON of a type.
    pub(super) fn answers<T: JsonSchema>(self, status: u16) -> Self {
        self.answers_with(status, "As asked.", vec![Content::Json(of::<T>())])
    }

    pub(super) fn answers_with(mut self, status: u16, doc: &'static str, contents: Vec<Content>) -> Self {
        self.answers.push((status, doc, contents));
        self
    }

    pub(super) fn fails(mut self, statuses: &[u16]) -> Self {
        self.errors.extend(statuses);
        self
    }
}

/// The schema of a type.
pub(super) fn of<T: JsonSchema>() -> Kind {
    Kind::Type(SchemaGenerator::subschema_for::<T>)
}

/// The schema of either type.
pub(super) fn either<A: JsonSchema, B: JsonSchema>() -> Kind {
    Kind::Any(vec![SchemaGenerator::subschema_for::<A>, SchemaGenerator::subschema_for::<B>])
}

fn param(name: &'static str, kind: Kind, doc: &'static str) -> Param {
    Param { name, place: "query", doc, required: false, kind }
}

/// A text in the query.
pub(super) fn text(name: &'static str, doc: &'static str) -> Param {
    param(name, Kind::Json(json!({ "type": "string" })), doc)
}

/// A text with rules.
pub(super) fn like(name: &'static str, schema: Value, doc: &'static str) -> Param {
    param(name, Kind::Json(schema), doc)
}

/// A whole number in the query.
pub(super) fn number<N: Into<u64> + Copy>(name: &'static str, range: RangeInclusive<N>, doc: &'static str) -> Param {
    let (least, most): (u64, u64) = ((*range.start()).into(), (*range.end()).into());
    param(name, Kind::Json(json!({ "type": "integer", "minimum": least, "maximum": most })), doc)
}

/// `true` or `false` in the query.
pub(super) fn truth(name: &'static str, doc: &'static str) -> Param {
    param(name, Kind::Json(json!({ "type": "boolean", "default": false })), doc)
}

/// One of a type's words.
pub(super) fn word<T: JsonSchema>(name: &'static str, doc: &'static str) -> Param {
    param(name, of::<T>(), doc)
}

impl Param {
    pub(super) fn required(mut self) -> Self {
        self.required = true;
        self
    }

    /// May be given more than once.
    pub(super) fn many(mut self) -> Self {
        self.kind = Kind::List(Box::new(self.kind));
        self
    }

    pub(super) fn in_header(mut self) -> Self {
        self.place = "header";
        self
    }
}
