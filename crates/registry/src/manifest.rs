//! What a manifest says: an image, or an index that names one manifest per platform. Pure.
//!
//! What a document is, is said up to three times: by its `Content-Type`, its own `mediaType`, and its shape. They must
//! agree: a document that is an index for one reader and an image for another has one digest and two meanings.

use crate::digest::Digest;
use crate::limits::LAYERS_MAX;
use serde::Deserialize;

const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
/// What a server says that does not know or does not tell.
const UNTOLD: &[&str] = &["application/json", "application/octet-stream", "text/plain", "binary/octet-stream"];
/// Asked of the registry with every manifest.
pub(crate) const ACCEPTED: &str = concat!(
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, ",
    "application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json"
);
const CONFIGS: &[&str] =
    &["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const LAYERS: &[&str] = &[
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];
const OS: &str = "linux";
const ARCHITECTURE: &str = "amd64";

/// A blob or manifest that is named by another document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub digest: Digest,
    pub bytes: u64,
    pub media_type: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Document {
    /// An image's config and layers, bottom first.
    Image { config: Named, layers: Vec<Named> },
    /// The manifest of our platform.
    Index(Named),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    schema_version: Option<u64>,
    media_type: Option<String>,
    config: Option<RawDescriptor>,
    layers: Option<Vec<RawDescriptor>>,
    manifests: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    urls: Vec<String>,
    platform: Option<RawPlatform>,
}

#[derive(Deserialize)]
struct RawPlatform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: String,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
}

/// Takes a manifest or an index apart; `Err` is the sentence that says what is wrong with it.
pub(crate) fn parse(content_type: Option<&str>, bytes: &[u8]) -> Result<Document, String> {
    let raw: Raw = serde_json::from_slice(bytes).map_err(|error| format!("its manifest is not understood: {error}"))?;
    if raw.schema_version == Some(1) {
        return Err("its manifest has schema 1, which is not supported; push the image again with a newer tool".into());
    }
    if raw.schema_version != Some(2) {
        return Err("its manifest has no schema version that is known here".into());
    }
    let header = content_type.and_then(|text| text.split(';').next()).map(str::trim);
    let header = header.filter(|text| !text.is_empty() && !UNTOLD.contains(text));
    let told = match (header, raw.media_type.as_deref()) {
        (Some(header), Some(own)) if header != own => {
            return Err(format!("its manifest is said to be {header} and {own}"));
        }
        (header, own) => header.or(own),
    };
    match (raw.manifests, raw.config, raw.layers) {
        (Some(manifests), None, None) if matches!(told, None | Some(OCI_INDEX | DOCKER_LIST)) => ours(manifests),
        (None, Some(config), Some(layers)) if matches!(told, None | Some(OCI_MANIFEST | DOCKER_MANIFEST)) => {
            image(config, layers)
        }
        _ => Err(format!("its manifest is not that of an image ({})", told.unwrap_or("no media type"))),
    }
}

/// The manifest for this kind of machine; the plainest variant where there are several.
fn ours(manifests: Vec<RawDescriptor>) -> Result<Document, String> {
    let fits = |platform: &RawPlatform| platform.os == OS && platform.architecture == ARCHITECTURE;
    let mut candidates: Vec<RawDescriptor> =
        manifests.into_iter().filter(|entry| entry.platform.as_ref().is_some_and(fits)).collect();
    candidates.sort_by_key(|entry| entry.platform.as_ref().map_or_else(String::new, |p| p.variant.clone()));
    let chosen = candidates.into_iter().next().ok_or_else(|| format!("it is not there for {OS}/{ARCHITECTURE}"))?;
    let named = named(chosen)?;
    match named.media_type.as_str() {
        OCI_MANIFEST | DOCKER_MANIFEST | "" => Ok(Document::Index(named)),
        other => Err(format!("its index names {other} for {OS}/{ARCHITECTURE}, which is not supported")),
    }
}

fn image(config: RawDescriptor, layers: Vec<RawDescriptor>) -> Result<Document, String> {
    if layers.len() > LAYERS_MAX {
        return Err(format!("it has {} layers, more than {LAYERS_MAX}", layers.len()));
    }
    let config = named(config)?;
    if !CONFIGS.contains(&config.media_type.as_str()) {
        return Err(format!("it is not an image: its config is {}", config.media_type));
    }
    let layers = layers.into_iter().map(layer).collect::<Result<_, _>>()?;
    Ok(Document::Image { config, layers })
}

fn layer(raw: RawDescriptor) -> Result<Named, String> {
    let is_elsewhere = !raw.urls.is_empty();
    let layer = named(raw)?;
    if is_elsewhere || layer.media_type.contains("foreign") || layer.media_type.contains("nondistributable") {
        return Err(format!("its layer {} is to be loaded from elsewhere, which is refused", layer.digest));
    }
    if !LAYERS.contains(&layer.media_type.as_str()) {
        return Err(format!("its layer {} is {}, which is not supported", layer.digest, layer.media_type));
    }
    Ok(layer)
}

