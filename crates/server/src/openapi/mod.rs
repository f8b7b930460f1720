//! The API document: OpenAPI 3.1, made from the code that answers.
//!
//! Paths, parameters and statuses are in tables here, one entry for each operation; a test asks the table of routes for
//! each of them, and fails for a route that no entry describes. Bodies describe themselves: a request by the code that
//! takes it apart, an answer by its type. What this node does not have comes from `unavailable`, and is answered 501.
//! `docs/reference/openapi.json` is the document as it is kept; a test fails when it is not this one.

mod account;
mod components;
mod inside;
mod operation;
mod sandboxes;

use crate::idempotency::{KEY_BYTES_MAX, KEY_PATTERN_REST};
use crate::unavailable;
use branchbox_api::{PAGE_MAX, mode_schema, name_schema, path_schema};
use operation::{Body, Content, Operation, Param, like, number, text as texts};
use schemars::SchemaGenerator;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// How the document is laid out.
const OPENAPI: &str = "3.1.0";
const ABOUT: &str = "The HTTP API of a Branchbox node. Requests carry a key as a bearer, bodies are JSON objects in which \
    unknown fields are refused and `null` is the same as absent, times are ISO 8601 in UTC. Every failure has one form, \
    with a stable code. A request that changes something may carry an idempotency key; a repeated one is answered as the \
    first was, with `replayed`.";

static DOCUMENT: LazyLock<Value> = LazyLock::new(make);

/// The document.
pub(crate) fn document() -> &'static Value {
    &DOCUMENT
}

/// The document as text, as it is kept.
#[must_use]
pub fn text() -> String {
    // A value has only text keys, so it can always be written.
    serde_json::to_string_pretty(document()).unwrap_or_default() + "\n"
}

fn operations() -> Vec<Operation> {
    [account::operations(), sandboxes::operations(), inside::operations()].concat()
}

fn make() -> Value {
    let mut generator = components::generator();
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for operation in operations() {
        let (method, path) = (operation.method, operation.path.clone());
        let described = describe(operation, &mut generator, &mut schemas);
        put(&mut paths, path, method, described);
    }
    for (method, path, hint) in unavailable::table() {
        let described = absent(&path, hint);
        put(&mut paths, path, method, described);
    }
    schemas.extend(generator.take_definitions(true));
    json!({
        "openapi": OPENAPI,
        "info": {
            "title": "Branchbox",
            "version": env!("CARGO_PKG_VERSION"),
            "description": ABOUT,
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/", "description": "The node that serves this document." }],
        "security": [{ "key": [] }],
        "paths": paths,
        "components": components::components(schemas),
    })
}

fn put(paths: &mut Map<String, Value>, path: String, method: &str, operation: Value) {
    let path = paths.entry(path).or_insert_with(|| json!({}));
    path[method] = operation;
}

fn describe(operation: Operation, generator: &mut SchemaGenerator, schemas: &mut Map<String, Value>) -> Value {
    let mut parameters = path_parameters(&operation.path);
    parameters.extend(operation.params.into_iter().map(|param| {
        json!({
            "name": param.name,
            "in": param.place,
            "required": param.required,
            "description": param.doc,
            "schema": param.kind.schema(generator),
        })
    }));
    if operation.method != "get" {
        parameters.push(json!({ "$ref": "#/components/parameters/IdempotencyKey" }));
    }
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [tag(&operation.path)],
        "parameters": parameters,
        "responses": responses(operation.answers, &operation.errors, generator),
    });
    if operation.public {
        described["security"] = json!([]);
    }
    if let Some(carried) = operation.body {
        described["requestBody"] = body(carried, generator, schemas);
    }
    described
}

