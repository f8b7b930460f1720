//! A capture, opened: read and checked against this host before anything is made for it.

use crate::clocks;
use crate::error::RestoreError;
use branchbox_model::RootSpec;
use branchbox_snapshot::{BlobReader, ClockOffsets, Machine, read_machine};
use std::path::Path;

/// A capture that this host can bring back.
#[derive(Debug)]
pub struct Saved {
    pub(super) machine: Machine,
    pub(super) pages: BlobReader,
    same_boot: bool,
}

impl Saved {
    /// Opens a capture. `root` is the new sandbox's file tree, `boot_id` the host's boot.
    ///
    /// # Errors
    /// [`RestoreError`]: unreadable or damaged, of another kernel, or on another image.
    pub fn open(image: &Path, root: &RootSpec, boot_id: &str) -> Result<Self, RestoreError> {
        let machine = read_machine(image).map_err(RestoreError::Image)?;
        let pages = BlobReader::open(image).map_err(RestoreError::Image)?;
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        if kernel != machine.host.kernel {
            let problem = format!("it was captured on kernel {}, this is {kernel}", machine.host.kernel);
            return Err(RestoreError::Host(problem));
        }
        if machine.root.image != root.image {
            return Err(RestoreError::BaseChanged { path: machine.root.image.clone() });
        }
        let same_boot = boot_id == machine.host.boot_id;
        Ok(Self { machine, pages, same_boot })
    }

    /// The offsets of the time namespace that the new sandbox must have; `None` when the host's clocks are right.
    /// To be asked for just before the namespace is made: time that passes in between is seen inside.
    #[must_use]
    pub fn clock_offsets(&self) -> Option<ClockOffsets> {
        clocks::needed(&self.machine.host.clocks, self.same_boot)
    }
}
