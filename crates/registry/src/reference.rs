//! Names of images, as people write them: `alpine`, `ghcr.io/team/app:1.2`, `localhost:5000/app@sha256:…`.
//!
//! The defaults are Docker's: no registry means `docker.io`, one word there means `library/` before it, no tag and no
//! digest mean `latest`. A first part names a registry when it has a dot or a port, or is `localhost`.

use crate::digest::Digest;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use thiserror::Error;

/// A name longer than this is none: 255 of host, 255 of repository, 128 of tag, 71 of digest.
const REFERENCE_CHARS_MAX: usize = 720;
const HOST_CHARS_MAX: usize = 253;
const REPOSITORY_CHARS_MAX: usize = 255;
const TAG_CHARS_MAX: usize = 128;

const DOCKER: &str = "docker.io";
/// Where the API of `docker.io` is.
const DOCKER_API: &str = "registry-1.docker.io";

/// A registry, a repository of it, and a tag or a digest there. Where both are given, the digest decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is no name of an image.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not the name of an image: {why}")]
pub struct ReferenceError {
    text: String,
    why: &'static str,
}

impl Reference {
    /// The registry as one writes it: `docker.io`, `localhost:5000`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository in full: `library/alpine`.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The tag; `latest` where neither tag nor digest were given.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// `sha256:…`, where the name is exact.
    #[must_use]
    pub fn digest(&self) -> Option<&str> {
        self.digest.as_ref().map(Digest::as_str)
    }

    pub(crate) fn exact(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What the API calls the manifest: the digest, else the tag.
    pub(crate) fn manifest_name(&self) -> &str {
        self.digest().or(self.tag()).unwrap_or("latest")
    }

    /// Host and port of the API.
    pub(crate) fn authority(&self) -> &str {
        if self.registry == DOCKER { DOCKER_API } else { &self.registry }
    }

    /// Whether the registry is on this machine, by a name that nobody else can take.
    pub(crate) fn is_loopback(&self) -> bool {
        is_loopback(host_of(&self.registry))
    }
}

/// Whether a host is this machine.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
        || bare.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback())
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let shown: String = text.chars().filter(|c| !c.is_control()).take(REFERENCE_CHARS_MAX).collect();
        parse(text).map_err(|why| ReferenceError { text: shown, why })
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    if text.len() > REFERENCE_CHARS_MAX {
        return Err("it is too long");
    }
    let (text, digest) = match text.split_once('@') {
        Some((name, digest)) => {
            (name, Some(Digest::parse(digest).ok_or("a digest is `sha256:` and 64 hexadecimal digits")?))
        }
        None => (text, None),
    };
    let (registry, rest) = split_registry(text);
    let (path, tag) = match rest.split_once(':') {
        Some((path, tag)) => (path, Some(tag.to_owned())),
        None => (rest, digest.is_none().then(|| "latest".to_owned())),
    };
    let registry = match registry {
        None | Some("index.docker.io") => DOCKER.to_owned(),
        Some(host) => host.to_ascii_lowercase(),
    };
    let repository =
        if registry == DOCKER && !path.contains('/') { format!("library/{path}") } else { path.to_owned() };
    check_registry(&registry)?;
    check_repository(path, &repository)?;
    tag.as_deref().map_or(Ok(()), check_tag)?;
    Ok(Reference { registry, repository, tag, digest })
}

fn split_registry(text: &str) -> (Option<&str>, &str) {
    match text.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (Some(first), rest),
        _ => (None, text),
    }
}

/// The host of `host:port`, with its brackets if it has any.
fn host_of(registry: &str) -> &str {
    match registry.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => registry,
    }
}

fn check_registry(registry: &str) -> Result<(), &'static str> {
    let host = host_of(registry);
    let port = registry[host.len()..].strip_prefix(':');
    let is_word = |label: &str| {
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = label.as_bytes();
        edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    };
    let fine = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => host.len() <= HOST_CHARS_MAX && host.split('.').all(is_word),
    };
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0);
    if !fine || !port.is_none_or(is_port) {
        return Err("its first part is not a host, or its port is no port");
    }
    Ok(())
}

