//! Which host a request is for.

use axum::http::HeaderMap;
use axum::http::Uri;
use axum::http::header::HOST;

/// The domain of previews; all of it leads to loopback (RFC 6761).
const DOMAIN: &str = ".localhost";

/// The label of a request to a host below `.localhost`, which is no request to the API.
pub(crate) fn label(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    // A request line with a host counts for more than the header (RFC 9112, 3.2.2).
    let host = match uri.host() {
        Some(host) => host.to_owned(),
        None => headers.get(HOST)?.to_str().ok()?.to_owned(),
    };
    let host = host.to_ascii_lowercase();
    let name = host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name);
    name.strip_suffix('.').unwrap_or(name).strip_suffix(DOMAIN).map(str::to_owned)
}

/// The port and the sandbox that a label names.
pub(super) fn target(label: &str) -> Option<(u16, &str)> {
    let (port, id) = label.split_once('-')?;
    let is_plain = !port.starts_with(['0', '+']);
    Some((port.parse().ok().filter(|port| *port != 0 && is_plain)?, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn of(uri: &str, host: &'static str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(host));
        label(&uri.parse().expect("a URI"), &headers)
    }

    #[test]
    fn hosts_below_localhost_are_previews_and_no_others() {
        for host in ["3000-ab.localhost", "3000-AB.Localhost:7070", "3000-ab.localhost.:7070"] {
            assert_eq!(of("/x", host).as_deref(), Some("3000-ab"), "{host}");
        }
        for host in ["localhost", "localhost:7070", "127.0.0.1:7070", "[::1]:7070", "3000-ab.example.com", ""] {
            assert_eq!(of("/v1/me", host), None, "{host}");
        }
        assert_eq!(of("http://3000-ab.localhost/v1/me", "localhost").as_deref(), Some("3000-ab"));
        assert_eq!(of("/", "x.y.localhost").as_deref(), Some("x.y"), "never the API");
    }

    #[test]
    fn a_label_is_a_port_and_a_sandbox() {
        assert_eq!(target("3000-a-b"), Some((3000, "a-b")));
        for bad in ["", "3000", "-a", "0-a", "03-a", "+3-a", "65536-a", "x-a"] {
            assert_eq!(target(bad), None, "{bad}");
        }
    }
}
