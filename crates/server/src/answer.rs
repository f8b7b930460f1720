//! Answers, before they are HTTP.

use crate::routes::ALLOW;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use branchbox_api::{ErrorBody, ErrorInfo, Issues};
use branchbox_model::{Code, Coded};
use branchbox_node::NodeError;
use serde::Serialize;
use serde_json::Value;

/// What a request is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    /// JSON.
    Json {
        /// HTTP status.
        status: u16,
        /// The body.
        body: Value,
    },
    /// Lines of JSON, of a command that can be followed again.
    Stream {
        /// The sandbox.
        sandbox: String,
        /// The command.
        process: String,
        /// The lines.
        body: Body,
    },
    /// Lines of JSON that are told once.
    Lines {
        /// The lines.
        body: Body,
    },
    /// Bytes whose number is not known before the end; cut off, so that no reader takes them for whole, if they fail.
    Bytes {
        /// The bytes.
        body: Body,
    },
    /// A file.
    File {
        /// Its length.
        size: u64,
        /// Its bytes.
        body: Body,
    },
    /// The connection becomes another protocol's.
    Switch(Response<Body>),
}

/// An answer, or what is wrong.
pub(crate) type Answered = Result<Answer, Failure>;

/// A failure in its wire form.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) Box<ErrorInfo>);

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self(Box::new(ErrorInfo::new(code, message, hint)))
    }
}

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Self {
        if let NodeError::Spec(spec) = &error {
            return Issues::one(spec.field, spec.problem.clone()).into();
        }
        let mut info = ErrorInfo::of(&error);
        if error.code() == Code::InternalError {
            tracing::error!(%error, "a request failed");
        }
        if !error.started().is_empty() {
            let ids = error.started().iter().map(|id| Value::String(id.to_string())).collect();
            info.details.insert("startedSandboxIds".into(), Value::Array(ids));
        }
        Self(Box::new(info))
    }
}

impl From<Issues> for Failure {
    fn from(issues: Issues) -> Self {
        Self(Box::new(ErrorInfo::of_issues(&issues)))
    }
}

impl Answer {
    /// A 200.
    pub(crate) fn ok<T: Serialize>(body: &T) -> Answered {
        Self::json(200, body)
    }

    /// A 201.
    pub(crate) fn created<T: Serialize>(body: &T) -> Answered {
        Self::json(201, body)
    }

    fn json<T: Serialize>(status: u16, body: &T) -> Answered {
        let unwritable = |error| {
            Failure::new(Code::InternalError, format!("an answer that cannot be written: {error}"), "report this")
        };
        Ok(Self::Json { status, body: serde_json::to_value(body).map_err(unwritable)? })
    }
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Whether an answer is the first to its request or a kept one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It ran now.
    Fresh,
    /// It ran before.
    Replayed,
}

/// The HTTP form of an answer.
pub(crate) fn response(answered: Answered, origin: Origin, request_id: &str) -> Response<Body> {
    let mut response = match answered {
        Ok(Answer::Json { status, body }) => json_response(status, &body),
        Ok(Answer::Stream { body, .. } | Answer::Lines { body }) => {
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
            response
        }
        Ok(Answer::Bytes { body }) => {
            let mut response = Response::new(body);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            response
        }
        Ok(Answer::File { size, body }) => file_response(size, body),
        Ok(Answer::Switch(response)) => response,
        Err(Failure(mut info)) => {
            info.request_id = Some(request_id.to_owned());
            failure_response(*info)
        }
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(request_id) {
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    if origin == Origin::Replayed {
        headers.insert(HeaderName::from_static("idempotency-replayed"), HeaderValue::from_static("true"));
    }
    response
}

fn json_response<T: Serialize>(status: u16, body: &T) -> Response<Body> {
    // A value of ours has only text keys, so it can always be written.
    let mut response = Response::new(Body::from(serde_json::to_vec(body).unwrap_or_default()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

fn failure_response(info: ErrorInfo) -> Response<Body> {
    let (status, wait) = (info.status, info.retry_after_ms);
    let allowed = info.details.get(ALLOW).and_then(Value::as_str).and_then(|text| HeaderValue::from_str(text).ok());
    let mut response = json_response(status, &ErrorBody { error: info });
    if let Some(wait) = wait {
        let seconds = HeaderValue::from(wait.div_ceil(1000));
        response.headers_mut().insert(axum::http::header::RETRY_AFTER, seconds);
    }
    if let Some(allowed) = allowed.filter(|_| status == Code::MethodNotAllowed.status()) {
        response.headers_mut().insert(axum::http::header::ALLOW, allowed);
    }
    response
}

fn file_response(size: u64, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    headers.insert(HeaderName::from_static("x-content-length"), HeaderValue::from(size));
    response
}
