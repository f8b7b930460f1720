//! Bringing a sandbox to where it runs: booted, restored, or adopted from a keeper that died.

use crate::failure::{Failure, point};
use crate::guest::Guest;
use crate::listen;
use crate::machine;
use crate::record::RunRecord;
use branchbox_engine::{CallHistory, Saved};
use branchbox_jail::cgroup::{Layout, Part, SandboxCgroup};
use branchbox_jail::spawn::{ClockOffsets, Jail, JailSpec, spawn};
use branchbox_model::Code;
use branchbox_protocol::PROTOCOL_VERSION;
use branchbox_protocol::guest::GuestConfig;
use branchbox_protocol::keeper::{Enforced, KeeperConfig, Note, Running, Start};
use rustix::fs::{Mode, OFlags};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// Below the sandbox's directory: the place over which the room's root is put together.
const STAGING: &str = "root";
/// Nice value of the guest (setpriority(2)); commands run at 0.
const GUEST_NICE: i32 = -15;
/// Random bytes of a generation; written as hexadecimal.
const GENERATION_BYTES: usize = 16;

/// A sandbox that runs.
#[derive(Debug)]
pub struct Live {
    /// Its room.
    pub jail: Jail,
    /// Its control groups.
    pub cgroup: SandboxCgroup,
    /// Its first process.
    pub guest: Guest,
    /// What earlier captures saw of calls that wait.
    pub history: CallHistory,
    /// What the node is told.
    pub running: Running,
}

/// Starts, restores or adopts the sandbox.
///
/// # Errors
/// [`Failure`]; no process of the sandbox is left then, but of one that could not be adopted.
pub fn start(config: &KeeperConfig, begun: Instant) -> Result<Live, Failure> {
    let layout = Layout::detect()?;
    match RunRecord::read(&config.sandbox_dir).filter(RunRecord::is_alive) {
        Some(record) => adopt(config, &layout, &record, begun),
        None => fresh(config, &layout, begun),
    }
}

/// A sandbox that has run on without a keeper.
fn adopt(config: &KeeperConfig, layout: &Layout, record: &RunRecord, begun: Instant) -> Result<Live, Failure> {
    tracing::info!(guest = record.guest_pid, "adopting");
    let jail = Jail::adopt(record.guest_pid).map_err(|e| Failure::io("find the sandbox's first process", e))?;
    let cgroup = SandboxCgroup::open(layout, &config.id);
    // Whatever a dead keeper froze beyond the commands; those only after the engine has put them right.
    cgroup.thaw(Part::All)?;
    if let Err(failure) = machine::recover(&cgroup.work_path()) {
        // What runs is worth more than what is left over in it; the next capture stops everything and sees for itself.
        tracing::error!("what the last keeper left in the processes is still there: {failure}");
    }
    let guest = Guest::connect(&listen::guest_path(config))?;
    RunRecord::of(record.guest_pid)?.write(&config.sandbox_dir)?;
    let running = running(&jail, Vec::new(), begun)?;
    Ok(Live { jail, cgroup, guest, history: CallHistory::default(), running })
}

