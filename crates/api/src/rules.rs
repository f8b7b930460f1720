//! Rules that many requests share, each checked and described in one place.

use crate::fields::Fields;
use branchbox_model::names::{
    ENV_BYTES_MAX, ENV_MAX, LABEL_CHARS_MAX, LABELS_MAX, NAME_BYTES_MAX, check_env, check_labels, check_name,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Longest path, as the kernel has it.
pub(crate) const PATH_BYTES_MAX: usize = 4096;
/// Base64 of the standard alphabet, padded.
pub(crate) const BASE64_PATTERN: &str = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$";
pub(crate) const NO_NUL: &str = r"^[^\u0000]*$";
const NO_CONTROL: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";

/// What `names::check_name` accepts.
#[must_use]
pub fn name_schema() -> Value {
    json!({ "type": "string", "pattern": format!("^[A-Za-z0-9._-]{{1,{NAME_BYTES_MAX}}}$") })
}

/// What [`crate::FileRequest::check_path`] accepts.
#[must_use]
pub fn path_schema() -> Value {
    json!({
        "type": "string",
        "maxLength": PATH_BYTES_MAX,
        "pattern": r"^/(?!\.\.(?:/|$))(?:[^/\u0000]|/(?!\.\.(?:/|$)))*$",
        "description": format!("An absolute path of at most {PATH_BYTES_MAX} bytes, without `..`."),
    })
}

/// What [`crate::FileRequest::check_path`] accepts once a slash stands before it.
#[must_use]
pub fn relative_path_schema() -> Value {
    json!({ "type": "string", "maxLength": PATH_BYTES_MAX - 1, "pattern": r"^(?!\.\.(?:/|$))(?:[^/\u0000]|/(?!\.\.(?:/|$)))*$" })
}

fn pattern(schema: Value) -> Value {
    json!({ "pattern": schema["pattern"] })
}

/// Checks and describes the fields `name`, `labels` and `env`, as far as they were taken.
pub(crate) fn check(
    f: &mut Fields,
    name: Option<&str>,
    labels: Option<&BTreeMap<String, String>>,
    env: Option<&BTreeMap<String, String>>,
) {
    name.into_iter().for_each(|name| f.check(check_name(name)));
    labels.into_iter().for_each(|labels| f.check(check_labels(labels)));
    env.into_iter().for_each(|env| f.check(check_env(env)));
    f.refine("name", || pattern(name_schema()));
    f.refine("labels", || {
        json!({
            "maxProperties": LABELS_MAX,
            "propertyNames": { "minLength": 1, "maxLength": LABEL_CHARS_MAX, "pattern": NO_CONTROL },
            "additionalProperties": { "type": "string", "maxLength": LABEL_CHARS_MAX, "pattern": NO_CONTROL },
        })
    });
    f.refine("env", env_keywords);
}

fn env_keywords() -> Value {
    json!({
        "maxProperties": ENV_MAX,
        "propertyNames": { "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" },
        "additionalProperties": { "type": "string", "pattern": NO_NUL },
        "description": format!("Variables; at most {ENV_BYTES_MAX} bytes in all."),
    })
}

/// Takes a working directory.
pub(crate) fn directory(f: &mut Fields, name: &str) -> Option<String> {
    let path = f.text(name);
    if path.as_ref().is_some_and(|path| !path.starts_with('/') || path.len() > PATH_BYTES_MAX || path.contains('\0')) {
        f.issue(name, format!("must be an absolute path of at most {PATH_BYTES_MAX} bytes"));
    }
    f.refine(name, || json!({ "maxLength": PATH_BYTES_MAX, "pattern": r"^/[^\u0000]*$" }));
    path
}
