//! Images that sandboxes can start from: today this machine's own files, and nothing else.
//!
//! The host image is built in, not made: it is ready when the node is. Its id follows from what it holds, so that it is
//! another image after the machine's packages have changed, as a snapshot that stands on it says too.

use crate::error::NodeError;
use crate::node::{Inner, Node};
use branchbox_api::{ImageInfo, ImageSource, ImageState, Page};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Its name, and the tag that a name without one stands for.
const HOST: &str = "host";
const LATEST: &str = "latest";
const WORKDIR: &str = "/workspace";

/// A UUID that belongs to this text alone (RFC 9562, version 8: made by a rule of one's own).
fn id_of(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut bytes: Vec<u8> = digest.iter().take(16).copied().collect();
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn host(inner: &Inner) -> ImageInfo {
    ImageInfo {
        id: id_of(&inner.image.identity),
        kind: "image".into(),
        state: ImageState::Ready,
        name: Some(HOST.into()),
        version: 1,
        tags: vec![LATEST.into()],
        labels: BTreeMap::new(),
        // Nothing of it is a copy: it is the machine's own files.
        size_bytes: Some(0),
        error: None,
        created_at: inner.started,
        ready_at: Some(inner.started),
        env: BTreeMap::new(),
        workdir: WORKDIR.into(),
        source: ImageSource { kind: HOST.into(), identity: inner.image.identity.clone() },
    }
}

/// Whether a text names an image: its id, name, `name:tag`, `name@version`, or identity.
fn is_named(image: &ImageInfo, text: &str) -> bool {
    let name = image.name.as_deref().unwrap_or_default();
    let by_part = match (text.rsplit_once('@'), text.rsplit_once(':')) {
        (Some((of, version)), _) => of == name && version == image.version.to_string(),
        (None, Some((of, tag))) => of == name && image.tags.iter().any(|known| known == tag),
        (None, None) => text == name,
    };
    by_part || text == image.id || text == image.source.identity
}

impl Node {
    /// The image that a text names.
    ///
    /// # Errors
    /// [`NodeError::NoImage`].
    pub fn image(&self, text: &str) -> Result<ImageInfo, NodeError> {
        let image = host(&self.inner);
        if is_named(&image, text) {
            Ok(image)
        } else {
            Err(NodeError::NoImage { name: text.chars().take(128).collect() })
        }
    }

    /// The images there are, of this name if one is given.
    #[must_use]
    pub fn images(&self, name: Option<&str>, state: Option<ImageState>) -> Page<ImageInfo> {
        let image = host(&self.inner);
        let is_wanted = name.is_none_or(|name| image.name.as_deref() == Some(name))
            && state.is_none_or(|state| state == image.state);
        Page { data: is_wanted.then_some(image).into_iter().collect(), next_cursor: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_that_follow_from_what_an_image_holds() {
        let id = id_of("host:abc");
        assert_eq!((id.len(), id.matches('-').count(), &id[14..15]), (36, 4, "8"));
        assert_eq!(id, id_of("host:abc"));
        assert_ne!(id, id_of("host:abd"));
    }
}
