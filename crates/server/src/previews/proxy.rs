//! One visit: the request goes to the program inside over a connection of its own, and what it answers comes back as it
//! comes. An upgrade (a WebSocket) joins the two connections.
//!
//! The visit ends early when the port is shared no more, the sandbox is paused or stopped, or the node goes down.

use super::{host, page, token};
use crate::app::App;
use crate::sockets::Place;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, SET_COOKIE, UPGRADE, X_FRAME_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use branchbox_node::{Inside, NodeError, Visit};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tokio::io::copy_bidirectional;

/// How long a browser keeps a token that it got in an address; the token itself may end sooner.
const COOKIE_SECONDS: u32 = 604_800;
/// Headers that belong to one connection (RFC 9110, 7.6.1); `connection` names more.
const OF_CONNECTION: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Serves a visit to the preview that a label names.
pub(crate) async fn visit(app: &Arc<App>, label: &str, mut request: Request<Body>) -> Response<Body> {
    let asked = request.headers().clone();
    let answer = |status, message: &str| page::page(status, message, &asked);
    let Some((port, id)) = host::target(label) else {
        return answer(StatusCode::NOT_FOUND, "There is no such preview.");
    };
    let mut uri = request.uri().clone();
    let given = token::take(&mut uri, request.headers_mut());
    let visit = match app.node.visit(id, port, given.as_ref().map(|(token, _)| token.as_str())).await {
        Ok(visit) => visit,
        Err(why) => return page::refused(why, &asked),
    };
    let Ok(place) = app.visits.take(label) else {
        return answer(StatusCode::TOO_MANY_REQUESTS, "This preview has too many visitors at once. Try again.");
    };
    let inside = match visit.reach.dial(port).await {
        Ok(inside) => inside,
        Err(error) => return unreachable(&error, port, &asked),
    };
    *request.uri_mut() = relative(&uri);
    prepare(app, request.headers_mut());
    let cookie = given.filter(|(_, place)| *place == token::Place::Query).map(|(token, _)| token);
    let embed_origins = visit.embed_origins.clone();
    match forward(app, visit, inside, place, request).await {
        Ok(mut response) => {
            finish(response.headers_mut(), cookie.as_deref(), &embed_origins);
            response
        }
        Err(problem) => {
            tracing::debug!(%problem, label, "a visit failed");
            answer(StatusCode::BAD_GATEWAY, "The program in the sandbox did not answer as an HTTP server does.")
        }
    }
}

fn unreachable(error: &NodeError, port: u16, asked: &HeaderMap) -> Response<Body> {
    match error {
        NodeError::Guest(_) => {
            let message = format!(
                "Nothing listens on port {port} in the sandbox. Start a server there, on 0.0.0.0 or localhost, and reload."
            );
            page::page(StatusCode::BAD_GATEWAY, &message, asked)
        }
        NodeError::Stopped { .. } => page::page(StatusCode::GONE, "This sandbox is stopped.", asked),
        NodeError::Paused { .. } => {
            page::page(StatusCode::CONFLICT, "This sandbox is paused, and visits do not wake it.", asked)
        }
        _ => page::page(StatusCode::SERVICE_UNAVAILABLE, "This sandbox is not running now. Try again.", asked),
    }
}

/// A request line as a server expects it.
fn relative(uri: &Uri) -> Uri {
    uri.path_and_query().map_or_else(|| Uri::from_static("/"), |path| Uri::from(path.clone()))
}

/// Takes away what belongs to this connection, and says how the request came.
fn prepare(app: &App, headers: &mut HeaderMap) {
    let upgrade = upgrade_of(headers);
    strip(headers);
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    // A key of the node that was sent here by mistake is none of the sandbox's business.
    let is_ours = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        text.split_once(' ').is_some_and(|(_, key)| app.node.caller(key.trim()).is_some())
    };
    if headers.get(AUTHORIZATION).is_some_and(is_ours) {
        headers.remove(AUTHORIZATION);
    }
    // What a proxy in front of the node has said is more than what the node knows.
    if let Some(host) = headers.get("host").cloned() {
        headers.entry("x-forwarded-host").or_insert(host);
    }
    headers.entry("x-forwarded-proto").or_insert(HeaderValue::from_static("http"));
    headers.entry("x-forwarded-for").or_insert(HeaderValue::from_static("127.0.0.1"));
}

