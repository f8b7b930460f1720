//! A crate may only use crates of its own layer or of one below it.
//!
//! The layers are those of ARCHITECTURE.md. Within a layer the arrows are the ones listed in [`SIDEWAYS`].

use crate::run::root;
use anyhow::{Context, Result};
use std::path::Path;

/// From the top down; a crate may use crates of later rows.
const LAYERS: &[(&str, &[&str])] = &[
    ("dev", &["xtask", "branchbox-bench", "branchbox-testkit"]),
    ("edges", &["branchbox", "branchbox-cli", "branchbox-server", "branchbox-client"]),
    ("compose", &["branchbox-node", "branchbox-keeper", "branchbox-guest"]),
    ("capability", &["branchbox-engine", "branchbox-jail", "branchbox-layers", "branchbox-registry"]),
    ("mechanism", &["branchbox-sys", "branchbox-catalog"]),
    ("pure", &["branchbox-protocol", "branchbox-snapshot", "branchbox-api", "branchbox-dockerfile", "branchbox-model"]),
];

/// Arrows inside one layer, user first.
const SIDEWAYS: &[(&str, &str)] = &[
    ("xtask", "branchbox-testkit"),
    ("branchbox-bench", "branchbox-testkit"),
    ("branchbox", "branchbox-cli"),
    ("branchbox-cli", "branchbox-client"),
    ("branchbox-cli", "branchbox-server"),
    ("branchbox-protocol", "branchbox-model"),
    ("branchbox-snapshot", "branchbox-model"),
    ("branchbox-api", "branchbox-model"),
];

/// Every arrow that points up, and every crate that no layer names.
pub fn check() -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for manifest in manifests()? {
        let text = fs_err::read_to_string(&manifest)?;
        let name = package_name(&text).with_context(|| format!("{} names no package", manifest.display()))?;
        let Some(from) = layer_of(&name) else {
            findings.push(format!("{name} is in no layer of xtask/src/tidy/arrows.rs"));
            continue;
        };
        for used in internal_dependencies(&text) {
            let fine =
                layer_of(&used).is_some_and(|to| to > from) || SIDEWAYS.contains(&(name.as_str(), used.as_str()));
            if !fine {
                findings.push(format!("{name} uses {used}, which does not lie below it"));
            }
        }
    }
    Ok(findings)
}

fn layer_of(name: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, crates)| crates.contains(&name))
}

fn manifests() -> Result<Vec<std::path::PathBuf>> {
    let mut found = vec![root().join("xtask/Cargo.toml")];
    for entry in fs_err::read_dir(root().join("crates"))? {
        found.push(entry?.path().join("Cargo.toml"));
    }
    found.retain(|path: &std::path::PathBuf| Path::is_file(path));
    found.sort();
    Ok(found)
}

fn package_name(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("name = "))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// Internal crates below `[dependencies]`; tests may use what they like.
fn internal_dependencies(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if section == "[dependencies]" && name.starts_with("branchbox-") {
            found.push(name.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_real_dependencies_count() {
        let manifest = "[package]\nname = \"branchbox-node\"\n[dependencies]\nbranchbox-model.workspace = true\nserde = \"1\"\n\
                        [dev-dependencies]\nbranchbox-testkit.workspace = true\n";
        assert_eq!(package_name(manifest).as_deref(), Some("branchbox-node"));
        assert_eq!(internal_dependencies(manifest), ["branchbox-model"]);
    }

    #[test]
    fn layers_point_down() {
        assert!(layer_of("branchbox-cli") < layer_of("branchbox-node"));
        assert!(layer_of("branchbox-engine") < layer_of("branchbox-sys"));
    }
}
