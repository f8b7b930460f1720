//! Starting a command from its specification.

use super::command::{Command, Given, Phase, wall_ms};
use super::group::Group;
use super::input::Input;
use super::output::Output;
use super::terminal::Terminal;
use crate::programs::{self, Ending};
use crate::{environment, text, users};
use branchbox_model::ExecId;
use branchbox_protocol::guest::{GuestConfig, GuestError, PtySize, STDIN_PENDING_BYTES_MAX, SpawnSpec, Stdin, Stream};
use branchbox_sys::spawn::{Plan, SpawnError, spawn};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

/// Arguments of a command.
const ARGV_MAX: usize = 4096;
/// Variables of a command.
const ENV_MAX: usize = 4096;
/// Longest tag.
const TAG_BYTES_MAX: usize = 4096;
/// Longest working directory.
const CWD_BYTES_MAX: usize = 4096;
/// Kept of the command as the caller wrote it.
const DISPLAY_BYTES_MAX: usize = 4096;
/// Commands are killed for memory before the guest is.
const OOM_SCORE_ADJ: &std::ffi::CStr = c"500";
/// Ids that exist inside.
const ID_MAX: u32 = 65_535;

/// What every start needs of the guest.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// Parent of the commands' cgroups.
    pub cgroup: BorrowedFd<'a>,
    /// What the sandbox's commands share.
    pub config: &'a GuestConfig,
    /// Limits of open files that commands get: those the guest was started with.
    pub open_files: (u64, u64),
    /// Bound on a command's kept output.
    pub output_cost_max: usize,
}

/// Starts it. A program that cannot be run is a command that has ended, not an error.
///
/// # Errors
/// [`GuestError::BadCall`]: the specification cannot be accepted, or the guest has no pipe or cgroup for it.
pub fn start(exec: ExecId, mut spec: SpawnSpec, around: &Surroundings<'_>) -> Result<Command, GuestError> {
    check(&spec)?;
    let missing = |error: io::Error| GuestError::BadCall(format!("cannot prepare the command: {error}"));
    let group = Group::create(around.cgroup, exec).map_err(missing)?;
    let stdin = std::mem::replace(&mut spec.stdin, Stdin::Null);
    let made = match spec.pty {
        Some(size) => Pipes::of_terminal(size, spec.user.0),
        None => Pipes::make(&stdin),
    };
    let pipes = match made {
        Ok(pipes) => pipes,
        Err(error) => {
            let _ = group.remove(around.cgroup);
            return Err(missing(error));
        }
    };
    let started = run(&spec, &group, &pipes, around);
    let (accepted, pending, eof) = match stdin {
        // Somebody may type at a terminal whenever he likes.
        Stdin::Null if spec.pty.is_some() => (0, Vec::new(), false),
        Stdin::Null => (0, Vec::new(), true),
        Stdin::Bytes(bytes) => (bytes.len() as u64, bytes, true),
        Stdin::Pipe => (0, Vec::new(), false),
    };
    let spec_has_terminal = spec.pty.is_some();
    let mut command = record(exec, spec, group);
    let input = Input::new(pipes.input, pending, accepted, eof);
    command.input = if spec_has_terminal { input.on_terminal() } else { input };
    match started {
        Ok(pid) => {
            command.pid = pid;
            (command.stdout, command.stderr) = (Some(pipes.stdout), pipes.stderr);
            command.slave = spec_has_terminal.then_some(pipes.stdin);
            command.input.write();
        }
        Err((pid, ending)) => {
            command.pid = pid;
            command.output.push(Stream::Stderr, ending.message.into_bytes(), around.output_cost_max, None);
            command.first_process_ended(ending.code << 8, Instant::now());
        }
    }
    Ok(command)
}

fn check(spec: &SpawnSpec) -> Result<(), GuestError> {
    let has_nul = |text: &String| text.contains('\0');
    let problem = if spec.argv.first().is_none_or(String::is_empty) || spec.argv.len() > ARGV_MAX {
        format!("a command has 1 to {ARGV_MAX} arguments, the first not empty")
    } else if spec.argv.iter().any(has_nul) || spec.env.iter().any(|(name, value)| has_nul(name) || has_nul(value)) {
        "an argument or variable holds a NUL".into()
    } else if spec.env.len() > ENV_MAX || spec.env.iter().any(|(name, _)| name.is_empty() || name.contains('=')) {
        format!("at most {ENV_MAX} variables, each with a name without `=`")
    } else if !spec.cwd.starts_with('/') || has_nul(&spec.cwd) || spec.cwd.len() > CWD_BYTES_MAX {
        format!("the working directory must be an absolute path of at most {CWD_BYTES_MAX} bytes")
    } else if spec.tag.len() > TAG_BYTES_MAX {
        format!("a tag has at most {TAG_BYTES_MAX} bytes")
    } else if spec.user.0 > ID_MAX || spec.user.1 > ID_MAX {
        format!("user and group ids go up to {ID_MAX}")
    } else if matches!(&spec.stdin, Stdin::Bytes(bytes) if bytes.len() > STDIN_PENDING_BYTES_MAX) {
        format!("at most {STDIN_PENDING_BYTES_MAX} bytes of input at the start")
    } else {
        return Ok(());
    };
    Err(GuestError::BadCall(problem))
}

