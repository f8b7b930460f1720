//! The lives a sandbox can have, each from a keeper's start to the proof that nothing is left.

use crate::state::{Keeper, State, ended};
use branchbox_model::Code;
use branchbox_protocol::guest::ExecState;
use branchbox_protocol::keeper::{Call, Reply};
use branchbox_testkit::harness::Test;
use rustix::process::{Pid, Signal, kill_process};

pub const TESTS: &[Test] = &[
    ("a_sandbox_boots_runs_commands_and_ends_on_request", boots),
    ("the_sandbox_looks_as_promised_inside", inside),
    ("a_killed_keeper_leaves_the_sandbox_running_for_the_next_one", adopted),
    ("the_end_of_process_1_is_the_end_of_the_keeper", guest_killed),
    ("a_signal_ends_the_sandbox", signalled),
    ("a_start_that_fails_is_told_and_leaves_nothing", fails),
    ("a_file_capture_is_taken_while_commands_stand_still", file_capture),
    ("a_captured_sandbox_is_restored_beside_its_source", restored),
    ("a_refused_layer_is_told_and_the_sandbox_runs_on", capture_fails),
    ("an_ephemeral_sandbox_ends_with_its_node", ephemeral),
    ("one_keeper_at_a_time", locked),
    ("nonsense_on_the_socket_closes_that_connection_alone", nonsense),
];

const ROOT: (u32, u32) = (0, 0);
const RUNTIME: (u32, u32) = (1000, 1000);

fn pid(number: u32) -> Pid {
    Pid::from_raw(number.cast_signed()).unwrap()
}

fn boots() {
    let state = &State::new();
    let (mut child, mut keeper, running) = state.running();
    assert!(running.enforced.closed && running.guest_pid > 1 && running.start_us > 0);
    assert_eq!(state.guest().run("echo $((6*7)) $FROM_NODE", RUNTIME), "42 yes");
    let Ok(Reply::Usage(usage)) = keeper.call(Call::Usage) else { panic!("no usage") };
    assert!(usage.cpu_us > 0 && usage.memory_bytes > 0, "{usage:?}");
    let Ok(Reply::Ended(last)) = keeper.call(Call::Shutdown) else { panic!("not ended") };
    assert!(last.cpu_us >= usage.cpu_us);
    state.assert_gone(running.guest_pid);
    assert!(ended(&mut child).success());
}

fn inside() {
    let state = &State::new();
    let (mut child, mut keeper, _) = state.running();
    let mut guest = state.guest();
    assert_eq!(guest.run("id -un; pwd; hostname; echo $HOME", RUNTIME), "runtime\n/workspace\nbox\n/workspace");
    assert_eq!(guest.run("sudo -n id -u", RUNTIME), "0");
    assert_eq!(
        guest.run("touch /workspace/x && stat -c %U /workspace/x /usr/bin/env /root", RUNTIME),
        "runtime\nroot\nroot"
    );
    let kept = branchbox_jail::caps::kept().bits();
    assert_eq!(
        guest.run("grep CapBnd /proc/1/status /proc/self/status | cut -f2 | sort -u", ROOT),
        format!("{kept:016x}")
    );
    assert!(guest.run("unshare -r true; mount -t proc x /mnt", ROOT).contains("not permitted"));
    assert_eq!(guest.run("ls /proc/self/fd | wc -l", ROOT), "4");
    assert_eq!(
        guest
            .run("sudo -n sh -c 'echo kept > /etc/kept; ls /etc/shadow 2>&1 | grep -c .'; cat /etc/kept", RUNTIME)
            .lines()
            .last(),
        Some("kept")
    );
    assert_eq!(guest.run("cat /proc/self/cgroup | grep ^0 | cut -c1-9", ROOT), "0::/work/");
    let generation = guest.run("cat /run/branchbox/generation", RUNTIME);
    assert!(generation.len() == 32, "{generation}");
    keeper.call(Call::Shutdown).unwrap();
    ended(&mut child);
}

fn adopted() {
    let state = &State::new();
    let (mut child, _keeper, first) = state.running();
    let mut guest = state.guest();
    let exec = guest.spawn("echo started; sleep 1000", RUNTIME);
    kill_process(pid(child.id()), Signal::KILL).unwrap();
    child.wait().unwrap();
    assert_eq!(guest.run("echo still here", RUNTIME), "still here");
    let (mut child, mut keeper, second) = state.running();
    assert_eq!(second.guest_pid, first.guest_pid);
    assert_eq!(state.guest().state(exec), ExecState::Running);
    assert_eq!(guest.run("echo and here", RUNTIME), "and here");
    keeper.call(Call::Shutdown).unwrap();
    state.assert_gone(first.guest_pid);
    assert!(ended(&mut child).success());
}

fn guest_killed() {
    let state = &State::new();
    let (mut child, _keeper, running) = state.running();
    state.guest().spawn("sleep 1000", RUNTIME);
    kill_process(Pid::from_raw(running.guest_pid).unwrap(), Signal::KILL).unwrap();
    assert!(ended(&mut child).success());
    state.assert_gone(running.guest_pid);
}

fn signalled() {
    let state = &State::new();
    let (mut child, _keeper, running) = state.running();
    kill_process(pid(child.id()), Signal::TERM).unwrap();
    assert!(ended(&mut child).success());
    state.assert_gone(running.guest_pid);
}

