//! The base seccomp filter: what every process of a sandbox lives under, process 1 included.
//!
//! Two aims: that nothing arises which a capture could not represent (programs take the fallback they have for kernels
//! without it), and a smaller kernel to attack. The lines are data in `table.rs`, each with its reason. There is one
//! program for all answers: seccompiler makes one part per error number, and the parts are chained, so that a process has
//! one filter to compare and copy instead of four.
//!
//! Invariants: calls of the 32-bit and x32 tables all fail with `ENOSYS`; `clone3` is never touched, its flags are out of a
//! filter's sight; nothing kills, so a program injected by the engine can never die of it. The filter is installed without
//! `no_new_privs`, or `sudo` inside would not work.
//! Deliberately not here: capabilities (`caps`), and limits on namespaces (`spawn`).

mod table;

pub use table::{Line, TABLE, When};

use branchbox_sys::seccomp::Instruction;
use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;

/// Calls from here up belong to the x32 table.
const X32_BIT: u32 = 0x4000_0000;
const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;
const RETURN_ALLOW: u32 = 0x7fff_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;

/// A filter that could not be made or installed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// The table cannot be compiled.
    #[error("compile the system call filter")]
    Compile(#[source] BackendError),
    /// The kernel refused it.
    #[error("install the system call filter")]
    Install(#[source] std::io::Error),
}

/// Installs the base filter for the calling thread and what it starts.
///
/// # Errors
/// [`FilterError`].
pub fn install() -> Result<(), FilterError> {
    branchbox_sys::seccomp::install(&compile(TABLE)?).map_err(FilterError::Install)
}

/// Compiles a table into one program.
///
/// # Errors
/// [`FilterError::Compile`].
pub fn compile(table: &[Line]) -> Result<Vec<Instruction>, FilterError> {
    let mut parts: BTreeMap<i32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
    for line in table {
        let rules = parts.entry(line.errno).or_default().entry(line.call).or_default();
        rules.extend(rules_of(line.when).map_err(FilterError::Compile)?);
    }
    let mut program = prologue();
    for (errno, rules) in parts {
        let action = SeccompAction::Errno(errno.cast_unsigned());
        let part: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, action, TargetArch::x86_64)
            .and_then(BpfProgram::try_from)
            .map_err(FilterError::Compile)?;
        chain(&mut program, &part);
    }
    program.push(statement(RETURN, RETURN_ALLOW));
    Ok(program)
}

/// Appends a part; where it would allow, the program goes on behind it.
fn chain(program: &mut Vec<Instruction>, part: &BpfProgram) {
    for (at, instruction) in part.iter().enumerate() {
        let left = u32::try_from(part.len() - at - 1).unwrap_or(u32::MAX);
        program.push(if (instruction.code, instruction.k) == (RETURN, RETURN_ALLOW) {
            statement(JUMP, left)
        } else {
            Instruction { code: instruction.code, jt: instruction.jt, jf: instruction.jf, k: instruction.k }
        });
    }
}

/// Other tables of calls are not there at all.
fn prologue() -> Vec<Instruction> {
    let no_such_call = RETURN_ERRNO | libc::ENOSYS.cast_unsigned();
    vec![
        statement(LOAD, OFFSET_ARCH),
        Instruction { code: JUMP_EQUAL, jt: 1, jf: 0, k: AUDIT_ARCH_X86_64 },
        statement(RETURN, no_such_call),
        statement(LOAD, OFFSET_NUMBER),
        Instruction { code: JUMP_GREATER_EQUAL, jt: 0, jf: 1, k: X32_BIT },
        statement(RETURN, no_such_call),
    ]
}