/// The protocol that a request or an answer changes to.
fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let named = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let says_so = named.flat_map(|line| line.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|_| says_so).cloned()
}

fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(','))
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    for name in OF_CONNECTION {
        headers.remove(*name);
    }
    for name in named {
        headers.remove(name);
    }
}

/// Sends the request and gives the answer as it begins; the rest follows by itself.
async fn forward(
    app: &App,
    visit: Visit,
    inside: Inside,
    place: Place,
    mut request: Request<Body>,
) -> Result<Response<Body>, hyper::Error> {
    let client = request.extensions_mut().remove::<OnUpgrade>();
    let (ended, unshared, closing) = (inside.ended(), visit.unshared(), crate::sockets::closing(&app.node));
    let over = async move {
        tokio::select! {
            () = ended => {}
            () = unshared => {}
            () = closing => {}
        }
    };
    let held = (visit, place);
    let (mut sender, connection): (SendRequest<Body>, _) = http1::handshake(TokioIo::new(inside)).await?;
    let (joined, join) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let _held = held;
        let carried = async {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a visit was cut off");
            }
            // Sent, or dropped, once the answer has begun.
            if let Ok((client, server)) = join.await {
                join_upgraded(client, server).await;
            }
        };
        tokio::select! {
            () = carried => {}
            () = over => {}
        }
    });
    let mut response = sender.send_request(request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let protocol = upgrade_of(response.headers());
        let server = hyper::upgrade::on(&mut response);
        strip(response.headers_mut());
        if let (Some(client), Some(protocol)) = (client, protocol) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(UPGRADE, protocol);
            // The task that holds the other end lives until the connection is over.
            let _ = joined.send((client, server));
        }
    } else {
        strip(response.headers_mut());
    }
    Ok(response.map(Body::new))
}

async fn join_upgraded(client: OnUpgrade, server: OnUpgrade) {
    if let (Ok(client), Ok(server)) = tokio::join!(client, server) {
        // How it ends is the two sides' own affair.
        let _ = copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
    }
}

/// Adds to an answer what belongs to the preview and not to the program.
fn finish(headers: &mut HeaderMap, cookie: Option<&str>, embed_origins: &[String]) {
    if let Some(token) = cookie {
        // In a frame of another site only such a cookie is sent; browsers take it from *.localhost without TLS.
        let framed = if embed_origins.is_empty() { "SameSite=Lax" } else { "SameSite=None; Secure" };
        let text = format!("{}={token}; Path=/; HttpOnly; {framed}; Max-Age={COOKIE_SECONDS}", token::NAME);
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.append(SET_COOKIE, value);
        }
    }
    if !embed_origins.is_empty() {
        headers.remove(X_FRAME_OPTIONS);
        let policy = format!("frame-ancestors 'self' {}", embed_origins.join(" "));
        if let Ok(value) = HeaderValue::try_from(policy) {
            headers.append(CONTENT_SECURITY_POLICY, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_go_no_further() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("connection", "keep-alive, X-Mine"), ("x-mine", "1"), ("te", "trailers"), ("x", "2")] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        strip(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x"]);
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(upgrade_of(&headers), None);
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert_eq!(upgrade_of(&headers).expect("a protocol"), "websocket");
    }

    #[test]
    fn sites_that_may_embed_are_named_and_an_old_refusal_goes() {
        let mut headers = HeaderMap::new();
        headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
        finish(&mut headers, Some("t"), &["https://a.example".into()]);
        assert_eq!(headers.get(CONTENT_SECURITY_POLICY).expect("a policy"), "frame-ancestors 'self' https://a.example");
        assert!(headers.get(X_FRAME_OPTIONS).is_none());
        assert!(headers.get(SET_COOKIE).expect("a cookie").to_str().expect("text").contains("SameSite=None; Secure"));
    }
}
