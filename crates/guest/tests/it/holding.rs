//! Holding the table for a capture, and taking a saved one over.

use crate::Test;
use crate::harness::{Peer, Sandbox, argv, bash, config};
use branchbox_model::ExecId;
use branchbox_protocol::guest::{
    Call, Chunk, ExecInfo, ExecState, FileOp, FileReply, GuestError, GuestState, Reply, Role, SavedExec, Stdin, Stream,
};
use branchbox_protocol::{decode, encode_attached, memory_file, read_memory_file};
use rustix::fd::OwnedFd;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("holding::a_held_table_stands_still", a_held_table_stands_still),
    ("holding::time_stands_still_with_it", time_stands_still_with_it),
    ("holding::a_hold_ends_with_its_connection", a_hold_ends_with_its_connection),
    ("holding::a_saved_table_is_taken_over", a_saved_table_is_taken_over),
    ("holding::a_senseless_table_is_refused", a_senseless_table_is_refused),
    ("holding::building_and_serving_are_apart", building_and_serving_are_apart),
];

fn hold(keeper: &mut Peer) -> GuestState {
    let (reply, fds) = keeper.exchange(Call::Hold, Vec::new());
    assert!(matches!(reply, Ok(Reply::Attached)), "{reply:?}");
    decode(&read_memory_file(&fds[0]).unwrap()).unwrap()
}

fn both() -> (Sandbox, Peer, Peer) {
    let (sandbox, node) = Sandbox::start();
    let mut keeper = sandbox.connect();
    keeper.hello(Role::Keeper).unwrap();
    (sandbox, node, keeper)
}

fn a_held_table_stands_still() {
    let (_sandbox, mut node, mut keeper) = both();
    let mut spec = bash("echo one; read line; echo \"two $line\"; sleep 0.05; exit 5");
    spec.stdin = Stdin::Pipe;
    let exec = node.spawn(spec);
    let (_, cursor, ..) = node.output(exec, 0, true);
    let state = hold(&mut keeper);
    let saved = &state.execs[0];
    assert_eq!((state.next_exec, saved.info.exec, saved.info.state), (2, exec, ExecState::Running));
    assert_eq!(saved.chunks, [Chunk { stream: Stream::Stdout, offset: 0, bytes: b"one\n".to_vec() }]);
    assert!(
        saved.stdin_fd.is_some()
            && saved.stdout_fd.is_some()
            && saved.stderr_fd.is_some()
            && saved.wait_status.is_none()
    );
    let id = node.send(Call::Input { exec, offset: 0, bytes: b"x\n".to_vec(), eof: false });
    std::thread::sleep(Duration::from_millis(200));
    assert!(matches!(keeper.call(Call::Hold), Err(GuestError::BadCall(_))), "already held");
    match keeper.call(Call::Status { exec, wait_ms: 0 }) {
        Ok(Reply::Exec(info)) => assert_eq!((info.stdin_offset, info.output_bytes), (0, cursor), "nothing has moved"),
        other => panic!("{other:?}"),
    }
    keeper.done(Call::Resume);
    assert_eq!(node.receive().unwrap().0.id, id);
    let ran = node.read_all(exec, true);
    assert_eq!((ran.out(), ran.info.state), ("one\ntwo x", ExecState::Exited(5)));
    let state = hold(&mut keeper);
    assert_eq!((state.execs[0].info.state, state.execs[0].stdout_fd), (ExecState::Exited(5), None));
}

fn time_stands_still_with_it() {
    let (_sandbox, mut node, mut keeper) = both();
    let mut spec = argv(&["sleep", "1000"]);
    spec.timeout_ms = Some(400);
    let began = Instant::now();
    let exec = node.spawn(spec);
    let state = hold(&mut keeper);
    assert!(state.execs[0].timeout_left_ms.is_some_and(|left| left > 100 && left <= 400));
    std::thread::sleep(Duration::from_millis(700));
    keeper.done(Call::Resume);
    assert_eq!(node.status(exec, 0).state, ExecState::Running);
    assert_eq!(node.status(exec, 5000).state, ExecState::TimedOut);
    assert!(began.elapsed() > Duration::from_millis(1050), "{:?}", began.elapsed());
}

fn a_hold_ends_with_its_connection() {
    let (_sandbox, mut node, mut keeper) = both();
    let exec = node.spawn(bash("sleep 0.1; echo late"));
    hold(&mut keeper);
    drop(keeper);
    let ran = node.read_all(exec, true);
    assert_eq!((ran.out(), ran.info.state), ("late", ExecState::Exited(0)));
}

fn info(exec: u64, state: ExecState, pid: i32) -> ExecInfo {
    ExecInfo {
        exec: ExecId(exec),
        state,
        pid,
        display: "d".into(),
        cwd: "/".into(),
        user: (1000, 1000),
        tag: "t".into(),
        started_ms: 1,
        ended_ms: (state != ExecState::Running).then_some(exec),
        timeout_ms: None,
        duration_ms: 5000,
        pty: None,
        stdin_open: false,
        stdin_offset: 3,
        output_bytes: 10,
        first_offset: 6,
        oom_kills: 0,
    }
}

