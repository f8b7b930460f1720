//! What can be seen of a sandbox's processes from outside, compared with what it was before.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// One process as it should stay.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    name: String,
    started: String,
    is_stopped: bool,
    mappings: String,
    /// Blocked signals by thread.
    masks: BTreeMap<i32, String>,
    /// The whole vdso with its tail.
    vdso: Vec<u8>,
}

/// Every process below a cgroup, by pid.
pub fn processes(cgroup: &Path) -> io::Result<BTreeMap<i32, Process>> {
    let mut found = BTreeMap::new();
    for pid in pids(cgroup)? {
        // One that ends meanwhile was not there.
        if let Ok(process) = Process::look(pid) {
            found.insert(pid, process);
        }
    }
    Ok(found)
}

/// Host pids below a cgroup.
pub fn pids(cgroup: &Path) -> io::Result<Vec<i32>> {
    let mut all: Vec<i32> =
        std::fs::read_to_string(cgroup.join("cgroup.procs"))?.lines().map(|l| l.parse().unwrap()).collect();
    for entry in std::fs::read_dir(cgroup)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.extend(pids(&entry.path())?);
        }
    }
    Ok(all)
}

fn file(pid: i32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

fn value(status: &str, key: &str) -> String {
    status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or("").trim().to_owned()
}

impl Process {
    fn look(pid: i32) -> io::Result<Self> {
        let stat = std::fs::read_to_string(file(pid, "stat"))?;
        let after: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let maps = String::from_utf8_lossy(&std::fs::read(file(pid, "maps"))?).into_owned();
        let mut masks = BTreeMap::new();
        for entry in std::fs::read_dir(file(pid, "task"))? {
            let tid: i32 = entry?.file_name().to_str().unwrap().parse().unwrap();
            masks.insert(tid, value(&std::fs::read_to_string(file(pid, &format!("task/{tid}/status")))?, "SigBlk"));
        }
        Ok(Self {
            name: std::fs::read_to_string(file(pid, "comm"))?.trim().to_owned(),
            started: after[19].to_owned(),
            is_stopped: after[0] == "T",
            vdso: vdso(pid, &maps)?,
            mappings: maps.lines().map(mapping).collect(),
            masks,
        })
    }

    /// Whether job control has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// What is not as before; empty when all is well. Only a program of ours has the same mappings for ever.
    pub fn differs(&self, before: &Self, pid: i32) -> String {
        let mut text = String::new();
        let mut note = |what: &str, was: &dyn std::fmt::Debug, is: &dyn std::fmt::Debug| {
            writeln!(text, "{} ({pid}): {what} was {was:?}, is {is:?}", self.name).unwrap();
        };
        if self.started != before.started {
            note("its start", &before.started, &self.started);
        }
        if self.is_stopped != before.is_stopped {
            note("stopped", &before.is_stopped, &self.is_stopped);
        }
        if self.masks != before.masks {
            note("the masks", &before.masks, &self.masks);
        }
        if self.vdso != before.vdso {
            note("the vdso", &before.vdso.len(), &self.vdso.iter().zip(&before.vdso).position(|(a, b)| a != b));
        }
        if self.mappings != before.mappings && self.name == "programs" {
            note("the mappings", &before.mappings, &self.mappings);
        }
        text
    }

    /// What no process may have at any time.
    pub fn disorder(pid: i32) -> String {
        let Ok(maps) = std::fs::read(file(pid, "maps")) else { return String::new() };
        let maps = String::from_utf8_lossy(&maps).into_owned();
        let mut text = String::new();
        if maps.lines().any(|line| line.contains("/dev/zero") && bytes(line) == 32 * 1024) {
            writeln!(text, "process {pid} has a batch page").unwrap();
        }
        if vdso(pid, &maps).is_ok_and(|found| !found.is_empty() && found != own_vdso()) {
            writeln!(text, "process {pid} has something in its vdso").unwrap();
        }
        for entry in std::fs::read_dir(file(pid, "task")).into_iter().flatten().flatten() {
            let status = std::fs::read_to_string(entry.path().join("status")).unwrap_or_default();
            if !matches!(value(&status, "TracerPid").as_str(), "" | "0") || value(&status, "State").starts_with('t') {
                writeln!(text, "thread {} is traced", entry.path().display()).unwrap();
            }
        }
        text
    }
}

fn own_vdso() -> Vec<u8> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    vdso(std::process::id().cast_signed(), &maps).unwrap()
}

fn range(line: &str) -> (u64, u64) {
    let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
    (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
}

fn bytes(line: &str) -> u64 {
    let (start, end) = range(line);
    end - start
}

fn vdso(pid: i32, maps: &str) -> io::Result<Vec<u8>> {
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else { return Ok(Vec::new()) };
    let mut found = vec![0u8; usize::try_from(bytes(line)).unwrap()];
    std::fs::File::open(file(pid, "mem"))?.read_exact_at(&mut found, range(line).0)?;
    Ok(found)
}

/// A line of `maps` without what a memory allocator moves.
fn mapping(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    format!("{} {} {}\n", words[0], words[1], words.get(5).unwrap_or(&""))
}
