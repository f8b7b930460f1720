//! What a room looks like from inside and outside.

use crate::guest::SEAL;
use crate::room::{Room, ids, tree, usr};
use branchbox_jail::spawn::{JailError, Step};

pub const TESTS: &[crate::Test] = &[
    ("a_room_has_its_own_namespaces_and_ids", namespaces_and_ids),
    ("a_room_shows_nothing_of_the_host", nothing_of_the_host),
    ("the_base_filter_and_limits_hold_inside", filter_and_limits),
    ("sealing_leaves_only_the_kept_capabilities", sealing),
    ("the_guest_has_exactly_its_descriptors", descriptors),
    ("a_failed_setup_names_its_step_and_leaves_nothing", failed_setup),
    ("links_in_the_tree_do_not_lead_the_setup_outside", hostile_links),
    ("a_room_outlives_nothing_when_killed", killed),
    ("an_adopted_room_is_watched_by_its_pid", adopted),
];

fn namespaces_and_ids() {
    let room = Room::new();
    assert_eq!(
        room.ask("echo $$; id -u; hostname; cat /proc/1/comm").lines().skip(1).collect::<Vec<_>>(),
        ["0", "box", "guest"]
    );
    for kind in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
        let outside = std::fs::read_link(format!("/proc/{}/ns/{kind}", room.jail.pid)).unwrap();
        assert_ne!(outside, std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap(), "{kind}");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", room.jail.pid)).unwrap();
    assert!(status.contains(&format!("Uid:\t{0}\t{0}\t{0}\t{0}", ids().base)), "{status}");
    assert_eq!(room.ask("cat /proc/self/cgroup | grep ^0"), "0::/guest");
    assert_eq!(room.ask("cat /proc/self/uid_map | tr -s ' '"), format!(" 0 {} 65536", ids().base));
    assert_eq!(room.ask("cat /proc/self/stat | cut -d' ' -f6"), "1", "its own session");
    assert_eq!(room.ask("cat /sys/class/net/lo/operstate; ls /sys/class/net"), "unknown\nlo");
}

