//! What operations share: schemas, failures, headers, the key.

use super::{KEY_BYTES_MAX, KEY_PATTERN_REST};
use branchbox_api::{CellEvent, ErrorBody, SocketEvent, StreamEvent};
use branchbox_model::Code;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Makes schemas of answers, as they are written.
pub(super) fn generator() -> SchemaGenerator {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = "/components/schemas".into();
    settings.meta_schema = None;
    settings.into_generator()
}

/// The headers of every answer.
pub(super) fn headers() -> Value {
    json!({ "x-request-id": { "$ref": "#/components/headers/RequestId" } })
}

pub(super) fn components(mut schemas: Map<String, Value>) -> Value {
    let mut generator = generator();
    generator.subschema_for::<ErrorBody>();
    generator.subschema_for::<StreamEvent>();
    generator.subschema_for::<CellEvent>();
    generator.subschema_for::<SocketEvent>();
    schemas.extend(generator.take_definitions(true));
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    let doc = "A stable code; newer nodes may know more.";
    schemas.insert("ErrorCode".into(), json!({ "type": "string", "description": doc, "enum": codes }));
    json!({
        "schemas": schemas,
        "responses": failures(),
        "headers": {
            "RequestId": { "description": "The request, for the node's log.", "schema": { "type": "string" } },
            "RetryAfter": { "description": "Seconds after which to try again.", "schema": { "type": "integer" } },
        },
        "parameters": {
            "IdempotencyKey": {
                "name": "Idempotency-Key",
                "in": "header",
                "required": false,
                "description": "Requests with the same key run once; answers are kept for a day.",
                "schema": {
                    "type": "string",
                    "pattern": format!("^[A-Za-z0-9]{KEY_PATTERN_REST}{{0,{}}}$", KEY_BYTES_MAX - 1),
                },
            },
        },
        "securitySchemes": {
            "key": { "type": "http", "scheme": "bearer", "description": "The node's admin key, or one made with it." },
        },
    })
}

/// One response for each status of a failure, with its codes.
fn failures() -> Map<String, Value> {
    let mut of_status: BTreeMap<u16, BTreeSet<&str>> = BTreeMap::new();
    for code in Code::ALL {
        of_status.entry(code.status()).or_default().insert(code.as_str());
    }
    let failure = |(status, codes): (u16, BTreeSet<&str>)| {
        let named: Vec<String> = codes.iter().map(|code| format!("`{code}`")).collect();
        let codes = json!({ "properties": { "error": { "properties": { "code": { "enum": codes } } } } });
        let schema = json!({ "allOf": [{ "$ref": "#/components/schemas/ErrorBody" }, codes] });
        let mut headers = headers();
        headers["retry-after"] = json!({ "$ref": "#/components/headers/RetryAfter" });
        let response = json!({
            "description": format!("One of {}.", named.join(", ")),
            "headers": headers,
            "content": { "application/json": { "schema": schema } },
        });
        (format!("Error{status}"), response)
    };
    of_status.into_iter().map(failure).collect()
}
