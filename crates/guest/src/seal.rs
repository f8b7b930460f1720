//! The end of building: rights that only building needs are given up, the sandbox is told its generation.

use branchbox_protocol::guest::{GuestConfig, GuestError};
use rustix::fs::{CWD, Mode};
use std::io;
use std::path::Path;

/// Where programs can see that they were restored.
const GENERATION_FILE: &str = "/run/branchbox/generation";
/// The user's home and the default working directory.
pub const WORKSPACE: &str = "/workspace";
/// Owner of a workspace that the guest has to make.
const WORKSPACE_OWNER: (u32, u32) = (1000, 1000);

/// Does it.
///
/// # Errors
/// [`GuestError::BadCall`] with the reason; the sandbox cannot be used then.
pub fn seal(config: &GuestConfig) -> Result<(), GuestError> {
    let failed = |what: &str, error: &dyn std::fmt::Display| GuestError::BadCall(format!("{what}: {error}"));
    make_workspace().map_err(|error| failed(WORKSPACE, &error))?;
    write_generation(&config.generation).map_err(|error| failed(GENERATION_FILE, &error))?;
    branchbox_jail::caps::drop_to_runtime_set().map_err(|error| failed("cannot give up capabilities", &error))
}

fn make_workspace() -> io::Result<()> {
    match std::fs::create_dir(WORKSPACE) {
        Ok(()) => std::os::unix::fs::chown(WORKSPACE, Some(WORKSPACE_OWNER.0), Some(WORKSPACE_OWNER.1)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// By a new file and a rename: a reader sees the old or the new one whole, and no link left there is followed.
fn write_generation(generation: &str) -> io::Result<()> {
    let file = Path::new(GENERATION_FILE);
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let new = format!("{GENERATION_FILE}.new");
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => std::fs::write(&new, format!("{generation}\n"))?,
    }
    rustix::fs::chmodat(CWD, new.as_str(), Mode::from_raw_mode(0o644), rustix::fs::AtFlags::empty())?;
    std::fs::rename(&new, file)
}
