//! Logging in: what a registry asks for with 401, and the answer to that.
//!
//! A registry asks for `Basic`, which is name and password themselves, or for `Bearer`: it names a token server (the
//! *realm*), which gives a token for a scope, to anybody or to somebody with a password. The realm must be HTTPS, or
//! on the loopback when the registry is: what a registry says must not make the node talk to its own machine, nor
//! send a password in the open. A token server's redirects are not followed.

use crate::limits::TOKEN_BYTES_MAX;
use crate::session::{self, Session};
use crate::{RegistryError, session::read_all};
use serde::Deserialize;
use std::fmt;
use ureq::http::{HeaderMap, header::WWW_AUTHENTICATE};

/// A name and a password, or a token in the password's place.
#[derive(Clone)]
pub struct Credentials {
    /// The account's name.
    pub username: String,
    /// The password; never shown.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    fn header(&self) -> String {
        format!("Basic {}", base64(format!("{}:{}", self.username, self.password).as_bytes()))
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

/// The `Authorization` header that answers a 401 with these headers.
pub(crate) fn log_in(session: &Session<'_>, headers: &HeaderMap) -> Result<String, RegistryError> {
    let reference = session.reference();
    let asked: Vec<Challenge> = headers
        .get_all(WWW_AUTHENTICATE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(parse_challenges)
        .collect();
    let of = |scheme: &str| asked.iter().find(|challenge| challenge.scheme.eq_ignore_ascii_case(scheme));
    if let Some(bearer) = of("bearer") {
        return Ok(format!("Bearer {}", load_token(session, bearer)?));
    }
    if of("basic").is_none() {
        return Err(reference.unauthorized("it asks for a way to log in that is not known here"));
    }
    let credentials = session.credentials().ok_or_else(|| reference.unauthorized("it asks for name and password"))?;
    Ok(credentials.header())
}

fn load_token(session: &Session<'_>, asked: &Challenge) -> Result<String, RegistryError> {
    let reference = session.reference();
    let realm = asked.get("realm").ok_or_else(|| reference.broken("it asks for a token and names no realm"))?;
    let realm = session.check_url(realm)?;
    let own_scope = format!("repository:{}:pull", reference.repository());
    let mut query = format!("scope={}", percent_encoded(asked.get("scope").unwrap_or(&own_scope)));
    if let Some(service) = asked.get("service") {
        query = format!("service={}&{query}", percent_encoded(service));
    }
    let mark = if realm.query().is_some() { '&' } else { '?' };
    let authorization = session.credentials().map(Credentials::header);
    let response = session.send(&format!("{realm}{mark}{query}"), authorization.as_deref(), None, 0)?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => {
            let what = if authorization.is_some() {
                "its token server refuses the credentials"
            } else {
                "it asks for credentials"
            };
            return Err(reference.unauthorized(format!("{what}{}", session::message_of(response))));
        }
        status => return Err(session.unexpected("the token server", status, response)),
    }
    let bytes = read_all(session, response, TOKEN_BYTES_MAX, "the token")?;
    let answer: TokenAnswer =
        serde_json::from_slice(&bytes).map_err(|_| reference.broken("the token server's answer is not understood"))?;
    let token = answer.token.filter(|token| !token.is_empty()).or(answer.access_token).unwrap_or_default();
    if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(reference.broken("the token server's answer holds no token"));
    }
    Ok(token)
}

/// One way to log in.
#[derive(Debug, PartialEq, Eq)]
struct Challenge {
    scheme: String,
    parameters: Vec<(String, String)>,
}

impl Challenge {
    fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// `Bearer realm="…",service="…", Basic realm="…"`: a word before `=` is a parameter, any other begins a challenge.
fn parse_challenges(header: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    let mut rest = header.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '=', '\t']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let after = after.trim_start();
        if let Some(value) = after.strip_prefix('=') {
            let (value, after) = take_value(value.trim_start());
            if let Some(challenge) = found.last_mut() {
                challenge.parameters.push((word.to_owned(), value));
            }
            rest = after;
        } else {
            found.push(Challenge { scheme: word.to_owned(), parameters: Vec::new() });
            rest = after;
        }
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    found
}

/// A quoted text or a word, and what comes after it.
fn take_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (word, after) = text.split_at(text.find([' ', ',', '\t']).unwrap_or(text.len()));
        return (word.to_owned(), after);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            c => value.push(c),
        }
    }
    (value, "")
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            byte => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let sextet = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= three.len() { char::from(sextet) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_come_apart() {
        let asked = parse_challenges(
            r#"Bearer realm="https://a.b/t?x=1,2",service="s \"q\"" , scope=repository:a/b:pull, Basic realm="r""#,
        );
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0].get("Realm"), Some("https://a.b/t?x=1,2"));
        assert_eq!(asked[0].get("service"), Some(r#"s "q""#));
        assert_eq!(asked[0].get("scope"), Some("repository:a/b:pull"));
        assert_eq!((asked[1].scheme.as_str(), asked[1].get("realm")), ("Basic", Some("r")));
    }

    #[test]
    fn any_text_is_taken_apart_in_time() {
        for text in ["", "=", "\"", "=\"", "a=\"\\", ",,,=,=", "Negotiate abc==", "é=é, \"é", "Bearer realm=\"x"] {
            parse_challenges(text);
        }
        assert_eq!(parse_challenges("Negotiate")[0].scheme, "Negotiate");
    }

    #[test]
    fn encodings() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob?>", "Zm9vYj8+")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(percent_encoded("repository:a/b:pull é"), "repository%3Aa%2Fb%3Apull%20%C3%A9");
    }

    #[test]
    fn a_password_is_not_shown() {
        let shown = format!("{:?}", Credentials { username: "ann".into(), password: "hidden".into() });
        assert!(shown.contains("ann") && !shown.contains("hidden"), "{shown}");
    }
}
