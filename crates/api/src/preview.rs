//! Previews: ports of a sandbox, shared over HTTP.

use crate::fields::{Fields, Issues};
use branchbox_model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Shortest and longest life of a token in seconds.
pub const PREVIEW_TTL_SECONDS: std::ops::RangeInclusive<u32> = 60..=604_800;
/// Most sites that may embed one preview.
const EMBED_ORIGINS_MAX: usize = 16;
/// Longest name of a site.
const ORIGIN_BYTES_MAX: usize = 255;
/// A scheme and a host, as [`is_site`] reads it.
const ORIGIN_PATTERN: &str = r"^https?://(?:\*\.)?[A-Za-z0-9.:-]+$";
const VISIBILITIES: &[(&str, Visibility)] = &[("private", Visibility::Private), ("public", Visibility::Public)];

/// Who may visit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// Who has a token.
    #[default]
    Private,
    /// Who knows the address.
    Public,
}

/// `POST …/previews`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct PreviewRequest {
    pub port: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub visibility: Option<Visibility>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub embed_origins: Option<Vec<String>>,
}

/// How long a token lives: the earlier of the two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenLife {
    /// Seconds from now; a day when it is not said.
    pub ttl_seconds: Option<u32>,
    /// At the latest then.
    pub expires_at: Option<Timestamp>,
}

impl PreviewRequest {
    /// Reads a body.
    ///
    /// # Errors
    /// Every issue with it.
    pub fn parse(body: &[u8]) -> Result<Self, Issues> {
        Fields::read(body, Self::read)
    }

    /// Takes its fields.
    pub fn read(f: &mut Fields) -> Self {
        f.required("port");
        let port = f.small_number("port", 1..=65_535).and_then(|port| u16::try_from(port).ok()).unwrap_or(0);
        let visibility = f.word("visibility", VISIBILITIES);
        let ttl_seconds = f.small_number("ttlSeconds", PREVIEW_TTL_SECONDS);
        let expires_at = f.text("expiresAt").and_then(|text| {
            let time = future(&text);
            if time.is_none() {
                f.issue("expiresAt", EXPIRES_AT_RULE);
            }
            time
        });
        f.refine("expiresAt", || json!({ "format": "date-time" }));
        let embed_origins = f.texts("embedOrigins");
        f.refine("embedOrigins", || {
            let site = json!({ "type": "string", "maxLength": ORIGIN_BYTES_MAX, "pattern": ORIGIN_PATTERN });
            json!({ "maxItems": EMBED_ORIGINS_MAX, "items": site })
        });
        if let Some(origins) = &embed_origins {
            if origins.len() > EMBED_ORIGINS_MAX {
                f.issue("embedOrigins", format!("at most {EMBED_ORIGINS_MAX} sites"));
            }
            if let Some(bad) = origins.iter().find(|origin| !is_site(origin)) {
                let shown: String = bad.chars().take(80).collect();
                f.issue("embedOrigins", format!("`{shown}` is no site like https://app.example.com"));
            }
        }
        Self { port, visibility, ttl_seconds, expires_at, embed_origins }
    }

    /// How long its token is to live.
    #[must_use]
    pub fn life(&self) -> TokenLife {
        TokenLife { ttl_seconds: self.ttl_seconds, expires_at: self.expires_at }
    }
}

/// What `expiresAt` must be.
pub const EXPIRES_AT_RULE: &str = "must be an ISO 8601 time to come";

/// A time to come.
#[must_use]
pub fn future(text: &str) -> Option<Timestamp> {
    Timestamp::try_from(text.to_owned()).ok().filter(|time| *time > Timestamp::now())
}

/// Whether it is a scheme and a host, as `frame-ancestors` takes it: the text goes into a header.
fn is_site(origin: &str) -> bool {
    let Some(host) = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://")) else { return false };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
    let host = host.strip_prefix("*.").unwrap_or(host);
    origin.len() <= ORIGIN_BYTES_MAX && !host.is_empty() && host.chars().all(plain)
}

/// A shared port.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct Preview {
    pub id: String,
    pub sandbox_id: String,
    pub port: u16,
    pub visibility: Visibility,
    pub url: String,
    pub token: Option<String>,
    pub token_expires_at: Option<Timestamp>,
    pub url_with_token: Option<String>,
    pub disabled: bool,
    pub embed_origins: Option<Vec<String>>,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Every shared port of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreviewList {
    /// By port.
    pub data: Vec<Preview>,
}

/// A port that is shared no more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the fields are the wire contract's, explained there")]
pub struct DeletedPreview {
    pub id: String,
    pub sandbox_id: String,
    pub port: u16,
    pub deleted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_or_every_issue_is_named() {
        let body = br#"{"port":3000,"visibility":"public","ttlSeconds":60,"embedOrigins":["https://*.example.com"]}"#;
        let request = PreviewRequest::parse(body).expect("a request");
        assert_eq!((request.port, request.visibility), (3000, Some(Visibility::Public)));
        let bad =
            br#"{"port":0,"visibility":"x","ttlSeconds":1,"expiresAt":"2001-01-01T00:00:00Z","embedOrigins":["a;b"]}"#;
        let issues = PreviewRequest::parse(bad).expect_err("issues").0;
        let mut paths: Vec<_> = issues.iter().map(|issue| issue.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["embedOrigins", "expiresAt", "port", "ttlSeconds", "visibility"]);
    }

    #[test]
    fn sites_cannot_smuggle_anything_into_a_header() {
        for good in ["https://app.example.com", "http://localhost:3000", "https://*.example.com"] {
            assert!(is_site(good), "{good}");
        }
        for bad in ["app.example.com", "https://", "https://*", "https://a b", "https://a;script-src", "https://a/b"] {
            assert!(!is_site(bad), "{bad}");
        }
    }
}
