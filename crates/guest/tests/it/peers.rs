//! Peers: who is served, and what a bad one can do.

use crate::Test;
use crate::harness::{Sandbox, argv, bash};
use branchbox_model::ExecId;
use branchbox_protocol::guest::{Call, ExecState, GuestError, Reply, Role};
use branchbox_protocol::send_packet;
use std::process::Command;
use std::time::{Duration, Instant};

pub const TESTS: &[Test] = &[
    ("peers::nobody_from_inside_is_served", nobody_from_inside_is_served),
    ("peers::nonsense_ends_a_connection_only", nonsense_ends_a_connection_only),
    ("peers::a_peer_that_does_not_read_harms_nobody", a_peer_that_does_not_read_harms_nobody),
    ("peers::waiting_calls_are_answered_in_time", waiting_calls_are_answered_in_time),
    ("peers::polite_signals_do_not_end_it", polite_signals_do_not_end_it),
];

fn nobody_from_inside_is_served() {
    let (sandbox, mut node) = Sandbox::start();
    let mut command = Command::new("nsenter");
    command.args(["--pid", "-t", &sandbox.pid().to_string()]).arg(std::env::current_exe().unwrap());
    assert!(command.arg("hello-from-inside").arg(&sandbox.socket).status().unwrap().success());
    assert_eq!(node.run(argv(&["echo", "fine"])).out(), "fine");
}

fn nonsense_ends_a_connection_only() {
    let (sandbox, mut node) = Sandbox::start();
    for bytes in [&[0xff; 100][..], &[1], &[1, 0, 1, 1, 7], &[0; 100_000]] {
        let mut peer = sandbox.connect();
        send_packet(&peer.socket, bytes, &[]).unwrap();
        assert!(peer.receive().is_none());
    }
    let mut peer = sandbox.connect();
    assert!(matches!(peer.call(Call::List), Err(GuestError::BadCall(_))), "no hello");
    assert!(matches!(peer.call(Call::Hello { version: 999, role: Role::Node }), Err(GuestError::BadCall(_))));
    assert!(matches!(node.call(Call::Hello { version: 1, role: Role::Keeper }), Err(GuestError::BadCall(_))));
    assert_eq!(node.run(argv(&["echo", "fine"])).out(), "fine");
}

fn a_peer_that_does_not_read_harms_nobody() {
    let (sandbox, mut node) = Sandbox::start();
    let exec = node.spawn(bash("head -c 500000 /dev/zero; sleep 1000"));
    while node.status(exec, 0).output_bytes < 500_000 {}
    let mut deaf = sandbox.connect();
    deaf.hello(Role::Node).unwrap();
    rustix::net::sockopt::set_socket_timeout(
        &deaf.socket,
        rustix::net::sockopt::Timeout::Send,
        Some(Duration::from_millis(200)),
    )
    .unwrap();
    let ask = || Call::Output { exec, cursor: 0, bytes_max: 65536, wait_ms: 0, attached: false };
    let sent = (0..2000).take_while(|_| deaf.send_with(ask(), Vec::new()).is_some()).count();
    assert!(sent < 2000, "the guest stops reading from it");
    assert_eq!(node.run(argv(&["echo", "fine"])).out(), "fine");
    for _ in 0..sent {
        assert!(deaf.receive().is_some(), "every call that was taken is answered");
    }
}

fn waiting_calls_are_answered_in_time() {
    let (_sandbox, mut node) = Sandbox::start();
    let exec = node.spawn(bash("sleep 0.3; echo x; sleep 0.3"));
    let began = Instant::now();
    let output = node.send(Call::Output { exec, cursor: 0, bytes_max: 10, wait_ms: 20_000, attached: true });
    let end = node.send(Call::Status { exec, wait_ms: 20_000 });
    let soon = node.send(Call::Output { exec, cursor: 0, bytes_max: 10, wait_ms: 100, attached: false });
    let order: Vec<(u64, u128)> = (0..3).map(|_| (node.receive().unwrap().0.id, began.elapsed().as_millis())).collect();
    assert_eq!(order.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [soon, output, end]);
    assert!((100..280).contains(&order[0].1) && (280..550).contains(&order[1].1) && order[2].1 >= 580, "{order:?}");
    assert_eq!(node.status(exec, 0).state, ExecState::Exited(0));
    assert!(matches!(node.call(Call::Status { exec: ExecId(77), wait_ms: 20_000 }), Err(GuestError::NoSuchExec(_))));
    assert!(matches!(
        node.call(Call::Output { exec, cursor: 500, bytes_max: 10, wait_ms: 20_000, attached: false }),
        Ok(Reply::Output { next_cursor: 2, .. })
    ));
}

fn polite_signals_do_not_end_it() {
    let (sandbox, mut node) = Sandbox::start();
    for signal in [1, 2, 15] {
        branchbox_sys::spawn::send_signal(sandbox.pid().cast_signed(), signal).unwrap();
        let mut spec = bash(&format!("kill -{signal} 1; echo fine"));
        spec.user = (0, 0);
        assert_eq!(node.run(spec).out(), "fine");
    }
}
