//! An image made by the test: blobs and the documents that name them.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
pub const DOCKER_LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Names some bytes in another document.
pub fn descriptor(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(bytes), "size": bytes.len() })
}

pub struct Image {
    pub media_type: &'static str,
    pub config: Vec<u8>,
    pub layers: Vec<Vec<u8>>,
    pub manifest: Vec<u8>,
}

impl Image {
    pub fn oci(architecture: &str, layers: &[&[u8]]) -> Self {
        Self::new(OCI_MANIFEST, OCI_CONFIG, OCI_LAYER, architecture, layers)
    }

    pub fn docker(layers: &[&[u8]]) -> Self {
        Self::new(DOCKER_MANIFEST, DOCKER_CONFIG, DOCKER_LAYER, "amd64", layers)
    }

    fn new(
        media_type: &'static str,
        config_type: &str,
        layer_type: &str,
        architecture: &str,
        layers: &[&[u8]],
    ) -> Self {
        let config = json!({ "os": "linux", "architecture": architecture, "config": { "Env": ["A=1"] } });
        let config = config.to_string().into_bytes();
        let named: Vec<Value> = layers.iter().map(|layer| descriptor(layer_type, layer)).collect();
        let config_named = descriptor(config_type, &config);
        let manifest = json!({ "schemaVersion": 2, "mediaType": media_type, "config": config_named, "layers": named });
        let layers = layers.iter().map(|layer| layer.to_vec()).collect();
        Self { media_type, config, layers, manifest: manifest.to_string().into_bytes() }
    }

    pub fn digest(&self) -> String {
        digest(&self.manifest)
    }

    /// An index of images, each with its architecture.
    pub fn index(media_type: &str, images: &[(&str, &Image)]) -> Vec<u8> {
        let entries: Vec<Value> = images
            .iter()
            .map(|(architecture, image)| {
                let mut entry = descriptor(image.media_type, &image.manifest);
                entry["platform"] = json!({ "os": "linux", "architecture": architecture });
                entry
            })
            .collect();
        json!({ "schemaVersion": 2, "mediaType": media_type, "manifests": entries }).to_string().into_bytes()
    }
}