fn record(exec: ExecId, mut spec: SpawnSpec, group: Group) -> Command {
    let now = Instant::now();
    let end = text::cut(&spec.display, DISPLAY_BYTES_MAX).len();
    spec.display.truncate(end);
    let given = Given {
        exec,
        display: spec.display,
        cwd: spec.cwd,
        user: spec.user,
        tag: spec.tag,
        started_ms: wall_ms(),
        timeout_ms: spec.timeout_ms,
    };
    Command {
        given,
        pid: 0,
        phase: Phase::Running,
        wait_status: None,
        timed_out: false,
        deadline: spec.timeout_ms.and_then(|ms| now.checked_add(Duration::from_millis(ms))),
        since: now,
        ran_before: Duration::ZERO,
        ended: None,
        pty: spec.pty,
        input: Input::default(),
        stdout: None,
        stderr: None,
        slave: None,
        output: Output::default(),
        group: Some(group),
        attached: spec.attached.then_some((0, now)),
        read_to_end: false,
        oom_kills: 0,
    }
}

/// Both ends of a command's pipes; the command's own are closed when this is dropped.
struct Pipes {
    stdin: OwnedFd,
    child_stdout: OwnedFd,
    child_stderr: OwnedFd,
    input: Option<OwnedFd>,
    stdout: OwnedFd,
    /// A terminal has one stream.
    stderr: Option<OwnedFd>,
}

impl Pipes {
    fn of_terminal(size: PtySize, uid: u32) -> io::Result<Self> {
        let Terminal { master, slave } = Terminal::open(size, uid)?;
        Ok(Self {
            child_stdout: slave.try_clone()?,
            child_stderr: slave.try_clone()?,
            stdin: slave,
            input: Some(master.try_clone()?),
            stdout: master,
            stderr: None,
        })
    }

    fn make(stdin: &Stdin) -> io::Result<Self> {
        let (stdin, input) = match stdin {
            Stdin::Null => (rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?, None),
            Stdin::Bytes(_) | Stdin::Pipe => {
                let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
                make_nonblocking(&writer)?;
                (reader, Some(writer))
            }
        };
        let (stdout, child_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, child_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
        make_nonblocking(&stdout)?;
        make_nonblocking(&stderr)?;
        Ok(Self { stdin, child_stdout, child_stderr, input, stdout, stderr: Some(stderr) })
    }
}

/// Makes the guest's end of a pipe non-blocking; the command's end is another open file and stays as programs expect it.
pub fn make_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    Ok(rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?)
}

/// The pid, or how it ended without having run.
fn run(spec: &SpawnSpec, group: &Group, pipes: &Pipes, around: &Surroundings<'_>) -> Result<i32, (i32, Ending)> {
    let account = users::account(spec.user.0, spec.user.1);
    let env = environment::build(&account, around.config, spec);
    let program = spec.argv.first().map_or("", String::as_str);
    let path = env.get("PATH").map_or(environment::PATH, String::as_str);
    let candidates = programs::candidates(program, path);
    // Checked for NULs before; the sandbox's own variables were checked by the node, and one that holds a NUL is left out.
    let argv: Vec<CString> = spec.argv.iter().filter_map(|text| CString::new(text.as_bytes()).ok()).collect();
    let env: Vec<CString> =
        env.iter().filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok()).collect();
    let cwd = CString::new(spec.cwd.as_bytes()).unwrap_or_default();
    let plan = Plan {
        cgroup: group.directory(),
        stdio: [pipes.stdin.as_fd(), pipes.child_stdout.as_fd(), pipes.child_stderr.as_fd()],
        uid: account.uid,
        gid: account.gid,
        groups: &account.groups,
        cwd: &cwd,
        programs: &candidates,
        argv: &argv,
        env: &env,
        open_files: around.open_files,
        oom_score_adj: OOM_SCORE_ADJ,
        has_terminal: spec.pty.is_some(),
    };
    spawn(&plan).map_err(|error| match error {
        SpawnError::Clone(source) => (0, programs::no_process(&source)),
        SpawnError::Child { pid, step, source } => {
            (pid, programs::ending(program, &spec.cwd, &candidates, step, &source))
        }
    })
}