fn fails() {
    let state = &State::new();
    let mut state = state.with_ephemeral();
    state.config.ephemeral = None;
    state.config.root.trees[0].lower = vec!["/nonexistent/lower".into()];
    let mut child = state.start();
    let error = Keeper::connect(&state.keeper_path()).hello().unwrap_err();
    assert_eq!(error.code, Code::StartFailed);
    assert!(error.message.contains("/nonexistent/lower"), "{}", error.message);
    assert_eq!(ended(&mut child).code(), Some(1));
    state.assert_gone(i32::MAX);
}

fn file_capture() {
    let state = &State::new();
    let (mut child, mut keeper, _) = state.running();
    let mut guest = state.guest();
    guest.run("echo saved > file", RUNTIME);
    let ticking = guest.spawn("while :; do date +%N > new; mv new tick; done", RUNTIME);
    let layer = state.pool.layer_path("l1").unwrap();
    let Ok(Reply::Captured(report)) = keeper.call(Call::Capture { image: None, layer: layer.clone() }) else {
        panic!("not captured")
    };
    assert!(report.pause_us > 0 && report.total_us >= report.pause_us && report.memory_bytes == 0, "{report:?}");
    assert_eq!(std::fs::read_to_string(layer.join("root/up/workspace/file")).unwrap(), "saved\n");
    assert_eq!(guest.state(ticking), ExecState::Running);
    assert_eq!(guest.run("until [ -e tick ]; do sleep 0.01; done; a=$(cat tick); sleep 0.2; b=$(cat tick); test \"$a\" != \"$b\" && echo ticks", RUNTIME), "ticks");
    keeper.call(Call::Shutdown).unwrap();
    ended(&mut child);
}

fn restored() {
    let state = &State::new();
    let (mut child, mut keeper, first) = state.running();
    let mut guest = state.guest();
    let generation = "cat /run/branchbox/generation";
    let before = guest.run(&format!("echo saved > file; {generation}"), RUNTIME);
    let (image, layer) = (state.directory.join("image"), state.pool.layer_path("l1").unwrap());
    let Ok(Reply::Captured(_)) = keeper.call(Call::Capture { image: Some(image.clone()), layer }) else {
        panic!("not captured")
    };
    guest.run("echo changed > file", RUNTIME);
    let copy = state.copy(&image, "l1");
    let (mut copy_child, mut copy_keeper, second) = copy.running();
    assert_ne!(second.guest_pid, first.guest_pid);
    assert!(second.enforced.closed);
    let mut copied = copy.guest();
    assert_eq!(copied.run("cat file; id -un", RUNTIME), "saved\nruntime");
    assert_ne!(copied.run(generation, RUNTIME), before);
    assert_eq!(guest.run("cat file", RUNTIME), "changed");
    for (keeper, child) in [(&mut keeper, &mut child), (&mut copy_keeper, &mut copy_child)] {
        keeper.call(Call::Shutdown).unwrap();
        assert!(ended(child).success());
    }
    copy.assert_gone(second.guest_pid);
}

fn capture_fails() {
    let state = &State::new();
    let (mut child, mut keeper, _) = state.running();
    let image = state.directory.join("image");
    let error = keeper.call(Call::Capture { image: None, layer: "/nonexistent/layer".into() }).unwrap_err();
    assert_eq!(error.code, Code::CaptureFailed, "{error}");
    let error =
        keeper.call(Call::Capture { image: Some("/nonexistent/image".into()), layer: image.clone() }).unwrap_err();
    assert!(error.message.contains("/nonexistent/image"), "{error}");
    assert!(!image.exists());
    assert_eq!(state.guest().run("echo runs on", RUNTIME), "runs on");
    keeper.call(Call::Shutdown).unwrap();
    ended(&mut child);
}

fn ephemeral() {
    let state = &State::plain();
    let ephemeral = state.with_ephemeral();
    let (mut child, keeper, running) = ephemeral.running();
    ephemeral.guest().spawn("sleep 1000", RUNTIME);
    drop(keeper);
    assert!(ended(&mut child).success());
    assert!(!state.directory.exists());
    ephemeral.assert_gone(running.guest_pid);
}

fn locked() {
    let state = &State::new();
    let (mut child, mut keeper, running) = state.running();
    let mut second = state.start();
    assert_eq!(ended(&mut second).code(), Some(1));
    let again = Keeper::connect(&state.keeper_path()).hello().unwrap();
    assert_eq!(again.guest_pid, running.guest_pid);
    keeper.call(Call::Shutdown).unwrap();
    assert!(ended(&mut child).success());
}

fn nonsense() {
    let state = &State::new();
    let (mut child, mut keeper, _) = state.running();
    let mut other = Keeper::connect(&state.keeper_path());
    let early = other.call(Call::Usage).unwrap_err();
    assert_eq!(early.code, Code::InternalError);
    branchbox_protocol::send_packet(&other.socket, &[0xff; 64], &[]).unwrap();
    assert!(branchbox_protocol::recv_packet(&other.socket).is_err());
    assert!(matches!(keeper.call(Call::Usage), Ok(Reply::Usage(_))));
    keeper.call(Call::Shutdown).unwrap();
    assert!(ended(&mut child).success());
}
