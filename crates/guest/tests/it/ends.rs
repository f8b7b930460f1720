//! How commands end, and that nothing of them stays.

use crate::Test;
use crate::harness::{Sandbox, argv, bash, wait_until};
use branchbox_model::ExecId;
use branchbox_protocol::guest::{Call, ENDED_KEPT, ExecState, GuestError, Reply};
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("ends::exit_codes_and_signals_are_exact", exit_codes_and_signals_are_exact),
    ("ends::what_a_command_started_dies_with_it", what_a_command_started_dies_with_it),
    ("ends::a_time_limit_ends_it", a_time_limit_ends_it),
    ("ends::a_signal_reaches_every_process", a_signal_reaches_every_process),
    ("ends::no_zombie_is_left", no_zombie_is_left),
    ("ends::many_quick_commands_can_all_be_read", many_quick_commands_can_all_be_read),
    ("ends::old_commands_are_forgotten", old_commands_are_forgotten),
];

fn exit_codes_and_signals_are_exact() {
    let (_sandbox, mut node) = Sandbox::start();
    for code in [0, 1, 2, 127, 255] {
        assert_eq!(node.run(bash(&format!("exit {code}"))).info.state, ExecState::Exited(code));
    }
    for signal in [1, 2, 9, 11, 13, 15, 34, 64] {
        assert_eq!(node.run(bash(&format!("kill -{signal} $$"))).info.state, ExecState::Killed(signal));
    }
}

fn what_a_command_started_dies_with_it() {
    let (sandbox, mut node) = Sandbox::start();
    let began = Instant::now();
    let ran = node.run(bash("nohup sleep 1000 & setsid sleep 1000 & (sleep 1000 &) ; trap '' TERM; echo out; exit 4"));
    assert_eq!((ran.info.state, ran.out()), (ExecState::Exited(4), "out"));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    wait_until("all are reaped", || sandbox.children().is_empty());
    assert!(sandbox.groups().is_empty());
    assert_eq!(node.run(bash("pgrep -c sleep")).out(), "0");
}

fn a_time_limit_ends_it() {
    let (sandbox, mut node) = Sandbox::start();
    let mut spec = bash("trap '' TERM; echo before; sleep 1000 & sleep 1000; echo never");
    spec.timeout_ms = Some(200);
    let ran = node.run(spec);
    assert_eq!((ran.info.state, ran.out()), (ExecState::TimedOut, "before"));
    assert!((200..1500).contains(&ran.info.duration_ms), "{}", ran.info.duration_ms);
    assert!(sandbox.groups().is_empty());
    let mut spec = argv(&["true"]);
    spec.timeout_ms = Some(60_000);
    assert_eq!(node.run(spec).info.state, ExecState::Exited(0));
}

fn a_signal_reaches_every_process() {
    let (_sandbox, mut node) = Sandbox::start();
    let exec = node.spawn(bash("bash -c 'trap \"echo inner; exit\" USR1; echo ready; while :; do sleep 0.01; done' & trap 'wait; echo outer; exit 6' USR1; wait"));
    let (_, cursor, ..) = node.output(exec, 0, true);
    assert_eq!(cursor, 6);
    std::thread::sleep(Duration::from_millis(50));
    assert!(matches!(node.call(Call::Signal { exec, signal: 10 }), Ok(Reply::Exec(_))));
    let ran = node.read_all(exec, true);
    assert!(ran.out().contains("inner") && ran.out().contains("outer"), "{} {}", ran.out(), ran.err());
    for signal in [0, -1, 65] {
        assert!(matches!(node.call(Call::Signal { exec, signal }), Err(GuestError::BadCall(_))));
    }
    assert!(matches!(node.call(Call::Signal { exec: ExecId(999), signal: 9 }), Err(GuestError::NoSuchExec(_))));
}

fn no_zombie_is_left() {
    let (sandbox, mut node) = Sandbox::start();
    // Orphans of a running command are adopted by process 1.
    let exec = node
        .spawn(bash("for i in $(seq 50); do (setsid bash -c 'sleep 0.05' &) ; done; sleep 0.5; echo done; sleep 1000"));
    let (_, cursor, ..) = node.output(exec, 0, true);
    assert_eq!(cursor, 5);
    assert_eq!(sandbox.children().len(), 1, "{:?}", sandbox.children());
    assert!(node.call(Call::Signal { exec, signal: 15 }).is_ok());
    assert_eq!(node.status(exec, 5000).state, ExecState::Killed(15));
    wait_until("all are reaped", || sandbox.children().is_empty());
}

fn many_quick_commands_can_all_be_read() {
    let (_sandbox, mut node) = Sandbox::start();
    let execs: Vec<ExecId> = (0..100).map(|n| node.spawn(argv(&["echo", &n.to_string()]))).collect();
    for (n, exec) in execs.into_iter().enumerate() {
        assert_eq!(node.read_all(exec, true).out(), n.to_string());
    }
}

fn old_commands_are_forgotten() {
    let (_sandbox, mut node) = Sandbox::start();
    let running = node.spawn(argv(&["sleep", "1000"]));
    for _ in 0..ENDED_KEPT * 2 {
        node.run(argv(&["true"]));
    }
    match node.call(Call::List) {
        Ok(Reply::List(list)) => {
            assert_eq!(list.len(), ENDED_KEPT + 1);
            assert_eq!(list[0].exec, running);
            assert!(list[1..].iter().all(|info| info.state == ExecState::Exited(0) && info.ended_ms.is_some()));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(node.call(Call::Status { exec: ExecId(2), wait_ms: 0 }), Err(GuestError::NoSuchExec(ExecId(2)))));
}