fn statement(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

/// The alternatives under which a line applies; none means always.
fn rules_of(when: When) -> Result<Vec<SeccompRule>, BackendError> {
    let condition = |argument, operator, value: u32| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value.into())
    };
    match when {
        When::Always => Ok(Vec::new()),
        When::Equals(argument, value) => {
            Ok(vec![SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, value)?])?])
        }
        When::NoneOf(argument, values) => {
            let all: Result<Vec<_>, _> = values.iter().map(|v| condition(argument, SeccompCmpOp::Ne, *v)).collect();
            Ok(vec![SeccompRule::new(all?)?])
        }
        When::AnyBit(argument, bits) => (0..u32::BITS)
            .map(|bit| 1u32 << bit)
            .filter(|bit| bits & bit != 0)
            .map(|bit| SeccompRule::new(vec![condition(argument, SeccompCmpOp::MaskedEq(bit.into()), bit)?]))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_reason_and_an_answer() {
        for line in TABLE {
            assert!(line.reason.len() > 5, "{line:?}");
            assert!([libc::ENOSYS, libc::EPERM, libc::EINVAL, libc::EAFNOSUPPORT].contains(&line.errno), "{line:?}");
        }
        assert!(TABLE.iter().all(|line| line.call != libc::SYS_clone3));
    }

    #[test]
    fn an_unconditional_line_is_alone_for_its_call() {
        for (at, line) in TABLE.iter().enumerate() {
            let others =
                TABLE[at + 1..].iter().any(|other| other.call == line.call && matches!(line.when, When::Always));
            assert!(!others, "{line:?}");
        }
    }

    /// What the kernel would do, for programs of the few instructions used here.
    fn run(program: &[Instruction], number: u32, arch: u32, args: [u64; 6]) -> u32 {
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let i = program[at];
            at += 1;
            match i.code {
                LOAD => {
                    accumulator = match i.k {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCH => arch,
                        k => {
                            let value = args[((k - 16) / 8) as usize];
                            if k % 8 == 0 { value as u32 } else { (value >> 32) as u32 }
                        }
                    }
                }
                JUMP => at += i.k as usize,
                JUMP_EQUAL => at += usize::from(if accumulator == i.k { i.jt } else { i.jf }),
                JUMP_GREATER_EQUAL => at += usize::from(if accumulator >= i.k { i.jt } else { i.jf }),
                0x54 => accumulator &= i.k,
                RETURN => return i.k,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    #[test]
    fn the_chained_program_answers_as_the_table_says() {
        let program = compile(TABLE).expect("compile");
        assert!(program.len() < 4096);
        let ask = |call: libc::c_long, args: [u64; 6]| run(&program, call as u32, AUDIT_ARCH_X86_64, args);
        let error = |errno: i32| RETURN_ERRNO | errno as u32;
        assert_eq!(ask(libc::SYS_read, [0; 6]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_clone3, [1; 6]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_io_uring_setup, [0; 6]), error(libc::ENOSYS));
        assert_eq!(ask(libc::SYS_mount, [0; 6]), error(libc::EPERM));
        assert_eq!(ask(libc::SYS_unshare, [libc::CLONE_FILES as u64, 0, 0, 0, 0, 0]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_unshare, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), error(libc::EPERM));
        assert_eq!(ask(libc::SYS_unshare, [0x80, 0, 0, 0, 0, 0]), error(libc::EPERM));
        assert_eq!(ask(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_socket, [16, 0, 0, 0, 0, 0]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_socket, [38, 0, 0, 0, 0, 0]), error(libc::EAFNOSUPPORT));
        assert_eq!(ask(libc::SYS_seccomp, [1, 8, 0, 0, 0, 0]), error(libc::EINVAL));
        assert_eq!(ask(libc::SYS_seccomp, [1, 1, 0, 0, 0, 0]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]), RETURN_ALLOW);
        assert_eq!(ask(libc::SYS_personality, [8, 0, 0, 0, 0, 0]), error(libc::EPERM));
        assert_eq!(run(&program, 5, 0x4000_0003, [0; 6]), error(libc::ENOSYS));
        assert_eq!(run(&program, X32_BIT | 1, AUDIT_ARCH_X86_64, [0; 6]), error(libc::ENOSYS));
    }
}
