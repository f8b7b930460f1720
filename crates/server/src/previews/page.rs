//! What a visitor is told when there is nothing to show.

use axum::body::Body;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use branchbox_node::Refused;

/// A page, or plain text for whoever does not ask for pages.
pub(super) fn page(status: StatusCode, message: &str, headers: &HeaderMap) -> Response<Body> {
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (kind, text) = if accepts.contains("text/html") {
        // Messages are ours and hold nothing to escape.
        let title = status.canonical_reason().unwrap_or("preview");
        let body =
            format!("<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1><p>{message}</p>\n");
        ("text/html; charset=utf-8", body)
    } else {
        ("text/plain; charset=utf-8", format!("{message}\n"))
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn refused(why: Refused, headers: &HeaderMap) -> Response<Body> {
    let (status, message) = match why {
        Refused::NoSandbox => (StatusCode::NOT_FOUND, "There is no such preview."),
        Refused::NotShared => (StatusCode::NOT_FOUND, "This port is not shared."),
        Refused::Deleted => (StatusCode::GONE, "This sandbox is deleted."),
        Refused::NoToken => (
            StatusCode::UNAUTHORIZED,
            "This preview is private: open its urlWithToken, or send its token as x-runtime-preview-token.",
        ),
        Refused::BadToken => {
            (StatusCode::FORBIDDEN, "This token is not valid for this preview, or no more. Ask for a new one.")
        }
    };
    page(status, message, headers)
}
