//! The kernel's side: the only crate with `unsafe`.
//!
//! One file per syscall family, each function a thin, safe wrapper with owned descriptors and real errors. Nothing here
//! decides anything: order, retries and meaning belong to the callers. Wrappers exist here only where `rustix` and safe
//! parts of `nix` and `std` have none.

pub mod btrfs;
pub mod clone;
pub mod event;
pub mod fsids;
pub mod handle;
pub mod heap;
pub mod id_map;
pub mod inherited;
pub mod inotify;
pub mod kcmp;
pub mod lock;
pub mod loop_device;
pub mod memory;
pub mod mount_attr;
pub mod netif;
pub mod pagemap;
pub mod peer;
pub mod ptrace;
pub mod region;
pub mod remote;
pub mod seccomp;
pub mod sock;
pub mod spawn;
pub mod task;
