//! Pausing: the machine is captured, and what was captured ends without having run on.
//!
//! The sandbox's upper stays where it is: nobody writes it between the capture and the end, so that image and files are one
//! pair without a copy of the files. The image gets its name only when it is whole and on the disk, and only then do the
//! processes end: whoever finds the image beside an ended sandbox has all of it, also after a power cut.
//!
//! Whatever fails before that instant, the sandbox runs on and nothing of the image is left. A keeper that is killed
//! before it leaves a sandbox that runs and perhaps an image, which is then stale; the node tells the two apart by looking.

use crate::capture::{discard, hold, make_image, micros, resume, start_writeback};
use crate::failure::{Failure, point};
use crate::guest::Held;
use crate::machine;
use crate::start::Live;
use branchbox_engine::{Captured, Held as Stood};
use branchbox_protocol::keeper::{CaptureReport, KeeperConfig};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Saves the machine into `image` and ends its processes.
///
/// # Errors
/// [`Failure`]; the sandbox runs on.
pub fn pause(config: &KeeperConfig, live: &mut Live, image: &Path) -> Result<CaptureReport, Failure> {
    let begun = Instant::now();
    start_writeback(config);
    let part = part(image);
    // Left by a pause that was cut off, or by the sandbox's last one.
    for stale in [&part, image] {
        match std::fs::remove_dir_all(stale) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::io(format_args!("remove {}", stale.display()), error));
            }
            _ => {}
        }
    }
    let held = hold(config, live)?;
    match point("pause.held").and_then(|()| save(config, live, held, &part, image)) {
        Ok((captured, stood)) => {
            stood.end(&live.cgroup.work_path()).map_err(Failure::from)?;
            let report = machine::report(captured, micros(begun));
            tracing::info!(total_us = report.total_us, processes = report.processes, "paused");
            Ok(report)
        }
        Err(failure) => {
            discard(&part);
            resume(config, live)?;
            Err(failure)
        }
    }
}

fn part(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// From a held guest to a whole image on the disk, and tasks that stand still.
fn save(
    config: &KeeperConfig,
    live: &mut Live,
    held: Held,
    part: &Path,
    image: &Path,
) -> Result<(Captured, Stood), Failure> {
    make_image(part)?;
    let work = live.cgroup.work_path();
    let (captured, stood) = machine::capture_and_hold(config, live.jail.pid, &work, held, &mut live.history, part)
        .map_err(Failure::from)?;
    sync(part, &config.root.upper).map_err(|e| Failure::io(format_args!("write {} to the disk", part.display()), e))?;
    point("pause.synced")?;
    let named = std::fs::rename(part, image).and_then(|()| parent(image)?.sync_all());
    named.map_err(|e| Failure::io(format_args!("name {}", image.display()), e))?;
    if let Err(failure) = point("pause.named") {
        discard(image);
        return Err(failure);
    }
    Ok((captured, stood))
}

fn parent(path: &Path) -> io::Result<File> {
    File::open(path.parent().unwrap_or(path))
}

/// Everything that the paused sandbox consists of reaches the disk.
fn sync(image: &Path, upper: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(image)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(image)?.sync_all()?;
    Ok(rustix::fs::syncfs(File::open(upper)?)?)
}
