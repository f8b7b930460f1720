//! Commands: what they see, what they leave, how their streams behave.

use crate::Test;
use crate::harness::{Sandbox, argv, bash};
use crate::inside::SUDO;
use branchbox_protocol::guest::{Call, ExecState, GuestError, OUTPUT_KEPT_BYTES, RUNNING_MAX, Reply, SpawnSpec, Stdin};
use std::time::Instant;

pub const TESTS: &[Test] = &[
    ("commands::a_command_sees_its_environment", a_command_sees_its_environment),
    ("commands::a_program_that_cannot_run_ends_as_in_a_shell", a_program_that_cannot_run_ends_as_in_a_shell),
    ("commands::signals_masks_and_limits_are_a_fresh_process_s", signals_masks_and_limits_are_a_fresh_process_s),
    ("commands::input_arrives_whole", input_arrives_whole),
    ("commands::a_stdio_server_is_streamed_both_ways", a_stdio_server_is_streamed_both_ways),
    ("commands::a_late_reader_gets_what_is_kept", a_late_reader_gets_what_is_kept),
    ("commands::an_attached_reader_loses_nothing", an_attached_reader_loses_nothing),
    ("commands::a_reader_late_by_its_first_call_loses_nothing", a_reader_late_by_its_first_call_loses_nothing),
    ("commands::a_large_specification_travels", a_large_specification_travels),
    ("commands::too_many_commands_are_refused", too_many_commands_are_refused),
    ("commands::sudo_becomes_root_inside", sudo_becomes_root_inside),
    ("commands::a_command_is_cheap", a_command_is_cheap),
];

fn a_command_sees_its_environment() {
    let (_sandbox, mut node) = Sandbox::start();
    let script = "id -u; id -G; pwd; echo $HOME $USER $LANG $FROM_SANDBOX $BRANCHBOX_GENERATION $MINE; echo ${PATH%%:*}; \
                  cat /run/branchbox/generation; stat -c %U . ; cat /proc/self/oom_score_adj; umask; ls /proc/$$/fd | tr '\\n' ' '";
    let mut spec = bash(script);
    spec.env = vec![("MINE".into(), "m".into())];
    let ran = node.run(spec);
    let lines: Vec<&str> = ran.out().lines().collect();
    assert_eq!(ran.info.state, ExecState::Exited(0), "{}", ran.err());
    assert_eq!(lines[..4], ["1000", "1000 2345", "/workspace", "/workspace runtime C.UTF-8 yes g1 m"]);
    assert_eq!(lines[4..9], ["/workspace/.local/bin", "g1", "runtime", "500", "0022"]);
    assert_eq!(lines[9], "0 1 2", "nothing else is open");
    let mut spec = bash("id -u; echo $HOME; [ -z \"$FROM_SANDBOX\" ] && echo bare; pwd");
    (spec.user, spec.env_clear, spec.cwd) = ((0, 0), true, "/".into());
    assert_eq!(node.run(spec).out().lines().collect::<Vec<_>>(), ["0", "", "bare", "/"]);
}

fn a_program_that_cannot_run_ends_as_in_a_shell() {
    let (_sandbox, mut node) = Sandbox::start();
    node.run(bash(
        "echo 'echo hi' > plain; echo garbage > bad; chmod +x bad; printf '#!/no/such\\n' > orphan; chmod +x orphan",
    ));
    let cases: &[(&[&str], &str, i32, &str)] = &[
        (&["no-such-program"], "/", 127, "no-such-program: command not found\n"),
        (&["./none"], "/", 127, "./none: No such file or directory\n"),
        (&["/tmp"], "/", 126, "/tmp: Is a directory\n"),
        (&["/workspace/plain"], "/", 126, "/workspace/plain: Permission denied\n"),
        (&["./bad"], "/workspace", 126, "./bad: cannot execute binary file: Exec format error\n"),
        (&["./orphan"], "/workspace", 127, "./orphan: cannot execute: required file not found\n"),
        (&["true"], "/not/there", 1, "cannot change directory to /not/there: No such file or directory\n"),
        (&["true"], "/root", 1, "cannot change directory to /root: Permission denied\n"),
    ];
    for (args, cwd, code, message) in cases {
        let mut spec = argv(args);
        spec.cwd = (*cwd).into();
        let ran = node.run(spec);
        assert_eq!((ran.info.state, ran.err()), (ExecState::Exited(*code), *message), "{args:?} in {cwd}");
    }
    for wrong in [argv(&[]), argv(&[""]), argv(&["a\0b"])] {
        assert!(matches!(node.call(Call::Spawn(wrong)), Err(GuestError::BadCall(_))));
    }
}

