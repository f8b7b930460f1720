//! Requests to one registry: where they go, with which header, how long they may take, what their failures mean.
//!
//! Redirects are followed here and not by the HTTP library, since the rule of this crate is stricter: once a redirect
//! has led away from the registry's own scheme, host and port, nothing secret is sent any more.

use crate::auth::{Credentials, log_in};
use crate::digest::Digest;
use crate::limits::{
    ANSWER_TIMEOUT, CA_FILE_BYTES_MAX, CONNECT_TIMEOUT, ERROR_BYTES_MAX, ERROR_CHARS_MAX, READ_TIMEOUT, REDIRECTS_MAX,
    RESOLVE_TIMEOUT, STALL_BYTES_MIN, STALL_TIMEOUT,
};
use crate::manifest::ACCEPTED;
use crate::reference::is_loopback;
use crate::{Options, Reference, RegistryError};
use serde::Deserialize;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::http::{Response, Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

/// What is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// A manifest, by tag or digest.
    Manifest(&'a str),
    /// A config or layer.
    Blob(&'a Digest),
}

/// One pull's way to its registry.
pub(crate) struct Session<'a> {
    reference: &'a Reference,
    credentials: Option<&'a Credentials>,
    cancelled: Option<&'a AtomicBool>,
    agent: Agent,
    /// `https://host:port`
    base: String,
    /// The header that the registry wants, once it asked.
    authorization: Option<String>,
}

impl<'a> Session<'a> {
    pub fn new(reference: &'a Reference, options: &Options<'a>) -> Result<Self, RegistryError> {
        let is_local = reference.is_loopback();
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("branchbox/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(RESOLVE_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_send_request(Some(READ_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(Some(READ_TIMEOUT))
            .timeout_per_write(Some(READ_TIMEOUT));
        if is_local {
            config = config.proxy(None);
        }
        if let Some(path) = options.ca_file {
            let certificates = read_certificates(path).map_err(|error| reference.disk(path, error))?;
            let roots = RootCerts::Specific(Arc::new(certificates));
            config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        }
        let scheme = if is_local && options.ca_file.is_none() { "http" } else { "https" };
        Ok(Self {
            reference,
            credentials: options.credentials,
            cancelled: options.cancelled,
            agent: Agent::new_with_config(config.build()),
            base: format!("{scheme}://{}", reference.authority()),
            authorization: None,
        })
    }

    pub fn reference(&self) -> &'a Reference {
        self.reference
    }

    pub fn credentials(&self) -> Option<&'a Credentials> {
        self.credentials
    }

    /// The answer with status 200 or 206; logs in when the registry asks for it.
    pub fn get(&mut self, target: Target<'_>, from: u64) -> Result<Response<Body>, RegistryError> {
        let mut has_logged_in = false;
        loop {
            let (response, is_own) = self.follow(target, from)?;
            match response.status().as_u16() {
                200 | 206 => return Ok(response),
                // A token may have run out too, in the middle of a long pull.
                401 if is_own && !has_logged_in => {
                    self.authorization = Some(log_in(self, response.headers())?);
                    has_logged_in = true;
                }
                status => return Err(self.refusal(target, status, response)),
            }
        }
    }

    /// The first answer that leads nowhere else, and whether the registry itself gave it.
    fn follow(&self, target: Target<'_>, from: u64) -> Result<(Response<Body>, bool), RegistryError> {
        let (kind, name, accept) = match target {
            Target::Manifest(name) => ("manifests", name, Some(ACCEPTED)),
            Target::Blob(digest) => ("blobs", digest.as_str(), None),
        };
        let mut url = format!("{}/v2/{}/{kind}/{name}", self.base, self.reference.repository());
        let mut is_own = true;
        for _ in 0..=REDIRECTS_MAX {
            let authorization = self.authorization.as_deref().filter(|_| is_own);
            let response = self.send(&url, authorization, accept, from)?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, is_own));
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let next = self.resolve(&url, location.unwrap_or_default())?;
            is_own = is_own && origin(&next) == self.base.parse().ok().as_ref().and_then(origin);
            url = next.to_string();
        }
        Err(self.reference.broken(format!("it redirects more than {REDIRECTS_MAX} times")))
    }

    /// Where a `Location` leads from `url`.
    fn resolve(&self, url: &str, location: &str) -> Result<Uri, RegistryError> {
        if location.starts_with('/') && !location.starts_with("//") {
            let root = url.find("://").and_then(|at| url[at + 3..].find('/').map(|path| &url[..at + 3 + path]));
            return self.check_url(&format!("{}{location}", root.unwrap_or(&self.base)));
        }
        match location.strip_prefix("//") {
            Some(rest) => self.check_url(&format!("{}://{rest}", url.split(':').next().unwrap_or("https"))),
            None => self.check_url(location),
        }
    }

    /// An address that a registry names: HTTPS, or plain on the loopback for a loopback registry.
    pub fn check_url(&self, url: &str) -> Result<Uri, RegistryError> {
        let parsed: Option<Uri> = url.parse().ok();
        let usable = parsed.filter(|url| {
            let host = url.host().unwrap_or_default();
            let is_plain_but_local = self.reference.is_loopback() && is_loopback(host);
            let has_login = url.authority().is_none_or(|authority| authority.as_str().contains('@'));
            !host.is_empty()
                && !has_login
                && match url.scheme_str() {
                    Some("https") => true,
                    Some("http") => is_plain_but_local,
                    _ => false,
                }
        });
        usable.ok_or_else(|| self.reference.broken(format!("it leads to `{}`, which is not HTTPS", clean(url))))
    }

    /// One request to one place.
    pub fn send(
        &self,
        url: &str,
        authorization: Option<&str>,
        accept: Option<&str>,
        from: u64,
    ) -> Result<Response<Body>, RegistryError> {
        self.check_cancelled()?;
        let mut request = self.agent.get(url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(accept) = accept {
            request = request.header(header::ACCEPT, accept);
        }
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        if from > 0 {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        request.call().map_err(|error| {
            let host = url.split('/').nth(2).unwrap_or_default();
            use ureq::Error::{BadUri, Http, LargeResponseHeader, Protocol};
            match error {
                Http(_) | BadUri(_) | Protocol(_) | LargeResponseHeader(..) => {
                    self.reference.broken(format!("the answer of {host} is no HTTP: {error}"))
                }
                error => self.reference.unreachable(format!("no answer from {host}"), error),
            }
        })
    }

    fn refusal(&self, target: Target<'_>, status: u16, response: Response<Body>) -> RegistryError {
        match (status, target) {
            (404, Target::Manifest(_)) => self.reference.not_found(),
            (404, Target::Blob(digest)) => self.reference.broken(format!("it has no blob {digest}")),
            (401 | 403, _) => self.reference.unauthorized(format!("it answers {status}{}", message_of(response))),
            _ => self.unexpected("it", status, response),
        }
    }

    /// A status that means nothing in particular: later for 429 and 5xx, never for others.
    pub fn unexpected(&self, who: &str, status: u16, response: Response<Body>) -> RegistryError {
        let what = format!("{who} answers {status}{}", message_of(response));
        if status == 429 || status >= 500 { self.reference.refused(what) } else { self.reference.broken(what) }
    }

    pub fn check_cancelled(&self) -> Result<(), RegistryError> {
        match self.cancelled {
            Some(flag) if flag.load(Ordering::Relaxed) => Err(self.reference.cancelled()),
            _ => Ok(()),
        }
    }
}

/// Scheme, host and port, which decide whom a secret is told.
fn origin(url: &Uri) -> Option<(String, String, u16)> {
    let scheme = url.scheme_str()?.to_ascii_lowercase();
    let port = url.port_u16().unwrap_or(if scheme == "http" { 80 } else { 443 });
    Some((scheme, url.host()?.to_ascii_lowercase(), port))
}

fn read_certificates(path: &Path) -> io::Result<Vec<ureq::tls::Certificate<'static>>> {
    let mut text = Vec::new();
    fs_err::File::open(path)?.take(CA_FILE_BYTES_MAX).read_to_end(&mut text)?;
    let mut found = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(io::Error::other)? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there is no PEM certificate in it"));
    }
    Ok(found)
}

