//! Address spaces: mappings as they are, and the pages that differ from what is behind them.

use super::files::{Handle, file_object};
use super::objects::Registry;
use super::{Context, Member, refuse};
use crate::error::CaptureError;
use crate::procfs::{self, Area, Stat};
use branchbox_snapshot::{Backing, Extent, Mapping, Process};
use branchbox_sys::pagemap::{self, Wanted};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use std::fs::{self, File};
use std::io::{self, IoSliceMut};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Bytes read from a process at once; larger chunks gain nothing.
const CHUNK_BYTES: usize = 1 << 20;

/// `MADV_*` values by the flag that shows them.
const ADVICE: &[(&str, i32)] =
    &[("sr", 2), ("rr", 1), ("dc", 10), ("mg", 12), ("hg", 14), ("nh", 15), ("dd", 16), ("wf", 18)];
/// Flags that say nothing a restore must repeat, or that are captured by other means.
const PLAIN_FLAGS: &[&str] = &[
    "rd", "wr", "ex", "sh", "mr", "mw", "me", "ms", "gd", "pf", "lo", "ac", "nr", "sd", "de", "mm", "io", "lf", "nl",
    "ar", "dp", "gu",
];

/// Fills in a process's memory, program and working directory.
pub(crate) fn describe(
    context: &mut Context<'_>,
    registry: &mut Registry,
    member: &Member,
    process: &mut Process,
) -> Result<(), CaptureError> {
    let failed = |what: &'static str| {
        CaptureError::io(format!("{what} of process {} ({})", member.pid, procfs::name(member.host_pid)))
    };
    let brk = process.memory.fields[5];
    process.memory.fields = fields(member.host_pid, brk).map_err(failed("memory fields"))?;
    process.memory.auxv = fs::read(procfs::path(member.host_pid, "auxv")).map_err(failed("auxiliary vector"))?;
    process.memory.exe =
        Some(file_object(context, registry, &Handle::link(member, "exe", "its program"), libc_rdonly())?);
    process.cwd =
        Some(file_object(context, registry, &Handle::link(member, "cwd", "its working directory"), o_path_dir())?);

    let areas = procfs::areas(member.host_pid).map_err(failed("mappings"))?;
    let pagemap = File::open(procfs::path(member.host_pid, "pagemap")).map_err(failed("page map"))?;
    let memory = File::open(procfs::path(member.host_pid, "mem")).map_err(failed("memory"))?;
    for area in areas.iter().filter(|area| area.name != "[vsyscall]") {
        let backing = backing(context, registry, member, area)?;
        let mut mapping = mapping(member, area, backing)?;
        if area.flags.iter().any(|flag| flag == "gu") {
            let runs = pagemap::scan(&pagemap, area.start, area.end, Wanted::Guards).map_err(failed("guard pages"))?;
            mapping.guards = runs.iter().map(|run| (run.start, run.end)).collect();
        }
        mapping.extents = extents(context, member, area, &mapping, &pagemap, &memory)?;
        process.memory.mappings.push(mapping);
    }
    Ok(())
}

fn libc_rdonly() -> i32 {
    rustix::fs::OFlags::RDONLY.bits() as i32
}

fn o_path_dir() -> i32 {
    (rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY).bits() as i32
}

/// start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end, by their
/// numbers in proc(5).
fn fields(pid: i32, brk: u64) -> io::Result<[u64; 11]> {
    let stat = Stat::read(pid)?;
    let mut fields =
        [26, 27, 45, 46, 47, 0, 28, 48, 49, 50, 51].map(|number| if number == 0 { brk } else { stat.field(number) });
    fields[5] = brk;
    Ok(fields)
}

fn backing(
    context: &mut Context<'_>,
    registry: &mut Registry,
    member: &Member,
    area: &Area,
) -> Result<Backing, CaptureError> {
    match area.name.as_str() {
        "[vdso]" => return Ok(Backing::Vdso),
        "[vvar]" => return Ok(Backing::Vvar),
        "[vvar_vclock]" => return Ok(Backing::VvarVclock),
        _ => {}
    }
    if area.inode == 0 && (area.name.is_empty() || area.name.starts_with('[')) {
        return Ok(Backing::Anonymous);
    }
    let link = format!("map_files/{:x}-{:x}", area.start, area.end);
    let writes = area.shared && area.flags.iter().any(|flag| flag == "mw");
    let handle = Handle::mapping(member, &link, &area.name);
    registry.mapped(context, &handle, writes).map(Backing::Object)
}

