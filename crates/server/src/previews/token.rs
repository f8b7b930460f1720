//! A visitor's token: where it may stand, and how it is taken out before the program inside could see it.

use axum::http::header::COOKIE;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderValue, Uri};

/// Header of a token.
const HEADER: &str = "x-runtime-preview-token";
/// Name of a token in a query, and of the cookie that a browser gets for it.
pub(super) const NAME: &str = "runtime_preview_token";

/// Where a token stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the header.
    Header,
    /// In the address.
    Query,
    /// In the cookie.
    Cookie,
}

/// Takes every token out of a request, and gives the one that counts: what was said on purpose before what a browser
/// says by itself.
pub(super) fn take(uri: &mut Uri, headers: &mut HeaderMap) -> Option<(String, Place)> {
    let header = headers.remove(HEADER).and_then(|value| value.to_str().ok().map(str::to_owned));
    let query = take_from_query(uri);
    let cookie = take_from_cookies(headers);
    let found = [(header, Place::Header), (query, Place::Query), (cookie, Place::Cookie)];
    found.into_iter().find_map(|(token, place)| Some((token?, place)))
}

fn take_from_query(uri: &mut Uri) -> Option<String> {
    let query = uri.query()?;
    let mut token = None;
    let mut rest: Vec<&str> = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((NAME, value)) => token = crate::query::decoded(value, true),
            _ => rest.push(pair),
        }
    }
    if rest.len() == query.split('&').count() {
        return None;
    }
    let mut text = uri.path().to_owned();
    if !rest.is_empty() {
        text.push('?');
        text.push_str(&rest.join("&"));
    }
    // A part of what was a path and a query is one too.
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = PathAndQuery::try_from(text).ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
    token
}

fn take_from_cookies(headers: &mut HeaderMap) -> Option<String> {
    let mut token = None;
    let kept: Vec<String> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .filter(|pair| match pair.split_once('=') {
            Some((NAME, value)) => {
                token.get_or_insert_with(|| value.to_owned());
                false
            }
            _ => !pair.is_empty(),
        })
        .map(str::to_owned)
        .collect();
    if token.is_some() {
        headers.remove(COOKIE);
        if let Ok(value) = HeaderValue::try_from(kept.join("; "))
            && !kept.is_empty()
        {
            headers.insert(COOKIE, value);
        }
    }
    token
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_out_wherever_they_stand() {
        let mut uri: Uri = "/a?x=1&runtime_preview_token=q&y=2".parse().expect("a URI");
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_static("h"));
        headers.insert(COOKIE, HeaderValue::from_static("a=b; runtime_preview_token=c; d=e"));
        assert_eq!(take(&mut uri, &mut headers), Some(("h".into(), Place::Header)));
        assert_eq!(uri.to_string(), "/a?x=1&y=2");
        assert_eq!(headers.get(COOKIE).expect("the rest"), "a=b; d=e");
        assert_eq!(headers.len(), 1);
        assert_eq!(take(&mut uri, &mut headers), None);

        let mut uri: Uri = "/?runtime_preview_token=q%2B".parse().expect("a URI");
        headers.insert(COOKIE, HeaderValue::from_static("runtime_preview_token=c"));
        assert_eq!(take(&mut uri, &mut headers), Some(("q+".into(), Place::Query)));
        assert_eq!((uri.to_string().as_str(), headers.len()), ("/", 0));
    }
}