fn fresh(config: &KeeperConfig, layout: &Layout, begun: Instant) -> Result<Live, Failure> {
    // What a keeper left that died while it made this sandbox.
    SandboxCgroup::open(layout, &config.id).remove()?;
    RunRecord::remove(&config.sandbox_dir);
    // What cannot be brought back is said before anything is made for it.
    let saved = match &config.start {
        Start::Boot => None,
        Start::Restore { image } => Some(machine::open(config, image)?),
    };
    let listener = listen::bind(&listen::guest_path(config))?;
    let mounts =
        branchbox_layers::assemble(&config.root, config.ids).map_err(|e| Failure::of(Code::StartFailed, &e))?;
    point("start.assembled")?;
    let cgroup = SandboxCgroup::create(layout, &config.id, config.ids, &config.limits)?;
    if !cgroup.missing().is_empty() {
        tracing::warn!("limits not in force, because this host has no controller for them: {:?}", cgroup.missing());
    }
    let spec = JailSpec {
        id: config.id.clone(),
        hostname: config.hostname.clone(),
        ids: config.ids,
        cgroup: &cgroup,
        mounts: mounts.into_iter().map(|mount| (mount.fd, mount.target)).collect(),
        staging: staging(&config.sandbox_dir)?,
        guest_exe: own_executable()?,
        listener,
        clocks: saved
            .as_ref()
            .and_then(Saved::clock_offsets)
            .map(|offsets| ClockOffsets { monotonic_ns: offsets.monotonic_ns, boottime_ns: offsets.boottime_ns }),
    };
    let room = point("start.cgroup").and_then(|()| spawn(spec).map_err(Failure::from));
    let inside = room.and_then(|jail| match inhabit(config, &jail, &cgroup, saved, begun) {
        Ok((guest, running)) => Ok((jail, guest, running)),
        Err(failure) => {
            jail.kill_and_reap();
            Err(failure)
        }
    });
    match inside {
        Ok((jail, guest, running)) => Ok(Live { jail, cgroup, guest, history: CallHistory::default(), running }),
        Err(failure) => {
            if let Err(error) = cgroup.remove() {
                tracing::error!("{}", Failure::from(error));
            }
            Err(failure)
        }
    }
}

/// From an empty room with a guest to a sandbox that serves.
fn inhabit(
    config: &KeeperConfig,
    jail: &Jail,
    cgroup: &SandboxCgroup,
    saved: Option<Saved>,
    begun: Instant,
) -> Result<(Guest, Running), Failure> {
    point("start.room")?;
    let mut guest = Guest::connect(&listen::guest_path(config))?;
    point("start.guest")?;
    let work = cgroup.work_path();
    let mut restored = match saved {
        None => None,
        Some(saved) => Some(machine::restore(config, jail.pid, &work, saved, &mut guest)?),
    };
    let mut notes = Vec::new();
    if let Some(restored) = &mut restored {
        point("start.restored")?;
        guest.import(&restored.guest_state, std::mem::take(&mut restored.fds))?;
        notes = machine::notes(std::mem::take(&mut restored.notes));
    }
    point("start.import")?;
    guest.seal(GuestConfig { env: config.env.clone(), generation: generation()? })?;
    point("start.sealed")?;
    let running = running(jail, notes, begun)?;
    if let Some(restored) = restored {
        restored.release().map_err(Failure::from)?;
    }
    point("start.released")?;
    // Only from here on the sandbox can be adopted: until they are released, saved processes die with this keeper.
    RunRecord::of(jail.pid)?.write(&config.sandbox_dir)?;
    point("start.recorded")?;
    tracing::info!(guest = jail.pid, start_us = running.start_us, "running");
    Ok((guest, running))
}

/// The guest answers the node even while its commands want every processor of the sandbox.
fn prefer(jail: &Jail) {
    let Some(pid) = rustix::process::Pid::from_raw(jail.pid) else { return };
    if let Err(errno) = rustix::process::setpriority_process(Some(pid), GUEST_NICE) {
        tracing::warn!("the guest runs at the priority of its commands: {errno}");
    }
}

fn running(jail: &Jail, notes: Vec<Note>, begun: Instant) -> Result<Running, Failure> {
    prefer(jail);
    let closed = branchbox_jail::closed::is_enforced(jail.pid).map_err(|e| Failure::of(Code::StartFailed, &e))?;
    let start_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(Running { version: PROTOCOL_VERSION, guest_pid: jail.pid, start_us, notes, enforced: Enforced { closed } })
}

fn staging(sandbox_dir: &Path) -> Result<std::path::PathBuf, Failure> {
    let path = sandbox_dir.join(STAGING);
    match std::fs::create_dir(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Failure::io(format_args!("make {}", path.display()), error))
        }
        _ => Ok(path),
    }
}

/// The file this process runs, whatever lies at its path by now.
fn own_executable() -> Result<OwnedFd, Failure> {
    rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| Failure::io("open this program", e.into()))
}

fn generation() -> Result<String, Failure> {
    let mut bytes = [0u8; GENERATION_BYTES];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Failure::io("read random bytes", e))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
