//! Pausing and waking: nothing runs on after the capture, nothing is lost, and clocks go on.

use crate::state::{Keeper, State, ended};
use branchbox_model::Code;
use branchbox_protocol::guest::ExecState;
use branchbox_protocol::keeper::{Call, CaptureReport, KeeperError, Reply, Start};
use branchbox_snapshot::{Machine, read_machine, write_machine};
use branchbox_testkit::harness::Test;
use std::path::{Path, PathBuf};

pub const TESTS: &[Test] = &[
    ("a_paused_sandbox_goes_on_where_it_was", pauses),
    ("a_pause_that_is_refused_leaves_the_sandbox_running", refused),
    ("clocks_go_on_after_another_boot", another_boot),
];

const RUNTIME: (u32, u32) = (1000, 1000);
/// Two hours: the clock of another boot was so far ahead.
const AHEAD_NS: i64 = 7_200_000_000_000;

/// Counts in memory and in a file, which agree whenever nobody is between the two; looks at the clocks.
const COUNTER: &str = r#"exec python3 -c '
import time
n, last = 0, (0, 0)
while True:
    now = (time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
    assert now[0] >= last[0] and now[1] >= last[1], (last, now)
    last = now
    with open("count") as file:
        assert int(file.read() or 0) == n, n
    n += 1
    with open("count", "r+") as file:
        file.write(str(n))
        file.flush()
    if n % 50 == 0:
        time.sleep(0.001)
'"#;

fn pause(keeper: &mut Keeper, image: &Path) -> Result<CaptureReport, KeeperError> {
    match keeper.call(Call::Pause { image: image.to_path_buf() })? {
        Reply::Paused { report, usage } => {
            assert!(usage.cpu_us > 0);
            Ok(report)
        }
        other => panic!("{other:?}"),
    }
}

fn image_of(state: &State) -> PathBuf {
    state.config.sandbox_dir.join("paused")
}

fn count(state: &State) -> u64 {
    let text = std::fs::read_to_string(state.config.root.upper.join("root/up/workspace/count")).unwrap();
    text.trim().parse().unwrap()
}

/// Counting goes on: the program has not failed one of its assertions.
fn assert_counts(state: &State, above: u64) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while count(state) <= above + 200 {
        assert!(std::time::Instant::now() < deadline, "it does not count on: {}\n{}", count(state), state.log());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn pauses() {
    let state = &mut State::new();
    let (mut child, mut keeper, running) = state.running();
    let mut guest = state.guest();
    guest.run("echo 0 > count", RUNTIME);
    let counter = guest.spawn(COUNTER, RUNTIME);
    assert_counts(state, 0);
    let image = image_of(state);
    let mut guest_pid = running.guest_pid;
    for round in 0..5 {
        let report = pause(&mut keeper, &image).unwrap();
        assert!(report.processes >= 1 && report.memory_bytes > 0 && report.total_us >= report.pause_us, "{report:?}");
        assert!(ended(&mut child).success());
        state.assert_gone(guest_pid);
        let at = count(state);
        state.config.start = Start::Restore { image: image.clone() };
        let (next_child, next_keeper, next) = state.running();
        (child, keeper, guest_pid) = (next_child, next_keeper, next.guest_pid);
        assert_counts(state, at);
        assert_eq!(state.guest().state(counter), ExecState::Running, "round {round}");
    }
    assert!(!image.with_extension("part").exists());
    keeper.call(Call::Shutdown).unwrap();
    assert!(ended(&mut child).success());
}

fn refused() {
    let state = &State::new();
    let (mut child, mut keeper, _) = state.running();
    let mut guest = state.guest();
    let image = image_of(state);
    let error = pause(&mut keeper, Path::new("/nonexistent/image")).unwrap_err();
    assert!(error.message.contains("/nonexistent"), "{error}");
    let traced = "exec python3 -c 'import ctypes, os, signal, time
c = ctypes.CDLL(None)
child = os.fork()
if child == 0:
    c.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(1000)
os.waitpid(child, os.WUNTRACED); open(\"traced\", \"w\"); time.sleep(1000)'";
    let holder = guest.spawn(traced, RUNTIME);
    guest.run("until [ -e traced ]; do sleep 0.01; done", RUNTIME);
    let error = pause(&mut keeper, &image).unwrap_err();
    assert_eq!(error.code, Code::CaptureRefused, "{error}");
    assert!(!image.exists() && !image.with_extension("part").exists());
    assert_eq!(guest.state(holder), ExecState::Running);
    assert_eq!(guest.run("echo runs on", RUNTIME), "runs on");
    keeper.call(Call::Shutdown).unwrap();
    assert!(ended(&mut child).success());
}

/// Makes a capture look as if it were of a boot that had lasted longer.
fn move_to_another_boot(image: &Path) -> Machine {
    let mut machine = read_machine(image).unwrap();
    machine.host.boot_id = "another boot".into();
    machine.host.clocks.inside.monotonic_ns += AHEAD_NS;
    machine.host.clocks.inside.boottime_ns += AHEAD_NS;
    write_machine(image, &machine).unwrap();
    machine
}

fn another_boot() {
    let state = &mut State::new();
    let (mut child, mut keeper, _) = state.running();
    let mut guest = state.guest();
    guest.run("echo 0 > count", RUNTIME);
    let counter = guest.spawn(COUNTER, RUNTIME);
    assert_counts(state, 0);
    let image = image_of(state);
    let clock = "python3 -c 'import time; print(time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))'";
    let mut floor = None;
    // The second time the sandbox has clocks of its own already, the third time within one boot.
    for round in 0..3 {
        pause(&mut keeper, &image).unwrap();
        assert!(ended(&mut child).success());
        let at = count(state);
        if round < 2 {
            let machine = move_to_another_boot(&image);
            floor = Some(machine.host.clocks.inside);
        }
        state.config.start = Start::Restore { image: image.clone() };
        let (next_child, next_keeper, _) = state.running();
        (child, keeper) = (next_child, next_keeper);
        assert_counts(state, at);
        let mut guest = state.guest();
        assert_eq!(guest.state(counter), ExecState::Running, "round {round}");
        let shown: Vec<i64> = guest.run(clock, RUNTIME).split(' ').map(|word| word.parse().unwrap()).collect();
        let floor = floor.unwrap();
        for (shown, floor) in [(shown[0], floor.monotonic_ns), (shown[1], floor.boottime_ns)] {
            assert!(shown > floor && shown < floor + AHEAD_NS / 2, "round {round}: {shown} after {floor}");
        }
        let wall = guest.run("date +%s", RUNTIME).parse::<i64>().unwrap();
        let host = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
        assert!((wall - host).abs() <= 1, "the wall clock is the host's: {wall} {host}");
    }
    keeper.call(Call::Shutdown).unwrap();
    assert!(ended(&mut child).success());
}