/// A body of at most `bytes_max` bytes.
pub(crate) fn read_all(
    session: &Session<'_>,
    response: Response<Body>,
    bytes_max: u64,
    what: &str,
) -> Result<Vec<u8>, RegistryError> {
    let reference = session.reference();
    let mut reader = Paced::new(response.into_body().into_reader()).take(bytes_max + 1);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| reference.unreachable(format!("{what} broke off"), error))?;
    if bytes.len() as u64 > bytes_max {
        return Err(reference.broken(format!("{what} is larger than {bytes_max} bytes")));
    }
    Ok(bytes)
}

#[derive(Deserialize)]
struct ErrorAnswer {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

/// The first error in the registries' error format, made fit to be shown; empty where there is none.
pub(crate) fn message_of(response: Response<Body>) -> String {
    let mut bytes = Vec::new();
    let reader = Paced::new(response.into_body().into_reader()).take(ERROR_BYTES_MAX);
    // An error's text is a help, not a need: the status has been told already.
    if { reader }.read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let answer: Option<ErrorAnswer> = serde_json::from_slice(&bytes).ok();
    answer.and_then(|answer| answer.errors.into_iter().next()).map_or_else(String::new, |first| {
        let text = if first.message.is_empty() { first.code } else { first.message };
        format!(" ({})", clean(&text))
    })
}

/// A foreign text, short and without what could move a terminal's cursor.
pub(crate) fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(ERROR_CHARS_MAX).collect()
}

