//! The remote: position-independent code that runs batches of system calls inside another process.
//!
//! This is the only assembly of the system. Two programs share it:
//!
//! * In a process that is being **restored** the code lies in a page shared with the keeper ([`Entry::Loop`], [`Entry::Park`]).
//! * In a **live** process it is written, for the length of a capture, behind the end of the vdso image ([`Stub`]). There it
//!   must bring the thread back by itself when the keeper dies at any instruction: it carries the thread's saved registers
//!   and signal mask beside the code, and its tail puts them back and jumps to where the thread was. It uses no stack, pushes
//!   nothing, leaves vector state alone and calls no `rt_sigreturn` (which would reset the restart block).
//!
//! A batch page begins with a header ([`Header`] offsets), then entries of 64 bytes: number, six arguments, result. Before each
//! call the loop looks at the dead-man word: the keeper's robust list makes the kernel set `FUTEX_OWNER_DIED` in it when the
//! keeper dies. A batch ends with one more call from the header, a `tgkill` to the thread itself of a signal that the program
//! ignores: a tracer sees it as one stop, to an orphan it is nothing.
#![expect(unsafe_code, reason = "the address range of assembled code is taken as a slice")]

use std::arch::global_asm;

global_asm!(
    r#"
    .section .rodata.branchbox_remote, "a"
    .balign 16
    .globl bbx_remote_start, bbx_remote_loop, bbx_remote_tail, bbx_remote_tail_nocall, bbx_remote_park
    .globl bbx_remote_end, bbx_stub_data
bbx_remote_start:                       # one call whose registers are preset, then the tail with no page
    syscall
    mov     rbx, rax
    cmp     rax, -4095
    jb      3f
    xor     ebx, ebx
    jmp     3f
bbx_remote_loop:                        # rbx: batch page
    lea     r12, [rbx + 64]
    mov     r13d, dword ptr [rbx + 8]
2:  test    dword ptr [rbx], 0x40000000
    jnz     bbx_remote_tail
    cmp     dword ptr [rbx + 12], r13d
    jae     4f
    mov     rax, [r12]
    mov     rdi, [r12 + 8]
    mov     rsi, [r12 + 16]
    mov     rdx, [r12 + 24]
    mov     r10, [r12 + 32]
    mov     r8,  [r12 + 40]
    mov     r9,  [r12 + 48]
    syscall
    mov     [r12 + 56], rax
    inc     dword ptr [rbx + 12]
    add     r12, 64
    jmp     2b
4:  mov     rax, [rbx + 16]             # the marker call
    mov     rdi, [rbx + 24]
    mov     rsi, [rbx + 32]
    mov     rdx, [rbx + 40]
    syscall
3:
bbx_remote_tail:                        # rbx: page to unmap or 0
    test    rbx, rbx
    jz      5f
    mov     rsi, [rip + bbx_page_bytes]
    test    rsi, rsi
    jz      5f
    mov     eax, 11
    mov     rdi, rbx
    syscall
5:  mov     eax, 14                     # rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8)
    mov     edi, 2
    lea     rsi, [rip + bbx_mask]
    xor     edx, edx
    mov     r10d, 8
    syscall
bbx_remote_tail_nocall:
    mov     al, byte ptr [rip + bbx_overflow]
    add     al, 0x7f                    # 1 + 0x7f overflows, 0 + 0x7f does not
    mov     ah, byte ptr [rip + bbx_flags]
    sahf
    mov     r15, [rip + bbx_regs + 0]
    mov     r14, [rip + bbx_regs + 8]
    mov     r13, [rip + bbx_regs + 16]
    mov     r12, [rip + bbx_regs + 24]
    mov     rbp, [rip + bbx_regs + 32]
    mov     rbx, [rip + bbx_regs + 40]
    mov     r11, [rip + bbx_regs + 48]
    mov     r10, [rip + bbx_regs + 56]
    mov     r9,  [rip + bbx_regs + 64]
    mov     r8,  [rip + bbx_regs + 72]
    mov     rax, [rip + bbx_regs + 80]
    mov     rcx, [rip + bbx_regs + 88]
    mov     rdx, [rip + bbx_regs + 96]
    mov     rsi, [rip + bbx_regs + 104]
    mov     rdi, [rip + bbx_regs + 112]
    jmp     qword ptr [rip + bbx_rip]
bbx_remote_park:                        # a process that waits for its tracer
    mov     eax, 34
    syscall
    jmp     bbx_remote_park
    .balign 8
bbx_stub_data:
bbx_mask:       .quad 0
bbx_page_bytes: .quad 0
bbx_rip:        .quad 0
bbx_regs:       .fill 15, 8, 0
bbx_overflow:   .byte 0
bbx_flags:      .byte 0
    .balign 8
bbx_remote_end:
    .text
"#
);

unsafe extern "C" {
    static bbx_remote_start: u8;
    static bbx_remote_loop: u8;
    static bbx_remote_tail: u8;
    static bbx_remote_tail_nocall: u8;
    static bbx_remote_park: u8;
    static bbx_remote_end: u8;
    static bbx_stub_data: u8;
}

