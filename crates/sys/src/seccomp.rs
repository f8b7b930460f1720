//! Installing a seccomp filter without giving up set-uid programs: `seccomp(2)`, Linux 3.17.
//!
//! The usual wrappers set `no_new_privs` first, which would break `sudo` inside a sandbox. Without it the caller needs
//! `CAP_SYS_ADMIN` in its user namespace, which the first process of a sandbox has while it is set up.
#![expect(unsafe_code, reason = "seccomp(2) has no safe wrapper")]

use std::io;

pub use libc::sock_filter as Instruction;

/// Installs a filter for the calling thread and everything it starts later.
///
/// # Errors
/// `EACCES` without `CAP_SYS_ADMIN`, `EINVAL` for a program the kernel does not accept.
pub fn install(program: &[Instruction]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `program` describes `len` instructions that live through the call; the kernel copies and checks them and
    // never writes through the pointer.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