fn nothing_of_the_host() {
    let room = Room::new();
    assert_eq!(room.ask("ls /"), "bin\ndev\nlib\nlib64\nproc\nsbin\nsys\ntmp\nusr");
    assert_eq!(
        room.ask("ls -A /dev | tr '\\n' ' '"),
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    assert_eq!(room.ask("test -e /proc/kcore && wc -c < /proc/kcore || echo 0; wc -c < /proc/keys; ls -A /proc/scsi /sys/firmware 2>&1 | grep -v :"), "0\n0");
    for path in [
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/ns_last_pid",
        "/proc/sys/user/max_user_namespaces",
    ] {
        let answer = room.ask(&format!("echo 1 > {path} && echo WRITTEN; true"));
        let harmless = answer.contains("Read-only") || answer.contains("denied") || path == "/proc/sysrq-trigger";
        assert!(harmless, "{path}: {answer}");
    }
    assert!(room.ask("touch /sys/x").contains("Read-only"));
    assert!(room.ask("grep ' /.branchbox/guest ' /proc/self/mountinfo").contains(" ro,nosuid,nodev"));
    let mounts = room.ask("cut -d' ' -f5 /proc/self/mountinfo");
    assert!(!mounts.contains("bbx-jail") && mounts.lines().any(|l| l == "/"), "{mounts}");
    assert_eq!(room.ask("ls -d /proc/[0-9]* | wc -l").parse::<u32>().map(|n| n < 6), Ok(true));
    assert_eq!(room.ask("python3 -c 'import os; m,s=os.openpty(); print(os.ttyname(s))'"), "/dev/pts/0");
}

fn filter_and_limits() {
    let room = Room::new();
    assert!(room.ask("unshare -U true").contains("not permitted"));
    assert!(
        room.ask("mount -t tmpfs x /tmp").contains("denied")
            || room.ask("mount -t tmpfs x /tmp").contains("not permitted")
    );
    assert_eq!(room.ask("cat /proc/sys/user/max_*_namespaces | sort -u"), "0");
    let calls = r"import ctypes
c=ctypes.CDLL(None,use_errno=True)
def e(*a):
    r=c.syscall(*a); return 0 if r>=0 else ctypes.get_errno()
print(e(425,8,0), e(41,38,5,0), e(41,2,1,0), e(41,16,3,0), e(250,0,0), e(317,1,8,0), e(135,0xffffffff), e(135,8), e(435,0,0))";
    // clone3 gets its own answer from the kernel: EINVAL for a size of 0.
    assert_eq!(room.ask(&format!("python3 -c '{calls}'")), "38 97 0 0 38 22 0 1 22");
    let new_user = r"import ctypes
c=ctypes.CDLL(None,use_errno=True)
b=(ctypes.c_uint64*11)(0x10000000,0,0,0,17)
r=c.syscall(435,b,88)
print(ctypes.get_errno())";
    assert_eq!(room.ask(&format!("python3 -c '{new_user}'")), "28", "clone3 cannot make a user namespace: ENOSPC");
    assert_eq!(
        room.ask("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | tr -s '\\t\\n' '  '"),
        "NoNewPrivs: 0 Seccomp: 2"
    );
}

fn sealing() {
    let room = Room::new();
    assert_eq!(room.ask("grep CapBnd /proc/self/status"), "CapBnd:\t000001ffffffffff");
    assert_eq!(room.ask(SEAL), "sealed");
    let kept = branchbox_jail::caps::kept().bits();
    assert_eq!(room.ask("grep CapBnd /proc/self/status"), format!("CapBnd:\t{kept:016x}"));
    assert_eq!(room.ask("grep CapEff /proc/self/status"), format!("CapEff:\t{kept:016x}"));
    assert!(room.ask("hostname other").contains("must be root") || room.ask("hostname").trim() == "box");
}

fn descriptors() {
    let room = Room::new();
    let listing = std::fs::read_dir(format!("/proc/{}/fd", room.jail.pid)).unwrap();
    let mut numbers: Vec<i32> = listing.flatten().map(|e| e.file_name().to_string_lossy().parse().unwrap()).collect();
    numbers.sort_unstable();
    let link = |fd: i32| {
        std::fs::read_link(format!("/proc/{}/fd/{fd}", room.jail.pid)).unwrap().to_string_lossy().into_owned()
    };
    // 6 is the connection that this test's guest has accepted by now, or not yet.
    assert!(numbers == [0, 1, 2, 3, 4, 5] || numbers == [0, 1, 2, 3, 4, 5, 6], "{numbers:?}");
    assert_eq!([link(0), link(1), link(2)], ["/dev/null"; 3]);
    assert!(link(3).starts_with("socket:"));
    assert!(link(5).ends_with("sys/kernel/ns_last_pid"), "{}", link(5));
}

fn failed_setup() {
    let before = processes();
    let (file, _keep) = (std::fs::File::open("/proc/self/exe").unwrap(), ());
    let error = Room::with(vec![(file.into(), "/".into())]).err().unwrap();
    assert!(matches!(error, JailError::Setup { step: Step::Trees, .. }), "{error:?}");
    assert_eq!(processes(), before);
}

fn processes() -> usize {
    let children = std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap();
    children.split_whitespace().count()
}

fn hostile_links() {
    let root = tree();
    let outside = std::env::temp_dir().join(format!("bbx-outside-{}", std::process::id()));
    std::fs::create_dir(&outside).unwrap();
    std::os::unix::fs::chown(&outside, Some(ids().base), None).unwrap();
    rustix::fs::symlinkat(&outside, &root, "proc").unwrap();
    rustix::fs::symlinkat(format!("../../../..{}", outside.display()), &root, ".branchbox").unwrap();
    // What the links name does not exist inside, so the setup has no place to mount on, and says so.
    let error = Room::with(vec![(root, "/".into()), (usr(), "/usr".into())]).err().unwrap();
    assert!(matches!(error, JailError::Setup { step: Step::Proc, .. }), "{error:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    std::fs::remove_dir(&outside).unwrap();
}

fn killed() {
    let room = Room::new();
    let sleeper = room.ask("sleep 1000 >/dev/null 2>&1 & echo $!");
    assert!(sleeper.parse::<u32>().is_ok(), "{sleeper}");
    room.jail.kill_and_reap();
    assert!(room.jail.has_ended());
    assert!(!std::path::Path::new(&format!("/proc/{}", room.jail.pid)).exists());
}

fn adopted() {
    let room = Room::new();
    let again = branchbox_jail::spawn::Jail::adopt(room.jail.pid).unwrap();
    assert!(!again.has_ended());
    room.jail.kill_and_reap();
    assert!(again.has_ended());
    assert!(branchbox_jail::spawn::Jail::adopt(room.jail.pid).is_err());
}
