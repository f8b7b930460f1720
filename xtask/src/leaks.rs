//! The leak check: what the tests made on this machine is gone when they end.

use crate::pytest;
use anyhow::{Result, bail};
use branchbox_testkit::Inventory;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long what is being torn down may still be seen.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);

/// Looks at the machine before anything runs.
pub fn look() -> Result<Inventory> {
    Inventory::take(&watched())
}

/// Compares with the first look; waits a little for what is on its way out.
pub fn compare(before: &Inventory) -> Result<String> {
    let deadline = Instant::now() + SETTLE_WITHIN;
    loop {
        let left = look()?.left_since(before);
        if left.is_empty() {
            return Ok("no process, mount, namespace, cgroup, loop device or file left".into());
        }
        if Instant::now() > deadline {
            for line in &left {
                eprintln!("left behind: {line}");
            }
            bail!("{} things left behind, the first: {}", left.len(), left[0]);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn watched() -> Vec<PathBuf> {
    vec![pytest::state_directories()]
}
