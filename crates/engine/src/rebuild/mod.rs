//! The part of a restore that runs inside the fresh guest, before it serves anyone.
//!
//! The guest makes every kernel object of the machine once, under descriptor numbers above all that the processes use, and
//! then makes the processes that are its own children. Since a child inherits the whole descriptor table, every restored
//! process finds every object at a known number and only has to copy what it needs into place. No descriptor travels
//! through a socket, and objects are made by a process inside the namespaces, with the owner's ids where the kernel
//! remembers the maker.
//!
//! The keeper sends a [`Step`] at a time; the guest keeps nothing between steps but its descriptors and the mapped region.

mod files;
mod maker;
mod sockets;

use branchbox_snapshot::{Ghost, InotifyWatch, Object, ObjectKind, Pipe, SharedMemory};
use branchbox_sys::{inherited, inotify, region};
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use serde::{Deserialize, Serialize};

/// What the guest gives a rebuild.
#[derive(Debug)]
pub struct Context<'a> {
    /// The sandbox's `work` cgroup.
    pub cgroup: BorrowedFd<'a>,
    /// `/proc/sys/kernel/ns_last_pid`, writable.
    pub last_pid: BorrowedFd<'a>,
}

/// The memory shared by keeper, guest and every remote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Where it lies, the same in every process.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// How much of its beginning is code.
    pub code_bytes: u64,
}

/// One step of a rebuild.
#[derive(Debug, Serialize, Deserialize)]
pub enum Step {
    /// Maps the region (first descriptor) and makes the objects; bulk bytes come from the second descriptor.
    Objects(Box<ObjectsPlan>),
    /// Makes children with these pids, which wait at an address of the region.
    Spawn {
        /// Their pids.
        pids: Vec<i32>,
        /// Where they wait.
        park: u64,
    },
    /// Adds the watches of inotifies, sets the namespace's last pid, closes the objects except `keep`, unmaps the region.
    Finish {
        /// Object descriptors of inotifies, each with its watches.
        watches: Vec<(i32, Vec<InotifyWatch>)>,
        /// Last pid given out.
        last_pid: i32,
        /// Object descriptors to close.
        close: Vec<i32>,
        /// The region.
        region: Region,
    },
}

/// Everything the guest makes.
#[derive(Debug, Serialize, Deserialize)]
pub struct ObjectsPlan {
    /// Object descriptors get numbers from here up.
    pub base_fd: i32,
    /// The shared region.
    pub region: Region,
    /// Cgroups below `work`.
    pub cgroups: Vec<String>,
    /// Objects, by id.
    pub objects: Vec<Object>,
    /// Pipes.
    pub pipes: Vec<Pipe>,
    /// Deleted files.
    pub ghosts: Vec<Ghost>,
    /// Memory files.
    pub shared: Vec<SharedMemory>,
}

/// The answer to [`Step::Objects`].
#[derive(Debug, Serialize, Deserialize)]
pub struct ObjectsMade {
    /// Descriptor of each object; -1 for those that a process makes itself.
    pub fds: Vec<i32>,
    /// Paths whose inode number is another than at the capture.
    pub moved: Vec<String>,
    /// A base file that is not as it was, if any.
    pub changed: Option<String>,
}

/// Carries out one step; the answer's meaning depends on it.
///
/// # Errors
/// A sentence for the keeper's error; the half-made sandbox is of no use then.
pub fn run(plan: &[u8], fds: Vec<OwnedFd>, context: &Context<'_>) -> Result<Vec<u8>, String> {
    let step: Step = postcard_from(plan)?;
    match step {
        Step::Objects(plan) => {
            let [region_file, pages]: [OwnedFd; 2] =
                fds.try_into().map_err(|_| "a rebuild of objects needs two descriptors".to_owned())?;
            let made = objects(&plan, &region_file, pages, context)?;
            branchbox_snapshot::to_bytes(&made).map_err(|error| error.to_string())
        }
        Step::Spawn { pids, park } => {
            for pid in pids {
                region::clone_at(pid, park).map_err(|error| format!("making process {pid}: {error}"))?;
            }
            Ok(Vec::new())
        }
        Step::Finish { watches, last_pid, close, region } => {
            for (fd, watches) in &watches {
                let made = inherited::take(*fd).map_err(|error| format!("taking an inotify: {error}"))?;
                for watch in watches {
                    inotify::add(&made, watch.number, &watch.path, watch.mask)
                        .map_err(|error| format!("watching {}: {error}", String::from_utf8_lossy(&watch.path)))?;
                }
                // Closed, or kept by the guest, as any other.
                let _ = made.into_raw_fd();
            }
            rustix::io::write(context.last_pid, last_pid.to_string().as_bytes())
                .map_err(|errno| format!("setting the last pid: {errno}"))?;
            for fd in close {
                drop(inherited::take(fd));
            }
            region::unmap_region(region.address, region.bytes as usize)
                .map_err(|error| format!("unmapping the region: {error}"))?;
            Ok(Vec::new())
        }
    }
}