fn saved(info: ExecInfo) -> SavedExec {
    SavedExec {
        info,
        timeout_left_ms: None,
        stdin_fd: None,
        stdout_fd: None,
        stderr_fd: None,
        stdin_pending: vec![],
        stdin_eof: true,
        chunks: vec![Chunk { stream: Stream::Stderr, offset: 6, bytes: b"kept".to_vec() }],
        wait_status: None,
        timed_out: false,
    }
}

fn table(next_exec: u64, execs: Vec<SavedExec>) -> Vec<OwnedFd> {
    vec![memory_file(&encode_attached(&GuestState { next_exec, last_pid: 0, execs }).unwrap()).unwrap()]
}

fn a_saved_table_is_taken_over() {
    let (sandbox, mut keeper) = Sandbox::building(true);
    let note = std::fs::read_to_string(format!("/proc/{}/root/tmp/saved", sandbox.pid())).unwrap();
    let numbers: Vec<i32> = note.split(' ').map(|number| number.parse().unwrap()).collect();
    let mut running = saved(info(4, ExecState::Running, numbers[0]));
    (running.stdin_fd, running.stdout_fd, running.stderr_fd) = (Some(90), Some(91), Some(92));
    (running.stdin_pending, running.stdin_eof) = (b"abc".to_vec(), false);
    let fds = vec![(90, numbers[1]), (91, numbers[2]), (92, numbers[3])];
    let ended = [saved(info(2, ExecState::Exited(3), 8)), saved(info(3, ExecState::TimedOut, 9))];
    let execs = ended.into_iter().chain([running]).collect();
    assert!(matches!(keeper.exchange(Call::Import { fds }, table(9, execs)).0, Ok(Reply::Done)));
    keeper.done(Call::Seal(config()));
    let mut node = sandbox.connect();
    node.hello(Role::Node).unwrap();
    assert_eq!(node.status(ExecId(2), 0).state, ExecState::Exited(3));
    assert_eq!(node.status(ExecId(3), 0).state, ExecState::TimedOut);
    assert_eq!(node.status(ExecId(2), 0).duration_ms, 5000);
    let exec = ExecId(4);
    assert!(matches!(
        node.call(Call::Input { exec, offset: 3, bytes: b"def".to_vec(), eof: true }),
        Ok(Reply::Input(6))
    ));
    let ran = node.read_all(exec, true);
    assert_eq!((ran.dropped, ran.out(), ran.err()), (6, "abcdef", "keptover\n"));
    assert_eq!((ran.info.state, ran.info.exec), (ExecState::Exited(7), exec));
    assert_eq!(node.spawn(argv(&["true"])), ExecId(9));
}

fn a_senseless_table_is_refused() {
    let (_sandbox, mut keeper) = Sandbox::building(false);
    let mut gap = saved(info(1, ExecState::Exited(0), 5));
    gap.chunks[0].offset = 5;
    let mut no_fd = saved(info(1, ExecState::Running, 5));
    no_fd.stdout_fd = Some(9);
    let cases = [
        (9, vec![gap]),
        (9, vec![no_fd]),
        (1, vec![saved(info(1, ExecState::Exited(0), 5))]),
        (9, vec![saved(info(1, ExecState::Running, 0))]),
        (9_999, (0..600).map(|n| saved(info(n, ExecState::Exited(0), 5))).collect()),
    ];
    for (next, execs) in cases {
        let (reply, _) = keeper.exchange(Call::Import { fds: vec![] }, table(next, execs));
        assert!(matches!(reply, Err(GuestError::Rebuild(_))), "{reply:?}");
    }
    let garbage = vec![memory_file(&[0xff; 1000]).unwrap()];
    assert!(matches!(keeper.exchange(Call::Import { fds: vec![] }, garbage).0, Err(GuestError::Rebuild(_))));
    assert!(matches!(keeper.exchange(Call::Import { fds: vec![] }, vec![]).0, Err(GuestError::BadCall(_))));
}

fn building_and_serving_are_apart() {
    let (sandbox, mut keeper) = Sandbox::building(false);
    let mut node = sandbox.connect();
    node.hello(Role::Node).unwrap();
    assert!(matches!(node.call(Call::Spawn(argv(&["true"]))), Err(GuestError::BadCall(_))));
    assert!(matches!(node.call(Call::Seal(config())), Err(GuestError::BadCall(_))));
    assert!(matches!(keeper.call(Call::Hold), Err(GuestError::BadCall(_))));
    keeper.done(Call::Seal(config()));
    assert!(matches!(keeper.call(Call::Seal(config())), Err(GuestError::BadCall(_))));
    assert!(matches!(keeper.call(Call::Rebuild), Err(GuestError::BadCall(_))));
    let stat = Call::File { user: (1000, 1000), op: FileOp::Stat { path: "/workspace".into() } };
    assert!(matches!(node.call(stat), Ok(Reply::File(FileReply::Entry(Some(_))))));
}