fn mapping(member: &Member, area: &Area, backing: Backing) -> Result<Mapping, CaptureError> {
    let has = |flag: &str| area.flags.iter().any(|own| own == flag);
    let special = matches!(backing, Backing::Vdso | Backing::Vvar | Backing::VvarVclock);
    let strange = area
        .flags
        .iter()
        .find(|flag| !PLAIN_FLAGS.contains(&flag.as_str()) && !ADVICE.iter().any(|(known, _)| *known == flag.as_str()));
    let object = || format!("a mapping at {:x}-{:x} {}", area.start, area.end, area.name);
    if let Some(flag) = strange
        && !special
    {
        return Err(refuse(
            member,
            object(),
            format!("its kind `{flag}` is not captured"),
            "end the process and try again",
        ));
    }
    if area.protection_key != 0 {
        return Err(refuse(
            member,
            object(),
            "memory protection keys are not captured",
            "end the process and try again",
        ));
    }
    let name =
        area.name.strip_prefix("[anon:").and_then(|rest| rest.strip_suffix(']')).map(|name| name.as_bytes().to_vec());
    Ok(Mapping {
        start: area.start,
        end: area.end,
        protection: u32::from(area.readable) | u32::from(area.writable) << 1 | u32::from(area.executable) << 2,
        shared: area.shared,
        offset: area.offset,
        backing,
        advice: ADVICE.iter().filter(|(flag, _)| has(flag)).map(|&(_, advice)| advice).collect(),
        grows_down: has("gd"),
        no_reserve: has("nr"),
        locked: has("lo").then(|| has("lf")),
        droppable: has("dp"),
        guards: Vec::new(),
        name,
        extents: Vec::new(),
    })
}

fn extents(
    context: &mut Context<'_>,
    member: &Member,
    area: &Area,
    mapping: &Mapping,
    pagemap: &File,
    memory: &File,
) -> Result<Vec<Extent>, CaptureError> {
    const MADV_WIPEONFORK: i32 = 18;
    let wanted = match mapping.backing {
        _ if mapping.shared || mapping.droppable || mapping.advice.contains(&MADV_WIPEONFORK) => return Ok(Vec::new()),
        Backing::Anonymous => Wanted::Filled,
        Backing::Object(_) => Wanted::Diverged,
        Backing::Vdso | Backing::Vvar | Backing::VvarVclock => return Ok(Vec::new()),
    };
    let what = format!("reading memory {:x}-{:x} of process {}", area.start, area.end, member.pid);
    let runs = pagemap::scan(pagemap, area.start, area.end, wanted).map_err(CaptureError::io(what.clone()))?;
    let mut extents = Vec::new();
    let mut buffer = vec![0u8; CHUNK_BYTES];
    for run in runs {
        let mut from = run.start;
        while from < run.end {
            let part = &mut buffer[..CHUNK_BYTES.min((run.end - from) as usize)];
            read(member.host_pid, memory, area.readable, from, part).map_err(CaptureError::io(what.clone()))?;
            let blob = context.writer.append(part).map_err(CaptureError::Image)?;
            extents.push(Extent { address: from, blob });
            from += part.len() as u64;
        }
    }
    Ok(extents)
}

fn read(pid: i32, memory: &File, readable: bool, from: u64, part: &mut [u8]) -> io::Result<()> {
    if readable {
        let remote = [RemoteIoVec { base: from as usize, len: part.len() }];
        let got = process_vm_readv(nix::unistd::Pid::from_raw(pid), &mut [IoSliceMut::new(part)], &remote);
        if got == Ok(part.len()) {
            return Ok(());
        }
    }
    memory.read_exact_at(part, from)
}

/// Device and inode of what a magic link points to.
pub(crate) fn identity(path: &std::path::Path) -> io::Result<(u64, u64, fs::Metadata)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino(), metadata))
}
