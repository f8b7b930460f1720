//! How the C library's allocator holds on to memory.
//!
//! C: `mallopt(3)`. By default a freed large block raises the size below which blocks are kept for reuse, so one large
//! message would leave a process larger for ever; a small idle process asks for the opposite.
#![expect(unsafe_code, reason = "mallopt has no safe wrapper")]

/// Blocks of at least this size are always given back when freed.
const MAPPED_BYTES_MIN: libc::c_int = 64 * 1024;
/// Free memory at the heap's end above this is given back.
const TRIM_BYTES: libc::c_int = 64 * 1024;

/// Makes this process give freed memory back early, for good.
pub fn stay_small() {
    // SAFETY: sets two numbers of the allocator, which any thread may do at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN);
        libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES);
    }
}