fn signals_masks_and_limits_are_a_fresh_process_s() {
    let (_sandbox, mut node) = Sandbox::start();
    let ran = node.run(argv(&["cat", "/proc/self/status"]));
    let wanted = |fact: &Vec<&str>| ["SigBlk:", "SigIgn:", "SigCgt:", "NSpid:", "NSsid:"].contains(&fact[0]);
    let facts: Vec<Vec<&str>> =
        ran.out().lines().map(|line| line.split_whitespace().collect()).filter(wanted).collect();
    for fact in &facts {
        match fact[0] {
            "NSpid:" | "NSsid:" => {
                assert_eq!(facts.iter().find(|f| f[0] == "NSpid:").unwrap()[1], fact[1], "leads its session")
            }
            _ => assert_eq!(fact[1], "0000000000000000", "{fact:?}"),
        }
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    assert_eq!(node.run(bash("ulimit -n")).out(), limit.to_string());
}

fn input_arrives_whole() {
    let (_sandbox, mut node) = Sandbox::start();
    let bytes: Vec<u8> = (0..900_000u32).flat_map(u32::to_le_bytes).take(1_000_000).collect();
    let mut spec = argv(&["cat"]);
    spec.stdin = Stdin::Bytes(bytes.clone());
    let ran = node.run(spec);
    assert!(ran.stdout == bytes, "{} bytes of {}", ran.stdout.len(), bytes.len());
    assert_eq!(ran.info.stdin_offset, 1_000_000);
    let mut spec = argv(&["true"]);
    spec.stdin = Stdin::Bytes(bytes);
    assert_eq!(node.run(spec).info.state, ExecState::Exited(0), "input nobody reads is no obstacle");
}

fn a_stdio_server_is_streamed_both_ways() {
    let (_sandbox, mut node) = Sandbox::start();
    let mut spec = bash("while read line; do echo \"got $line\"; done; echo bye >&2; exit 3");
    spec.stdin = Stdin::Pipe;
    let exec = node.spawn(spec);
    assert!(node.status(exec, 0).stdin_open);
    let (mut offset, mut cursor) = (0, 0);
    for n in 0..50 {
        let line = format!("line {n}\n").into_bytes();
        for _ in 0..2 {
            // The second time it is a duplicate.
            let reply = node.call(Call::Input { exec, offset, bytes: line.clone(), eof: false });
            assert!(matches!(reply, Ok(Reply::Input(accepted)) if accepted == offset + line.len() as u64), "{reply:?}");
        }
        offset += line.len() as u64;
        let (chunks, next, _, _) = node.output(exec, cursor, true);
        cursor = next;
        assert_eq!(chunks[0].bytes, format!("got line {n}\n").into_bytes());
    }
    assert!(matches!(node.call(Call::Input { exec, offset, bytes: vec![], eof: true }), Ok(Reply::Input(_))));
    let ran = node.read_all(exec, true);
    assert_eq!((ran.err(), ran.info.state, ran.info.stdin_open), ("bye\n", ExecState::Exited(3), false));
    assert!(matches!(node.call(Call::Input { exec, offset, bytes: vec![1], eof: false }), Err(GuestError::BadCall(_))));
}

fn a_late_reader_gets_what_is_kept() {
    let (_sandbox, mut node) = Sandbox::start();
    let exec = node.spawn(bash("head -c 100000000 /dev/zero; printf the-end"));
    assert_eq!(node.status(exec, 30_000).state, ExecState::Exited(0));
    let ran = node.read_all(exec, false);
    assert_eq!(ran.info.output_bytes, 100_000_007);
    assert!(
        ran.stdout.len() <= OUTPUT_KEPT_BYTES && ran.stdout.len() > OUTPUT_KEPT_BYTES * 9 / 10,
        "{}",
        ran.stdout.len()
    );
    assert_eq!(ran.dropped, ran.info.output_bytes - ran.stdout.len() as u64);
    assert!(ran.stdout.ends_with(b"\0the-end"));
}

fn an_attached_reader_loses_nothing() {
    let (_sandbox, mut node) = Sandbox::start();
    let began = Instant::now();
    let exec = node.spawn(bash("for i in $(seq 1 20); do head -c 1000000 /dev/zero; echo -n x >&2; done"));
    let (_, cursor, ..) = node.output(exec, 0, true);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let info = node.status(exec, 0);
    assert_eq!((info.state, info.first_offset), (ExecState::Running, 0), "it waits for its reader");
    assert!(info.output_bytes <= cursor + 2 * OUTPUT_KEPT_BYTES as u64, "{}", info.output_bytes);
    let ran = node.read_all(exec, true);
    assert_eq!((ran.stdout.len(), ran.stderr.len(), ran.dropped), (20_000_000, 20, 0));
    println!("    20 MB through a reader: {} ms", began.elapsed().as_millis());
}

fn a_reader_late_by_its_first_call_loses_nothing() {
    let (_sandbox, mut node) = Sandbox::start();
    let exec = node.spawn(SpawnSpec { attached: true, ..bash("head -c 20000000 /dev/zero") });
    std::thread::sleep(std::time::Duration::from_millis(300));
    let info = node.status(exec, 0);
    assert_eq!((info.state, info.first_offset), (ExecState::Running, 0), "it waits for its reader");
    let ran = node.read_all(exec, true);
    assert_eq!((ran.stdout.len(), ran.dropped), (20_000_000, 0));
}

fn a_large_specification_travels() {
    let (_sandbox, mut node) = Sandbox::start();
    let mut args = vec!["bash".to_owned(), "-c".to_owned(), "echo $# ${#1}".to_owned(), "name".to_owned()];
    args.extend((0..60).map(|_| "y".repeat(16_000)));
    let mut spec = argv(&[]);
    spec.argv = args;
    assert_eq!(node.run(spec).out(), "60 16000");
    let mut spec = argv(&["true"]);
    spec.argv.push("z".repeat(200_000));
    let ran = node.run(spec);
    assert_eq!((ran.info.state, ran.err()), (ExecState::Exited(126), "/usr/bin/true: Argument list too long\n"));
}

fn too_many_commands_are_refused() {
    let (sandbox, mut node) = Sandbox::start();
    let execs: Vec<_> = (0..RUNNING_MAX).map(|_| node.spawn(argv(&["sleep", "1000"]))).collect();
    assert!(matches!(node.call(Call::Spawn(argv(&["true"]))), Err(GuestError::TooManyExecs)));
    match node.call(Call::List) {
        Ok(Reply::List(list)) => assert_eq!(list.len(), RUNNING_MAX),
        other => panic!("{other:?}"),
    }
    for exec in execs {
        assert!(node.call(Call::Signal { exec, signal: 9 }).is_ok());
    }
    crate::harness::wait_until("all are gone", || sandbox.groups().is_empty());
    assert_eq!(node.run(argv(&["echo", "again"])).out(), "again");
}

fn sudo_becomes_root_inside() {
    let (_sandbox, mut node) = Sandbox::start();
    let ran = node.run(bash(&format!("{SUDO} -n -E true && {SUDO} -n bash -c 'id -u; id -G; echo $HOME $SUDO_USER'; {SUDO} -u runtime id -u; {SUDO} A=5 printenv A; {SUDO} -E printenv FROM_SANDBOX; {SUDO} nope; echo $?")));
    assert_eq!(
        ran.out().lines().collect::<Vec<_>>(),
        ["0", "0", "/root runtime", "1000", "5", "yes", "1"],
        "{}",
        ran.err()
    );
    assert_eq!(ran.err(), "sudo: nope: command not found\n");
    // What the seal gave up is out of reach: the bounding set has no CAP_SYS_ADMIN (bit 21).
    let bounds = node.run(bash(&format!("{SUDO} grep CapBnd /proc/self/status")));
    let set = u64::from_str_radix(bounds.out().split_whitespace().last().unwrap(), 16).unwrap();
    assert_eq!((set >> 21) & 1, 0, "{set:x}");
}

fn a_command_is_cheap() {
    let (sandbox, mut node) = Sandbox::start();
    let memory = || {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", sandbox.pid())).unwrap();
        let of = |key: &str| -> u64 {
            text.lines().find(|l| l.starts_with(key)).unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        (of("Private_Dirty:"), of("Anonymous:"))
    };
    let before = memory();
    node.run(argv(&["true"]));
    let began = Instant::now();
    for _ in 0..200 {
        node.run(argv(&["/bin/true"]));
    }
    println!(
        "    one /bin/true: {} us; memory (private dirty, anonymous) {before:?} KiB idle, {:?} KiB after",
        began.elapsed().as_micros() / 200,
        memory()
    );
    assert!(memory().0 < before.0 + 512, "nothing piles up");
}