/// A body that must move on: the library's limit is for one read, and a byte now and then would keep that content.
pub(crate) struct Paced<R> {
    inner: R,
    span: Duration,
    since: Instant,
    bytes: u64,
}

impl<R: Read> Paced<R> {
    pub fn new(inner: R) -> Self {
        Self { inner, span: STALL_TIMEOUT, since: Instant::now(), bytes: 0 }
    }
}

impl<R: Read> Read for Paced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.bytes += length as u64;
        if length > 0 && self.since.elapsed() >= self.span {
            if self.bytes < STALL_BYTES_MIN {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the body hardly moves on"));
            }
            (self.since, self.bytes) = (Instant::now(), 0);
        }
        Ok(length)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing step of a test is its failure")]
mod tests {
    use super::*;

    fn session<'a>(reference: &'a Reference) -> Session<'a> {
        Session::new(reference, &Options { credentials: None, bytes_max: 0, ca_file: None, cancelled: None }).unwrap()
    }

    #[test]
    fn a_body_that_trickles_is_stalled() {
        let at_once = |bytes: u64, span| {
            let mut paced = Paced::new(io::repeat(0).take(bytes));
            paced.span = span;
            paced.read(&mut vec![0; 1 << 20])
        };
        assert_eq!(at_once(1, Duration::ZERO).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(at_once(STALL_BYTES_MIN, Duration::ZERO).is_ok());
        assert!(at_once(1, STALL_TIMEOUT).is_ok());
    }

    #[test]
    fn only_a_loopback_registry_leads_to_plain_http_and_only_on_the_loopback() {
        let far: Reference = "reg.example/a".parse().unwrap();
        let near: Reference = "127.0.0.1:5/a".parse().unwrap();
        for (url, from_far, from_near) in [
            ("https://b.example/x", true, true),
            ("http://b.example/x", false, false),
            ("http://127.0.0.1/x", false, true),
            ("https://ann:pw@b.example/x", false, false),
            ("file:///etc/passwd", false, false),
            ("/x", false, false),
            ("", false, false),
        ] {
            assert_eq!(session(&far).check_url(url).is_ok(), from_far, "{url}");
            assert_eq!(session(&near).check_url(url).is_ok(), from_near, "{url}");
        }
    }

    #[test]
    fn locations_are_resolved_against_where_one_is() {
        let reference: Reference = "reg.example/a".parse().unwrap();
        let session = session(&reference);
        let resolve = |location| session.resolve("https://b.example/x/y", location).map(|url| url.to_string());
        assert_eq!(resolve("/z?q=1").unwrap(), "https://b.example/z?q=1");
        assert_eq!(resolve("//c.example/z").unwrap(), "https://c.example/z");
        assert_eq!(resolve("https://d.example/z").unwrap(), "https://d.example/z");
        assert!(resolve("z").is_err());
    }

    #[test]
    fn an_origin_has_its_port() {
        let origin_of = |url: &str| origin(&url.parse().unwrap());
        assert_eq!(origin_of("https://A.example/x"), origin_of("https://a.example:443/"));
        assert_ne!(origin_of("https://a.example/"), origin_of("https://a.example:444/"));
        assert_ne!(origin_of("https://a.example/"), origin_of("http://a.example:443/"));
    }
}
