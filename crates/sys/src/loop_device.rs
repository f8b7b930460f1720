//! Loop devices by ioctl: a file as a block device, without the `losetup` program.
//!
//! C: `linux/loop.h`; `LOOP_CONFIGURE` needs Linux 5.8. Devices are made with autoclear, so the kernel frees one when
//! its last user (the mount) goes, whatever became of us.
#![expect(unsafe_code, reason = "ioctls by hand")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;

const LOOP_SET_CAPACITY: u64 = 0x4C07;
const LOOP_CONFIGURE: u64 = 0x4C0A;
const LOOP_CTL_GET_FREE: u64 = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Somebody else may take the free device between asking and configuring it.
const ATTEMPTS_MAX: u32 = 32;

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// An open loop device; the device is freed when this and every mount of it are gone.
#[derive(Debug)]
pub struct LoopDevice {
    /// The open device.
    pub file: File,
    /// Its path, such as `/dev/loop3`.
    pub path: PathBuf,
}

/// Attaches `backing` to a free loop device.
///
/// # Errors
/// The kernel's error, or that of opening `/dev/loop-control` or the device node.
pub fn attach(backing: &File) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..ATTEMPTS_MAX {
        let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        match configure(&file, backing) {
            Ok(()) => return Ok(LoopDevice { file, path }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::EBUSY))
}

/// Tells the device that its file has grown.
///
/// # Errors
/// The kernel's error.
pub fn refresh_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: LOOP_SET_CAPACITY takes no argument; the descriptor is borrowed and therefore open.
    let rc = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_CAPACITY, 0) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn free_number(control: &File) -> io::Result<i32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns the number.
    let rc = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

fn configure(device: &File, backing: &File) -> io::Result<()> {
    let info = LoopInfo64 {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let config = LoopConfig { fd: backing.as_raw_fd().unsigned_abs(), block_size: 4096, info, reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads exactly one `struct loop_config`, which `config` is; both files are open.
    let rc = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const _: () = assert!(size_of::<LoopInfo64>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);
