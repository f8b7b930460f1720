//! The room a sandbox lives in: namespaces, id maps, mounts, control groups, the base system call filter, capabilities.
//!
//! [`spawn`] furnishes the room and starts the guest in it as process 1. Everything that confines is in force before the
//! guest's first instruction, but for the capabilities that bringing back saved processes needs: the guest gives those up
//! itself ([`caps::drop_to_runtime_set`]) before it serves anybody.
//!
//! Deliberately not here: the file tree (mounts come in as descriptors from `layers`), and what runs inside (`guest`).

pub mod caps;
pub mod cgroup;
pub mod check;
pub mod closed;
pub mod filter;
pub mod privilege;
pub mod spawn;
