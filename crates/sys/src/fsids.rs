//! File-system ids of the calling thread.
//!
//! C: `setfsuid(2)`, `setfsgid(2)`. They decide file access alone; leaving uid 0 takes the file capabilities from the
//! effective set, coming back returns them (capabilities(7)).
#![expect(unsafe_code, reason = "rustix has none of these, nix only with features that are not used otherwise")]

use std::io;

/// Sets both. The calls report no error, so the values are read back.
///
/// # Errors
/// `EPERM` when the caller may not take these on.
pub fn set(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain numbers.
    unsafe { libc::setfsgid(gid) };
    // SAFETY: plain numbers.
    unsafe { libc::setfsuid(uid) };
    // SAFETY: plain numbers; both return the value in force before, which was just set.
    let now = unsafe { (libc::setfsuid(uid), libc::setfsgid(gid)) };
    let taken = now.0.cast_unsigned() == uid && now.1.cast_unsigned() == gid;
    if taken { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}
