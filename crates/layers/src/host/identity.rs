//! What makes one state of the host's base different from another.
//!
//! The *identity* (file-system id of `/usr`, package databases, `/etc/os-release`) names the image in a snapshot. The
//! *skeleton key* adds what the filtered `/etc` was copied from, so that a change there makes a new skeleton without
//! orphaning snapshots; it names the directory.

use super::HostError;
use super::etc::allowed_entries;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Grows when what is put into a skeleton changes.
const FORMAT: u32 = 3;
/// Bytes of a digest that are shown and compared.
const DIGEST_CHARS: usize = 20;
/// Package databases whose content is part of the identity.
const DATABASES: &[&str] = &[
    "var/lib/dpkg/status",
    "lib/apk/db/installed",
    "var/lib/rpm/rpmdb.sqlite",
    "var/lib/pacman/local/ALPM_DB_VERSION",
];

/// Digests of one state of the host.
pub(super) struct Identity {
    /// Of the base that programs run on.
    pub(super) base: String,
    /// Of everything the skeleton is made of.
    pub(super) skeleton: String,
}

/// Looks at the host below `root` (`/` but in tests).
pub(super) fn identity(root: &Path) -> Result<Identity, HostError> {
    let mut hasher = blake3::Hasher::new();
    let usr = root.join("usr");
    let fs_id = rustix::fs::statvfs(&usr).map_err(|e| HostError::Look { path: usr.clone(), source: e.into() })?.f_fsid;
    hasher.update(&fs_id.to_le_bytes());
    for name in DATABASES.iter().chain(&["etc/os-release"]) {
        let path = root.join(name);
        match std::fs::File::open(&path) {
            Ok(file) => {
                hasher.update(name.as_bytes());
                hasher.update_reader(file).map_err(|source| HostError::Look { path, source })?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(HostError::Look { path, source }),
        }
    }
    let base = digest(&hasher);
    hash_etc(&mut hasher, root);
    Ok(Identity { base, skeleton: digest(&hasher) })
}

fn hash_etc(hasher: &mut blake3::Hasher, root: &Path) {
    hasher.update(&FORMAT.to_le_bytes());
    let etc = root.join("etc");
    for path in allowed_entries(&etc).into_iter().chain([etc.join("passwd"), etc.join("group")]) {
        // An entry that vanished meanwhile is simply not part of it.
        if let Ok(metadata) = path.symlink_metadata() {
            hasher.update(path.as_os_str().as_encoded_bytes());
            for number in [metadata.len(), metadata.mtime().cast_unsigned(), metadata.mtime_nsec().cast_unsigned()] {
                hasher.update(&number.to_le_bytes());
            }
        }
    }
}

fn digest(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..DIGEST_CHARS].to_owned()
}