fn named(raw: RawDescriptor) -> Result<Named, String> {
    let digest = Digest::parse(&raw.digest).ok_or("it names something by what is not a SHA-256")?;
    Ok(Named { digest, bytes: raw.size, media_type: raw.media_type })
}

/// Whether a config is that of an image for this kind of machine.
pub(crate) fn check_config(bytes: &[u8]) -> Result<(), String> {
    let config: RawConfig =
        serde_json::from_slice(bytes).map_err(|error| format!("its config is not understood: {error}"))?;
    // Both are required by the format; very old images lack them, and those were all of this platform.
    let fits = |value: &str, ours: &str| value.is_empty() || value == ours;
    if fits(&config.os, OS) && fits(&config.architecture, ARCHITECTURE) {
        return Ok(());
    }
    Err(format!("it is for {}/{} and not for {OS}/{ARCHITECTURE}", config.os, config.architecture))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failing step of a test is its failure")]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn digest(of: &str) -> String {
        Digest::of(of.as_bytes()).to_string()
    }

    fn image_with(layers: Value) -> Value {
        let config = json!({ "mediaType": CONFIGS[0], "digest": digest("config"), "size": 7 });
        json!({ "schemaVersion": 2, "config": config, "layers": layers })
    }

    fn layer_of(media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": digest("layer"), "size": 5 })
    }

    fn entry(name: &str, architecture: &str, variant: &str) -> Value {
        let platform = json!({ "os": "linux", "architecture": architecture, "variant": variant });
        json!({ "mediaType": OCI_MANIFEST, "digest": digest(name), "size": 1, "platform": platform })
    }

    fn read(content_type: Option<&str>, document: &Value) -> Result<Document, String> {
        parse(content_type, document.to_string().as_bytes())
    }

    fn wrong(content_type: Option<&str>, document: &Value, part: &str) {
        let why = read(content_type, document).unwrap_err();
        assert!(why.contains(part), "{why}");
    }

    #[test]
    fn an_image_is_taken_apart() {
        let Document::Image { config, layers } = read(None, &image_with(json!([layer_of(LAYERS[1])]))).unwrap() else {
            panic!("it is an image");
        };
        assert_eq!((config.bytes, layers.len(), layers[0].bytes), (7, 1, 5));
        assert_eq!(layers[0].digest.to_string(), digest("layer"));
    }

    #[test]
    fn the_plainest_variant_of_our_platform_is_chosen() {
        let entries = json!([entry("a", "arm64", "v8"), entry("b", "amd64", "v3"), entry("c", "amd64", "")]);
        let index = json!({ "schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries });
        let Document::Index(chosen) = read(Some(OCI_INDEX), &index).unwrap() else { panic!("it is an index") };
        assert_eq!(chosen.digest.to_string(), digest("c"));
        let elsewhere = json!({ "schemaVersion": 2, "manifests": [entry("a", "arm64", "")] });
        wrong(Some(OCI_INDEX), &elsewhere, "not there for linux/amd64");
    }

    #[test]
    fn one_document_has_one_meaning() {
        let image = image_with(json!([]));
        assert!(read(Some("application/json; charset=utf-8"), &image).is_ok());
        wrong(Some(OCI_INDEX), &image, "not that of an image");
        let mut typed = image.clone();
        typed["mediaType"] = json!(OCI_MANIFEST);
        wrong(Some(DOCKER_MANIFEST), &typed, "is said to be");
        let mut both = image.clone();
        both["manifests"] = json!([entry("a", "amd64", "")]);
        wrong(None, &both, "not that of an image");
    }

    #[test]
    fn what_is_not_supported_is_named() {
        wrong(None, &json!({ "schemaVersion": 1, "fsLayers": [] }), "schema 1");
        wrong(None, &json!({}), "schema version");
        wrong(None, &json!([]), "not understood");
        wrong(
            None,
            &image_with(json!([layer_of("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")])),
            "refused",
        );
        wrong(None, &image_with(json!([layer_of("application/x-chart")])), "not supported");
        let mut elsewhere = layer_of(LAYERS[0]);
        elsewhere["urls"] = json!(["https://b.example/x"]);
        wrong(None, &image_with(json!([elsewhere])), "refused");
        let mut other_hash = layer_of(LAYERS[0]);
        other_hash["digest"] = json!("sha512:00");
        wrong(None, &image_with(json!([other_hash])), "not a SHA-256");
        wrong(None, &image_with(json!(vec![layer_of(LAYERS[0]); LAYERS_MAX + 1])), "layers, more than");
        let mut chart = image_with(json!([]));
        chart["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
        wrong(None, &chart, "not an image");
    }

    #[test]
    fn a_config_is_for_our_platform() {
        assert!(check_config(br#"{"os":"linux","architecture":"amd64"}"#).is_ok());
        assert!(check_config(b"{}").is_ok());
        assert!(check_config(br#"{"os":"windows","architecture":"amd64"}"#).unwrap_err().contains("windows/amd64"));
        assert!(check_config(b"[1").is_err());
    }
}
