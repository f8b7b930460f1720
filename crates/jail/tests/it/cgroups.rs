//! Limits, freezing, delegation and removal, on the layout that this host has.

use crate::guest::MOVE;
use crate::room::{LIMITS, Room, ids};
use branchbox_jail::cgroup::{Layout, Part, SandboxCgroup, collect};
use branchbox_model::SandboxId;
use std::process::{Command, Stdio};

pub const TESTS: &[crate::Test] = &[
    ("limits_are_in_force_and_usage_is_counted", limits),
    ("memory_over_the_limit_is_killed_and_counted", out_of_memory),
    ("the_sandbox_moves_its_own_commands_between_groups", delegation),
    ("freezing_stops_and_thawing_resumes", freezing),
    ("leftovers_are_collected_and_others_are_not", leftovers),
];

fn limits() {
    let layout = Layout::detect().unwrap();
    assert!(layout.missing().is_empty(), "{:?}", layout.missing());
    let room = Room::new();
    assert!(room.cgroup.missing().is_empty());
    room.ask("timeout 0.3 sh -c 'while :; do :; done'");
    let usage = room.cgroup.usage();
    assert!(usage.cpu_us > 100_000, "{usage:?}");
    assert!(usage.memory_bytes > 0 && usage.memory_peak_bytes >= usage.memory_bytes && usage.pids > 0, "{usage:?}");
    let answer = room.ask("for i in $(seq 100); do sleep 5 & done 2>&1; wait 2>/dev/null");
    assert!(answer.contains("ork"), "64 processes are the limit: {answer}");
}

fn out_of_memory() {
    let room = Room::new();
    room.ask("python3 -c 'x = bytearray(400 << 20)'");
    assert_eq!(room.cgroup.usage().oom_kills, 1);
    assert_eq!(room.ask("echo alive"), "alive");
}

fn delegation() {
    let room = Room::new();
    let answer = room.ask(MOVE);
    assert!(answer.starts_with("moved "), "{answer}");
    let procs = std::fs::read_to_string(room.cgroup.work_path().join("e1/cgroup.procs")).unwrap();
    assert_eq!(procs.lines().count(), 1);
    // Limits are not the sandbox's to change.
    for dir in [room.cgroup.dir().to_path_buf(), room.cgroup.work_path()] {
        for file in ["cgroup.freeze", "cgroup.max.descendants", "cgroup.kill"] {
            use std::os::unix::fs::MetadataExt;
            assert_eq!(std::fs::metadata(dir.join(file)).unwrap().uid(), 0, "{file}");
        }
    }
    assert_ne!(ids().base, 0);
}

fn freezing() {
    let room = Room::new();
    room.ask(MOVE);
    room.cgroup.freeze(Part::Work).unwrap();
    assert_eq!(room.ask("echo the guest runs"), "the guest runs");
    room.cgroup.freeze(Part::All).unwrap();
    let state = || std::fs::read_to_string(room.cgroup.dir().join("cgroup.events")).unwrap();
    assert!(state().contains("frozen 1"));
    room.cgroup.thaw(Part::All).unwrap();
    room.cgroup.thaw(Part::Work).unwrap();
    assert_eq!(room.ask("echo again"), "again");
    room.cgroup.freeze(Part::All).unwrap();
    // Dropped frozen: killing needs no thaw.
}

fn leftovers() {
    let layout = Layout::detect().unwrap();
    let (left, kept) = (SandboxId::generate(), SandboxId::generate());
    let group = SandboxCgroup::create(&layout, &left, ids(), &LIMITS).unwrap();
    let other = SandboxCgroup::create(&layout, &kept, ids(), &LIMITS).unwrap();
    let mut child = Command::new("sleep").arg("1000").stdout(Stdio::null()).spawn().unwrap();
    group.place(child.id().cast_signed()).unwrap();
    assert_eq!(collect(&layout, |id| *id == left).unwrap(), [left]);
    assert!(!group.dir().exists() && other.dir().exists());
    child.wait().unwrap();
    other.remove().unwrap();
    assert!(!other.dir().exists());
    other.remove().unwrap();
}
