//! One capture: the guest's table is held, the processes stand still, memory and files are taken, everything goes on.
//!
//! Whatever fails, the guest is resumed and the image directory of a capture that did not come about is removed. A layer
//! may have been taken by then; it has the name the node chose, and the node removes it.

use crate::failure::{Failure, chain, point};
use crate::guest::{Guest, Held};
use crate::listen;
use crate::machine;
use crate::start::Live;
use branchbox_layers::LayerError;
use branchbox_model::Code;
use branchbox_protocol::keeper::{CaptureReport, KeeperConfig};
use std::path::Path;
use std::time::Instant;

/// Saves the machine into `image`, a new directory, and its files into `layer`; without an image the files alone.
///
/// # Errors
/// [`Failure`]; the source runs on.
pub fn capture(
    config: &KeeperConfig,
    live: &mut Live,
    image: Option<&Path>,
    layer: &Path,
) -> Result<CaptureReport, Failure> {
    let begun = Instant::now();
    start_writeback(config);
    let held = hold(config, live)?;
    let taken = point("keeper.held").and_then(|()| take(config, live, held, image, layer));
    let resumed = resume(config, live).and_then(|()| point("keeper.resumed"));
    if let (Ok(_), Err(_), Some(image)) = (&taken, &resumed, image) {
        discard(image);
    }
    resumed?;
    let mut report = taken?;
    report.total_us = micros(begun);
    tracing::info!(pause_us = report.pause_us, total_us = report.total_us, processes = report.processes, "captured");
    Ok(report)
}

/// Less to flush in the pause; without it the pause is longer and nothing else.
pub fn start_writeback(config: &KeeperConfig) {
    if let Err(error) = branchbox_layers::start_writeback(&config.root.upper) {
        tracing::warn!("{}", chain(&error));
    }
}

/// A connection that an earlier failure spoiled is made anew once.
pub fn hold(config: &KeeperConfig, live: &mut Live) -> Result<Held, Failure> {
    live.guest.hold().or_else(|failure| {
        tracing::warn!("{failure}; connecting again");
        live.guest = Guest::connect(&listen::guest_path(config))?;
        live.guest.hold()
    })
}

/// A hold ends with its connection too.
pub fn resume(config: &KeeperConfig, live: &mut Live) -> Result<(), Failure> {
    live.guest.resume().or_else(|failure| {
        tracing::warn!("{failure}; connecting again");
        live.guest = Guest::connect(&listen::guest_path(config))?;
        Ok(())
    })
}

fn take(
    config: &KeeperConfig,
    live: &mut Live,
    held: Held,
    image: Option<&Path>,
    layer: &Path,
) -> Result<CaptureReport, Failure> {
    let root = &config.root;
    let mut layer_failure = None;
    let mut take_layer = || {
        let taken = branchbox_layers::capture_layer(&root.upper, layer, root.driver);
        taken.map(drop).map_err(|error| {
            let failure = layer_failed(&error);
            let text = failure.to_string();
            layer_failure = Some(failure);
            text
        })
    };
    let report = match image {
        Some(image) => take_machine(config, live, held, image, &mut take_layer),
        None => take_files(live, &mut take_layer),
    };
    // The engine knows of a failed layer only its text.
    report.map_err(|failure| layer_failure.unwrap_or(failure))
}

type TakeLayer<'a> = &'a mut dyn FnMut() -> Result<(), String>;

fn take_machine(
    config: &KeeperConfig,
    live: &mut Live,
    held: Held,
    image: &Path,
    layer: TakeLayer<'_>,
) -> Result<CaptureReport, Failure> {
    make_image(image)?;
    let work = live.cgroup.work_path();
    let captured = point("keeper.image").and_then(|()| {
        let history = &mut live.history;
        machine::capture(config, live.jail.pid, &work, held, history, image, layer).map_err(Failure::from)
    });
    match captured {
        // The whole length is known at the end.
        Ok(captured) => Ok(machine::report(captured, 0)),
        Err(failure) => {
            discard(image);
            Err(failure)
        }
    }
}

pub fn discard(image: &Path) {
    if let Err(error) = std::fs::remove_dir_all(image) {
        tracing::warn!("cannot remove {}: {error}", image.display());
    }
}

/// The files alone: the commands stand still for as long as the layer takes.
fn take_files(live: &mut Live, layer: TakeLayer<'_>) -> Result<CaptureReport, Failure> {
    let (taken, pause_us) = branchbox_engine::still(&live.cgroup.work_path(), &mut live.history, layer)?;
    taken.map_err(|text| Failure::new(Code::CaptureFailed, text))?;
    Ok(CaptureReport {
        pause_us,
        total_us: 0,
        memory_bytes: 0,
        record_bytes: 0,
        processes: 0,
        threads: 0,
        notes: Vec::new(),
    })
}

fn layer_failed(error: &LayerError) -> Failure {
    let full = error.source_io().is_some_and(|source| source.kind() == std::io::ErrorKind::StorageFull);
    Failure::of(if full { Code::DiskFull } else { Code::CaptureFailed }, error)
}

pub fn make_image(image: &Path) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().mode(0o700).create(image);
    made.map_err(|e| Failure::io(format_args!("make {}", image.display()), e))
}

pub fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
