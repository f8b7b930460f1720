//! Shared memory between the keeper and the processes it drives, and the dead-man word.
#![expect(unsafe_code, reason = "memory that another process writes is reached through raw pointers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A shared mapping of a file. Another process may write it at any time, so nothing is ever borrowed from it.
#[derive(Debug)]
pub struct Shared {
    base: *mut u8,
    bytes: usize,
}

impl Shared {
    /// Maps the first `bytes` of a file, readable and writable.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn map(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address the kernel chooses touches no existing memory.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0)
        };
        if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Self { base: base.cast(), bytes }) }
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn check(&self, offset: usize, bytes: usize) {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "access outside the shared mapping");
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, data: &[u8]) {
        self.check(offset, data.len());
        // SAFETY: the target lies inside the mapping (checked) and no reference into it exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base.add(offset), data.len()) }
    }

    /// Copies bytes out.
    #[must_use]
    pub fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.check(offset, bytes);
        let mut data = vec![0u8; bytes];
        // SAFETY: the source lies inside the mapping (checked); a torn copy is still plain bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(offset), data.as_mut_ptr(), bytes) }
        data
    }

    /// Writes a 32-bit word.
    pub fn put_u32(&self, offset: usize, value: u32) {
        self.write(offset, &value.to_le_bytes());
    }

    /// Writes a 64-bit word.
    pub fn put_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    /// Reads a 32-bit word.
    #[must_use]
    pub fn get_u32(&self, offset: usize) -> u32 {
        let mut raw = [0u8; 4];
        raw.copy_from_slice(&self.read(offset, 4));
        u32::from_le_bytes(raw)
    }

    /// Reads a 64-bit word.
    #[must_use]
    pub fn get_u64(&self, offset: usize) -> u64 {
        let mut raw = [0u8; 8];
        raw.copy_from_slice(&self.read(offset, 8));
        u64::from_le_bytes(raw)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrowed from it can be alive.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

/// Makes the kernel set `FUTEX_OWNER_DIED` in a word of a shared mapping when this thread dies, however it dies.
///
/// The word is the pending entry of the thread's robust list (get_robust_list(2), kernel/futex/core.c
/// `exit_robust_list`), which the kernel reads when the thread exits. Replaces the thread's own list, which only robust
/// mutexes would need; dropped, it puts the old one back.
#[derive(Debug)]
pub struct DeadMan {
    head: Box<RobustHead>,
    old: (usize, usize),
}

#[repr(C)]
#[derive(Debug)]
struct RobustHead {
    next: *const RobustHead,
    futex_offset: i64,
    pending: *const u8,
}

impl DeadMan {
    /// Arms the word at `offset`. The mapping must stay until this is dropped, which the borrow cannot say because the word
    /// is also used by others; [`DeadMan::drop`] disarms first.
    ///
    /// # Errors
    /// What set_robust_list(2) says.
    pub fn arm(shared: &Shared, offset: usize) -> io::Result<Self> {
        shared.check(offset, 4);
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) };
        shared.put_u32(offset, tid as u32);
        let (mut old_head, mut old_len) = (0usize, 0usize);
        // SAFETY: both out pointers are live.
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut old_head, &raw mut old_len) };
        // SAFETY: the word lies inside the mapping (checked).
        let word = unsafe { shared.base.add(offset) };
        let mut head = Box::new(RobustHead { next: std::ptr::null(), futex_offset: 0, pending: word });
        head.next = &raw const *head;
        // SAFETY: the head is boxed and stays at its address until drop puts the old list back; its list is empty (it points
        // to itself) and its pending word is mapped.
        let result = unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *head, size_of::<RobustHead>()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { head, old: (old_head, old_len) }) }
    }
}

impl Drop for DeadMan {
    fn drop(&mut self) {
        self.head.pending = std::ptr::null();
        if self.old.0 != 0 {
            // SAFETY: this is the list the thread had before, put back unchanged.
            unsafe { libc::syscall(libc::SYS_set_robust_list, self.old.0, self.old.1) };
        }
    }
}