fn responses(
    answers: Vec<(u16, &'static str, Vec<Content>)>,
    errors: &std::collections::BTreeSet<u16>,
    generator: &mut SchemaGenerator,
) -> Map<String, Value> {
    let mut responses = Map::new();
    for (status, doc, contents) in answers {
        let mut response = json!({ "description": doc, "headers": components::headers() });
        let contents: Map<String, Value> =
            contents.into_iter().filter_map(|content| content_of(content, generator)).collect();
        if !contents.is_empty() {
            response["content"] = Value::Object(contents);
        }
        responses.insert(status.to_string(), response);
    }
    for status in errors {
        responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/Error{status}") }));
    }
    responses
}

fn body(body: Body, generator: &mut SchemaGenerator, schemas: &mut Map<String, Value>) -> Value {
    let content = content_of(body.content, generator).map(|(media, mut described)| {
        if let Some(name) = body.name {
            schemas.insert(name.to_owned(), described["schema"].take());
            described["schema"] = json!({ "$ref": format!("#/components/schemas/{name}") });
        }
        (media, described)
    });
    json!({ "required": body.required, "content": content.into_iter().collect::<Map<_, _>>() })
}

fn content_of(content: Content, generator: &mut SchemaGenerator) -> Option<(String, Value)> {
    let (media, described) = match content {
        Content::Nothing => return None,
        Content::Json(kind) => ("application/json", json!({ "schema": kind.schema(generator) })),
        Content::Lines(kind) => (
            "application/x-ndjson",
            json!({
                "schema": { "type": "string", "description": "Lines, each a JSON object like `x-line`." },
                "x-line": kind.schema(generator),
            }),
        ),
        Content::Bytes(bytes_max) => {
            let mut schema = json!({ "type": "string", "format": "binary" });
            if let Some(bytes_max) = bytes_max {
                schema["maxLength"] = bytes_max.into();
            }
            ("application/octet-stream", json!({ "schema": schema }))
        }
    };
    Some((media.to_owned(), described))
}

/// A route of the contract that this node does not have.
fn absent(path: &str, hint: &str) -> Value {
    let name: String = path.split(|c: char| !c.is_ascii_alphanumeric()).fold(String::from("absent"), |name, word| {
        let mut letters = word.chars();
        name + &letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    });
    json!({
        "operationId": name,
        "summary": format!("Not on this node: {hint}."),
        "tags": ["absent"],
        "parameters": path_parameters(path),
        "responses": responses(Vec::new(), &[401, 501].into(), &mut components::generator()),
        "x-unavailable": true,
    })
}

/// The names in a path: of things by their ids or names, but for ports.
fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let described = names.map(|name| {
        let schema = match name {
            "port" => json!({ "type": "integer", "minimum": 1, "maximum": u16::MAX }),
            _ => name_schema(),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    described.collect()
}

/// The part of the API that a path is in.
fn tag(path: &str) -> &str {
    let parts: Vec<&str> = path.trim_start_matches("/v1/").split(['/', ':', '.']).collect();
    match parts.as_slice() {
        ["sandboxes", "{sandbox}", part @ ("files" | "uploads" | "processes" | "interpreter" | "previews"), ..] => part,
        [part, ..] => part,
        [] => path,
    }
}

fn page() -> Param {
    number("limit", 1..=PAGE_MAX, "Things in one page.")
}

/// An id in the query.
fn id_param(name: &'static str, doc: &'static str) -> Param {
    let hex = |digits: u8| format!("[0-9a-f]{{{digits}}}");
    let pattern = format!("^{}-{}-{}-{}-{}$", hex(8), hex(4), hex(4), hex(4), hex(12));
    like(name, json!({ "type": "string", "pattern": pattern }), doc)
}

fn cursor() -> Param {
    id_param("cursor", "Where to go on: `nextCursor` of the page before.")
}

fn path() -> Param {
    like("path", path_schema(), "The file or folder.").required()
}

fn mode() -> Param {
    like("mode", mode_schema(), "Permissions of a new file.")
}

fn wait() -> Param {
    texts("Prefer", "`wait=60`: answer when it is ready, or after so many seconds as it is then.").in_header()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{self, Route};
    use axum::http::Method;
    use std::collections::BTreeSet;

    fn found(method: &str, path: &str) -> Result<Route, String> {
        let path = path.replace(['{', '}'], "");
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).expect("a method");
        let components = crate::query::components(&path).expect("a path");
        routes::find(&method, &components).map_err(|failure| format!("{path}: {}", failure.0.message))
    }

    #[test]
    fn every_route_is_described_and_every_description_has_a_route() {
        let described: BTreeSet<String> = operations()
            .iter()
            .map(|operation| format!("{:?}", found(operation.method, &operation.path).expect("a route")))
            .map(|route| route.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        let missing: Vec<_> = Route::NAMES.iter().filter(|name| !described.contains(**name)).collect();
        assert!(missing.is_empty(), "not in the API document: {missing:?}");
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let mut seen = BTreeSet::new();
        for operation in document()["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object()) {
            for described in operation.values() {
                let id = described["operationId"].as_str().expect("a name");
                assert!(seen.insert(id.to_owned()), "{id} twice");
            }
        }
    }

    #[test]
    fn what_is_said_to_be_absent_is() {
        for (method, path, _) in unavailable::table() {
            let failure = found(method, &path).expect_err("absent");
            assert!(failure.contains("this node has no"), "{failure}");
        }
    }

    #[test]
    fn the_document_that_is_kept_is_the_one_the_code_gives() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
        assert!(std::fs::read_to_string(path).unwrap_or_default() == text(), "run `cargo xtask docs`");
    }
}