/// Byte offsets of a batch page's header.
pub struct Header;
impl Header {
    /// 32 bits: the dead-man word.
    pub const DEAD_MAN: usize = 0;
    /// 32 bits: entries in the batch.
    pub const COUNT: usize = 8;
    /// 32 bits: entries done.
    pub const DONE: usize = 12;
    /// 64 bits: number of the marker call; its three arguments follow.
    pub const MARKER: usize = 16;
    /// First entry.
    pub const ENTRIES: usize = 64;
    /// Bytes of one entry: number, six arguments, result.
    pub const ENTRY_BYTES: usize = 64;
    /// Offset of the result in an entry.
    pub const RESULT: usize = 56;
}

/// Places in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// One preset call, then the tail.
    Start,
    /// Runs the batch whose page is in rbx.
    Loop,
    /// Unmaps the page in rbx and puts everything back.
    Tail,
    /// Puts registers back, calling nothing.
    TailNoCall,
    /// Waits for a tracer.
    Park,
}

fn offset_of(symbol: *const u8) -> usize {
    symbol as usize - (&raw const bbx_remote_start) as usize
}

/// The code's length with its data, in bytes.
#[must_use]
pub fn code_bytes() -> usize {
    offset_of(&raw const bbx_remote_end)
}

/// The code as assembled, its data zero.
#[must_use]
pub fn code() -> &'static [u8] {
    // SAFETY: the two symbols bound one contiguous read-only section of this program.
    unsafe { std::slice::from_raw_parts(&raw const bbx_remote_start, code_bytes()) }
}

/// Where a place lies from the start of the code.
#[must_use]
pub fn entry_offset(entry: Entry) -> usize {
    match entry {
        Entry::Start => 0,
        Entry::Loop => offset_of(&raw const bbx_remote_loop),
        Entry::Tail => offset_of(&raw const bbx_remote_tail),
        Entry::TailNoCall => offset_of(&raw const bbx_remote_tail_nocall),
        Entry::Park => offset_of(&raw const bbx_remote_park),
    }
}

/// What the stub in a live process carries to bring its thread back alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// Blocked signals.
    pub mask: u64,
    /// Size of the batch page.
    pub page_bytes: u64,
    /// Where the thread goes on.
    pub rip: u64,
    /// r15 to rdi in the order of `user_regs_struct`.
    pub registers: [u64; 15],
    /// The overflow flag.
    pub overflow: bool,
    /// Low byte of the flags: carry, parity, adjust, zero, sign.
    pub flags: u8,
}

const SAVED_WORDS: usize = 18;
/// Carry, parity, adjust, zero and sign: what `sahf` sets.
const LOW_FLAGS: u8 = 0xd5;

impl Saved {
    /// Reads the data of a stub back; nothing if the bytes are no stub.
    #[must_use]
    pub fn of_stub(bytes: &[u8]) -> Option<Self> {
        let at = offset_of(&raw const bbx_stub_data);
        if bytes.len() != code_bytes() || bytes[..at] != code()[..at] {
            return None;
        }
        let word = |index: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + index * 8 + i]));
        Some(Self {
            mask: word(0),
            page_bytes: word(1),
            rip: word(2),
            registers: std::array::from_fn(|index| word(index + 3)),
            overflow: bytes[at + SAVED_WORDS * 8] == 1,
            flags: bytes[at + SAVED_WORDS * 8 + 1],
        })
    }

    /// The flags register of a thread on the stub, with the program's own arithmetic flags.
    #[must_use]
    pub fn flags_in(&self, flags: u64) -> u64 {
        const OVERFLOW: u64 = 1 << 11;
        let low = u64::from(LOW_FLAGS);
        flags & !(low | OVERFLOW) | u64::from(self.flags) & low | if self.overflow { OVERFLOW } else { 0 }
    }

    /// The code with this data, ready to be written.
    #[must_use]
    pub fn stub(&self) -> Vec<u8> {
        let mut bytes = code().to_vec();
        let at = offset_of(&raw const bbx_stub_data);
        let words = [self.mask, self.page_bytes, self.rip].into_iter().chain(self.registers);
        for (index, word) in words.enumerate() {
            bytes[at + index * 8..at + index * 8 + 8].copy_from_slice(&word.to_le_bytes());
        }
        bytes[at + SAVED_WORDS * 8] = u8::from(self.overflow);
        bytes[at + SAVED_WORDS * 8 + 1] = self.flags;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stub_fits_behind_the_vdso_and_carries_its_data() {
        let saved = Saved {
            mask: 7,
            page_bytes: 8192,
            rip: 0x1234,
            registers: std::array::from_fn(|i| i as u64 + 100),
            overflow: true,
            flags: 0xd5,
        };
        let stub = saved.stub();
        assert!(stub.len() < 700, "{} bytes", stub.len());
        let at = offset_of(&raw const bbx_stub_data);
        assert_eq!(stub[..at], code()[..at]);
        assert_eq!(stub[at..at + 8], 7u64.to_le_bytes());
        assert_eq!(stub[at + 24..at + 32], 100u64.to_le_bytes());
        assert_eq!(Saved::of_stub(&stub), Some(saved));
        assert_eq!(Saved::of_stub(&vec![0; stub.len()]), None);
        assert_eq!(saved.flags_in(0x246), 0x246 & !0x8d5 | 0x8d5);
    }
}