fn check_repository(given: &str, whole: &str) -> Result<(), &'static str> {
    if given.is_empty() {
        return Err("there is no name in it");
    }
    if whole.len() > REPOSITORY_CHARS_MAX {
        return Err("its repository is too long");
    }
    if whole.split('/').all(is_component) {
        return Ok(());
    }
    Err("parts of a repository are lower-case letters and digits, with single `.`, `_`, `__` or dashes between them")
}

/// Letters and digits, with one separator between each two runs of them.
fn is_component(part: &str) -> bool {
    let is_separator = |c: char| matches!(c, '.' | '_' | '-');
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part.split(is_letter).filter(|between| !between.is_empty());
    part.chars().all(|c| is_letter(c) || is_separator(c))
        && part.starts_with(is_letter)
        && part.ends_with(is_letter)
        && separators.into_iter().all(|s| matches!(s, "." | "_" | "__") || s.bytes().all(|b| b == b'-'))
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let fine = tag.len() <= TAG_CHARS_MAX
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || matches!(b, b'.' | b'-'));
    if fine { Ok(()) } else { Err("a tag is up to 128 letters, digits, `_`, `.` and dashes") }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing step of a test is its failure")]
mod tests {
    use super::Reference;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn the_usual_defaults() {
        for (short, whole) in [
            ("alpine", "docker.io/library/alpine:latest"),
            ("alpine:3.20", "docker.io/library/alpine:3.20"),
            ("index.docker.io/alpine", "docker.io/library/alpine:latest"),
            ("team/app", "docker.io/team/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("localhost:5000/team/app:x", "localhost:5000/team/app:x"),
            ("[::1]:5000/app", "[::1]:5000/app:latest"),
            ("GHCR.io/a/b__c.d--e/f", "ghcr.io/a/b__c.d--e/f:latest"),
        ] {
            let reference: Reference = short.parse().unwrap();
            assert_eq!(reference.to_string(), whole);
            assert_eq!(whole.parse::<Reference>().unwrap(), reference);
        }
        let exact: Reference = format!("localhost:5000/team/app@{DIGEST}").parse().unwrap();
        assert_eq!((exact.tag(), exact.digest(), exact.manifest_name()), (None, Some(DIGEST), DIGEST));
        let both: Reference = format!("app:1@{DIGEST}").parse().unwrap();
        assert_eq!((both.tag(), both.manifest_name(), both.authority()), (Some("1"), DIGEST, "registry-1.docker.io"));
    }

    #[test]
    fn what_is_no_name() {
        let long = "a".repeat(256);
        for wrong in [
            "",
            ":x",
            "@",
            "a@sha256:0",
            "A",
            "a//b",
            "/a",
            "a/",
            "a:",
            "a:-x",
            "a:b:c",
            "a___b",
            "a._b",
            "-a",
            "a-",
            "../a",
            "a/../b",
            "host.x:0/a",
            "host.x:99999/a",
            "host.x:+5/a",
            "-x.y/a",
            "x..y/a",
            "[::1/a",
            "[x]:1/a",
            "user@host.x/a",
            "a b",
            "a\n",
            "a?x=y",
            "ä",
            &long,
            "host.x/",
        ] {
            assert!(wrong.parse::<Reference>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn loopback_is_only_what_nobody_else_can_be() {
        for (name, loopback) in [
            ("localhost/a", true),
            ("localhost:1/a", true),
            ("127.0.0.1:1/a", true),
            ("127.9.9.9:1/a", true),
            ("[::1]:1/a", true),
            ("localhost.evil.com/a", false),
            ("127.0.0.1.evil.com/a", false),
            ("128.0.0.1/a", false),
            ("0.0.0.0:1/a", false),
            ("[::2]:1/a", false),
            ("alpine", false),
        ] {
            assert_eq!(name.parse::<Reference>().unwrap().is_loopback(), loopback, "{name}");
        }
    }
}
