//! The file a keeper starts from, read with bounds.
//!
//! The node wrote it, as root, for root alone; what is checked here is what would otherwise do harm far from the mistake.

use crate::failure::Failure;
use branchbox_model::{Code, IdRange};
use branchbox_protocol::keeper::{KeeperConfig, Start};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Largest file believed; environments are at most 128 KiB.
const CONFIG_BYTES_MAX: u64 = 1024 * 1024;
/// The kernel's limit on host names.
const HOSTNAME_BYTES_MAX: usize = 64;
/// Shortest path that a keeper may be told to remove, in components: never `/`, `/home` or the like.
const EPHEMERAL_DEPTH_MIN: usize = 3;

/// Reads and checks the file.
///
/// # Errors
/// [`Failure`] naming what is wrong.
pub fn load(path: &Path) -> Result<KeeperConfig, Failure> {
    let mut text = Vec::new();
    let file = File::open(path).map_err(|e| Failure::io(format_args!("open {}", path.display()), e))?;
    let size = file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut text);
    let size = size.map_err(|e| Failure::io(format_args!("read {}", path.display()), e))?;
    if size as u64 > CONFIG_BYTES_MAX {
        return Err(bad(path, format!("it has more than {CONFIG_BYTES_MAX} bytes")));
    }
    let config: KeeperConfig = serde_json::from_slice(&text).map_err(|e| bad(path, e.to_string()))?;
    check(&config).map_err(|problem| bad(path, problem))?;
    Ok(config)
}

fn bad(path: &Path, problem: String) -> Failure {
    Failure::new(Code::InternalError, format!("{} cannot be used: {problem}", path.display()))
}

fn check(config: &KeeperConfig) -> Result<(), String> {
    let mut paths: Vec<&PathBuf> = vec![&config.run_dir, &config.sandbox_dir, &config.root.upper];
    if let Start::Restore { image } = &config.start {
        paths.push(image);
    }
    if let Some(relative) = paths.iter().find(|path| !path.is_absolute()) {
        return Err(format!("`{}` is not an absolute path", relative.display()));
    }
    if config.hostname.is_empty() || config.hostname.len() > HOSTNAME_BYTES_MAX {
        return Err(format!("the host name must have 1 to {HOSTNAME_BYTES_MAX} bytes"));
    }
    let slot = config
        .ids
        .base
        .checked_sub(IdRange::of_slot(0).map_or(0, |first| first.base))
        .map(|offset| offset / IdRange::LENGTH);
    if slot.and_then(IdRange::of_slot) != Some(config.ids) {
        return Err(format!("{} is not the base of a range of ids", config.ids.base));
    }
    match &config.ephemeral {
        Some(directory) if directory.components().count() < EPHEMERAL_DEPTH_MIN => {
            Err(format!("`{}` is too near the root to be removed", directory.display()))
        }
        Some(directory) if !config.sandbox_dir.starts_with(directory) => {
            Err(format!("`{}` to be removed does not hold the sandbox", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use branchbox_model::{Limits, PoolDriver, RootSpec, SandboxId};

    fn config() -> KeeperConfig {
        KeeperConfig {
            id: SandboxId::generate(),
            run_dir: "/run/x".into(),
            sandbox_dir: "/var/tmp/state/sandboxes/a".into(),
            hostname: "box".into(),
            ids: IdRange::of_slot(3).expect("slot"),
            limits: Limits::default(),
            root: RootSpec {
                image: "host".into(),
                upper: "/var/tmp/state/sandboxes/a/upper".into(),
                driver: PoolDriver::Plain,
                trees: Vec::new(),
                binds: Vec::new(),
                defaults: branchbox_model::ImageDefaults::default(),
            },
            env: Vec::new(),
            start: Start::Boot,
            boot_id: "this boot".into(),
            ephemeral: None,
        }
    }

    #[test]
    fn only_a_directory_that_holds_the_sandbox_is_ever_removed() {
        let removing = |path: &str| check(&KeeperConfig { ephemeral: Some(path.into()), ..config() });
        assert_eq!(removing("/var/tmp/state"), Ok(()));
        assert!(removing("/").is_err());
        assert!(removing("/var").is_err());
        assert!(removing("/var/tmp/other").is_err());
    }

    #[test]
    fn ids_outside_every_range_and_relative_paths_are_refused() {
        assert_eq!(check(&config()), Ok(()));
        assert!(check(&KeeperConfig { ids: IdRange { base: 0 }, ..config() }).is_err());
        assert!(check(&KeeperConfig { ids: IdRange { base: 131_073 }, ..config() }).is_err());
        assert!(check(&KeeperConfig { run_dir: "run".into(), ..config() }).is_err());
    }
}