fn postcard_from(bytes: &[u8]) -> Result<Step, String> {
    branchbox_snapshot::from_bytes(bytes).map_err(|error| format!("a step that cannot be read: {error}"))
}

fn objects(
    plan: &ObjectsPlan,
    region_file: &OwnedFd,
    pages: OwnedFd,
    context: &Context<'_>,
) -> Result<ObjectsMade, String> {
    let region = plan.region;
    region::map_region(region_file, region.address, region.bytes as usize, region.code_bytes as usize)
        .map_err(|error| format!("mapping the region: {error}"))?;
    for name in &plan.cgroups {
        match rustix::fs::mkdirat(context.cgroup, name.as_str(), rustix::fs::Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(format!("making cgroup {name}: {errno}")),
        }
    }
    let mut maker = Maker {
        plan,
        pages: std::fs::File::from(pages),
        made: (0..plan.objects.len()).map(|_| None).collect(),
        resets: Vec::new(),
        moved: Vec::new(),
        changed: None,
    };
    maker.files()?;
    maker.sockets()?;
    maker.locks()?;
    maker.place()
}

/// The objects as they come into being.
struct Maker<'a> {
    plan: &'a ObjectsPlan,
    pages: std::fs::File,
    made: Vec<Option<OwnedFd>>,
    /// Other ends of connections that are to be reset, each with the object it belongs to.
    resets: Vec<(usize, OwnedFd)>,
    moved: Vec<String>,
    changed: Option<String>,
}

impl Maker<'_> {
    fn locks(&self) -> Result<(), String> {
        use branchbox_snapshot::Lock;
        use rustix::fs::FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
        for (index, object) in self.plan.objects.iter().enumerate() {
            let Some(fd) = &self.made[index] else { continue };
            if let Some(lock) = object.flock {
                let operation = if lock == Lock::Shared { NonBlockingLockShared } else { NonBlockingLockExclusive };
                rustix::fs::flock(fd, operation).map_err(|errno| format!("locking object {index}: {errno}"))?;
            }
            for &(lock, start, length) in &object.ofd_locks {
                branchbox_sys::lock::set_description_lock(fd, lock == Lock::Exclusive, start, length)
                    .map_err(|error| format!("locking a range of object {index}: {error}"))?;
            }
        }
        Ok(())
    }

    /// Moves every object to its final number.
    fn place(self) -> Result<ObjectsMade, String> {
        let mut fds = Vec::with_capacity(self.made.len());
        for (index, made) in self.made.into_iter().enumerate() {
            let made_elsewhere = matches!(self.plan.objects[index].kind, ObjectKind::Pid { .. });
            match made {
                Some(fd) => {
                    let placed = rustix::io::fcntl_dupfd_cloexec(&fd, self.plan.base_fd)
                        .map_err(|errno| format!("placing object {index}: {errno}"))?;
                    fds.push(placed.into_raw_fd());
                }
                None if made_elsewhere => fds.push(-1),
                None => return Err(format!("object {index} was not made")),
            }
        }
        Ok(ObjectsMade { fds, moved: self.moved, changed: self.changed })
    }
}

/// Opens the very object behind a descriptor again, as a description of its own.
fn reopen(fd: impl AsFd, flags: rustix::fs::OFlags) -> Result<OwnedFd, rustix::io::Errno> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    rustix::fs::open(path, flags | rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty())
}
