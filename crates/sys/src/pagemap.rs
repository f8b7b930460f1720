//! Which pages of a process hold something: `PAGEMAP_SCAN` (Linux 6.7) and, before it, plain pagemap entries.
//!
//! Source: Documentation/admin-guide/mm/pagemap.rst.
#![expect(unsafe_code, reason = "the scan is an ioctl")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Bytes in a page of x86-64.
pub const PAGE_BYTES: u64 = 4096;

const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_PFNZERO: u64 = 1 << 5;
const IS_GUARD: u64 = 1 << 8;
const PAGEMAP_SCAN: libc::c_ulong = 0xC060_6610;
const REGIONS: usize = 1024;

/// A run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
}

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Pages that hold data, other than the shared zero page.
    Filled,
    /// Pages of a private file mapping that are no longer the file's.
    Diverged,
    /// Guard pages (`MADV_GUARD_INSTALL`, Linux 6.13; shown by the scan since 6.16).
    Guards,
}

#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// Runs of wanted pages of one mapping; `pagemap` is the process's `/proc/<pid>/pagemap`.
///
/// # Errors
/// What the ioctl or the read says.
pub fn scan(pagemap: &File, start: u64, end: u64, wanted: Wanted) -> io::Result<Vec<Run>> {
    match scan_by_ioctl(pagemap, start, end, wanted) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) && wanted != Wanted::Guards => {
            scan_by_entries(pagemap, start, end, wanted)
        }
        result => result,
    }
}

fn scan_by_ioctl(pagemap: &File, start: u64, end: u64, wanted: Wanted) -> io::Result<Vec<Run>> {
    let mut runs: Vec<Run> = Vec::new();
    let mut regions = vec![PageRegion::default(); REGIONS];
    let (unwanted, any_of) = match wanted {
        Wanted::Filled => (IS_PFNZERO, IS_PRESENT | IS_SWAPPED),
        Wanted::Diverged => (IS_FILE, IS_PRESENT | IS_SWAPPED),
        Wanted::Guards => (0, IS_GUARD),
    };
    let mut from = start;
    while from < end {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start: from,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS as u64,
            category_inverted: unwanted,
            category_mask: unwanted,
            category_anyof_mask: any_of,
            return_mask: any_of,
            ..ScanArg::default()
        };
        // SAFETY: the argument and the vector it names outlive the call and have the sizes given.
        let got = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        for region in &regions[..got.cast_unsigned() as usize] {
            push(&mut runs, region.start, region.end);
        }
        if arg.walk_end <= from {
            break;
        }
        from = arg.walk_end;
    }
    Ok(runs)
}

/// Before Linux 6.7: entries of 8 bytes; bit 63 present, 62 swapped, 61 file or shared.
fn scan_by_entries(pagemap: &File, start: u64, end: u64, wanted: Wanted) -> io::Result<Vec<Run>> {
    const CHUNK_PAGES: u64 = 8192;
    let mut runs = Vec::new();
    let mut raw = vec![0u8; (CHUNK_PAGES * 8) as usize];
    let mut from = start;
    while from < end {
        let pages = CHUNK_PAGES.min((end - from) / PAGE_BYTES);
        let part = &mut raw[..(pages * 8) as usize];
        pagemap.read_exact_at(part, from / PAGE_BYTES * 8)?;
        for (index, entry) in part.as_chunks::<8>().0.iter().enumerate() {
            let entry = u64::from_le_bytes(*entry);
            let filled = entry >> 62 != 0;
            let file = entry >> 61 & 1 == 1;
            if filled && !(wanted == Wanted::Diverged && file) {
                let at = from + index as u64 * PAGE_BYTES;
                push(&mut runs, at, at + PAGE_BYTES);
            }
        }
        from += pages * PAGE_BYTES;
    }
    Ok(runs)
}

fn push(runs: &mut Vec<Run>, start: u64, end: u64) {
    match runs.last_mut() {
        Some(last) if last.end == start => last.end = end,
        _ => runs.push(Run { start, end }),
    }
}
