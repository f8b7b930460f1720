//! The stages of an attempt: machine, fork, step and check, verdict, and cleaning up whatever happened.
//!
//! One function owns the order. An interrupt ends any stage but the writing back, and cleaning up follows every end.

use super::TryArgs;
use super::directory::Directory;
use super::environment::{self, Given};
use super::home::Caller;
use super::machine::{self, Machine, SECOND_NAME};
use super::mask;
use super::report::{self, Verdict};
use super::scratch::Scratch;
use super::settle::{Found, Settled};
use super::steps::{Ended, Steps};
use super::user::Invoker;
use super::voice::Voice;
use crate::args::Global;
use crate::connect::{Session, refused, variable};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::resolve;
use crate::signals::Signals;
use crate::text::{bytes, count, duration};
use branchbox_api::{CreateRequest, ExecRequest, ForkAnswer, ForkRequest};
use branchbox_client::Client;
use branchbox_layers::writeback;
use branchbox_model::{PoolDriver, SandboxState};
use branchbox_node::{Ending, Node, NodeConfig};
use branchbox_server::Server;
use serde_json::json;
use std::time::{Duration, Instant, SystemTime};

/// Of the free memory, what the copy may use, in percent.
const MEMORY_PERCENT: u64 = 80;
/// Memory that a sandbox can have, in MiB.
const MEMORY_MIB: std::ops::RangeInclusive<u64> = 128..=65_536;
/// Most processors a sandbox can have.
const VCPUS_MAX: usize = 16;
/// Longest state directory that leaves room for the name of a socket below it.
const SHORT_PATH_BYTES: usize = 40;
/// How long the machine may take until it runs.
const START_WAIT: Duration = Duration::from_secs(60);

/// What is known before anything is started.
struct Plan {
    directory: Directory,
    machine: Machine,
    steps: Steps,
    scratch: Scratch,
    began: SystemTime,
}

/// What an attempt came to, before anything is written.
struct Judged {
    fork: ForkAnswer,
    fork_time: Duration,
    ended: Ended,
    found: Found,
    write: bool,
}

/// Tries the step on the current directory.
///
/// # Errors
/// Whatever kept it from a verdict.
pub async fn here(args: TryArgs, mut signals: Signals, voice: &Voice) -> Result<Exit, Fault> {
    let plan = Plan::make(&args, voice)?;
    let config = plan.node_config();
    let node =
        Node::start(config).await.map_err(|error| Fault::of(Exit::CannotRun, "cannot start a machine here", &error))?;
    let judged = tokio::select! {
        judged = plan.judge(&node, &args, voice) => judged,
        () = signals.next() => Err(Fault::interrupted().cause("the copy was discarded, nothing here was touched")),
    };
    // From here on nothing interrupts: a write-back is whole or not at all.
    let result = judged.and_then(|judged| plan.settle(judged, &args, voice));
    let ended = node.shutdown(Ending::DeleteSandboxes).await;
    if let Err(error) = ended {
        voice.line("note", &format!("cleaning up: {error}"));
    }
    result
}

impl Plan {
    fn make(args: &TryArgs, voice: &Voice) -> Result<Self, Fault> {
        let invoker = Invoker::find(&variable);
        let cwd = std::env::current_dir()
            .map_err(|error| Fault::cannot_run("cannot find the current directory").because(&error))?;
        let directory = Directory::find(&cwd, &invoker.home)?;
        Found::recover(voice);
        let masked = mask::find(&directory.top, &args.mask)
            .map_err(|error| Fault::usage("cannot hide files from the step").because(&error))?;
        if !args.mask.is_empty() {
            voice.line("mask", &format!("{} hidden from the step", count(masked.len(), "path")));
        }
        let scratch = Scratch::make(variable("TMPDIR").as_deref().map(std::path::Path::new))?;
        if scratch.in_memory() {
            voice.line(
                "note",
                &format!(
                    "no disk here can hold the copy's changes: they are held in memory, in {}",
                    scratch.path().display()
                ),
            );
        }
        let path = variable("PATH").unwrap_or_default();
        let caller = Caller { home: &invoker.home, path: &path, variable: &variable };
        let machine = machine::describe(&directory, &invoker, &caller, &masked, scratch.path())
            .map_err(|error| Fault::cannot_run("cannot prepare a home for the step").because(&error))?;
        if let Some(copied) = machine.copied {
            let size = bytes(copied.bytes);
            voice.line(
                "note",
                &format!("the file system here has no id-mapped mounts: copied {} entries, {size}", copied.entries),
            );
        }
        let text = |path: &std::path::Path| path.to_str().map(str::to_owned);
        let (Some(cwd), Some(home)) = (text(&directory.cwd), text(&invoker.home)) else {
            return Err(Fault::cannot_run("cannot try a step here").cause("the directory's path is not UTF-8"));
        };
        let given = Given { path: machine.path.clone(), home: &home, user: &invoker.name };
        let steps = Steps { cwd: Some(cwd), env: environment::of_step(std::env::vars(), &given), ..args.steps() };
        Ok(Self { directory, machine, steps, scratch, began: writeback::baseline() })
    }

    fn node_config(&self) -> NodeConfig {
        let state = self.scratch.path();
        let mut config = NodeConfig { ephemeral: true, pool_driver: Some(PoolDriver::Plain), ..NodeConfig::new(state) };
        // With the rest, so that it goes with the rest; a socket's path holds 108 bytes.
        if state.as_os_str().len() <= SHORT_PATH_BYTES {
            config.run_parent = state.join("run");
        }
        config
    }

    async fn judge(&self, node: &Node, args: &TryArgs, voice: &Voice) -> Result<Judged, Fault> {
        let socket = self.scratch.path().join("node.sock");
        let listening = Server::new(node.clone()).bind_unix(&socket);
        let _listening =
            listening.map_err(|error| Fault::cannot_run("cannot listen on a socket of our own").because(&error))?;
        let client = Client::unix(&socket);
        let source = self.start(node, &client, voice).await?;
        let (fork, fork_time) = fork(&client, &source, voice).await?;
        let copy = only_copy(&fork)?;
        let ended = self.steps.run(&client, &copy, voice).await?;
        // What reads the changes must be alone with them.
        client.stop(&copy).await.map_err(|error| refused("cannot stop the copy", error))?;
        let upper =
            node.upper_of(&copy).map_err(|error| Fault::of(Exit::Internal, "cannot find the copy's files", &error))?;
        let found = Found::read(&upper, &self.directory, self.began)?;
        self.tell(&ended, &found, voice);
        let write = ended.passed() && !found.is_empty() && (args.yes || ask(&self.directory).await);
        Ok(Judged { fork, fork_time, ended, found, write })
    }

    /// The source: a machine that sees the directory.
    async fn start(&self, node: &Node, client: &Client, voice: &Voice) -> Result<String, Fault> {
        let began = Instant::now();
        let request = CreateRequest {
            vcpu: u32::try_from(std::thread::available_parallelism().map_or(1, usize::from).min(VCPUS_MAX)).ok(),
            memory_mib: free_memory_mib(),
            ..CreateRequest::default()
        };
        let what = "cannot start a machine on this directory";
        let made = node.create_with_root(request, self.machine.extras.clone(), START_WAIT).await;
        let made = made.map_err(|error| Fault::of(Exit::CannotRun, what, &error))?;
        if made.state != SandboxState::Running {
            return Err(Fault::cannot_run(what).cause("it did not run in time"));
        }
        self.second_name(client, &made.id).await?;
        let tools = count(self.machine.tools, "toolchain directory").replace("directorys", "directories");
        let words = format!("ready in {}: this directory and {tools}, no network", duration(began.elapsed()));
        voice.line("start", &words);
        Ok(made.id)
    }

    /// `/workspace/repo` for those who look for it there.
    async fn second_name(&self, client: &Client, sandbox: &str) -> Result<(), Fault> {
        let Some(top) = self.directory.top.to_str().filter(|top| !top.starts_with("/workspace")) else { return Ok(()) };
        let argv = ["ln", "-sfnT", top, SECOND_NAME].map(str::to_owned).into();
        let request = ExecRequest { argv: Some(argv), ..ExecRequest::default() };
        let result =
            client.exec(sandbox, &request).await.map_err(|error| refused("cannot name the directory", error))?;
        match result.exit_code {
            Some(0) => Ok(()),
            _ => {
                Err(Fault::new(Exit::Internal, format!("cannot name the directory {SECOND_NAME}")).cause(result.stderr))
            }
        }
    }

    fn tell(&self, ended: &Ended, found: &Found, voice: &Voice) {
        if ended.passed() {
            voice.say(&report::verdict(true, "", voice.elapsed()));
            voice.say(&found.changes().text("the step changed"));
        } else {
            voice.say(&report::verdict(false, ": the copy was discarded, nothing here was touched", voice.elapsed()));
            voice.say(&found.changes().text("the step would have changed"));
            if let Some(excuse) = ended.excuse() {
                voice.say(&format!("  {excuse}\n"));
            }
        }
    }

    fn settle(&self, judged: Judged, args: &TryArgs, voice: &Voice) -> Result<Exit, Fault> {
        let settled = match (judged.ended.passed(), judged.found.is_empty()) {
            (false, _) => Settled::of(Verdict::Failed),
            (true, true) => Settled::of(Verdict::Unchanged),
            (true, false) if judged.write => judged.found.write_back(&self.scratch, args.allow_hooks)?,
            (true, false) => Settled::of(Verdict::NotKept),
        };
        voice.say(&settled.text(&self.directory.top));
        if voice.form() == Form::Json {
            output::json(&json!({
                "passed": judged.ended.passed(),
                "verdict": settled.verdict,
                "step": judged.ended.step,
                "check": judged.ended.check,
                "forkMs": millis(judged.fork_time),
                "timings": judged.fork.timings,
                "changes": judged.found.changes(),
                "written": settled.written,
                "conflicts": settled.conflicts,
                "kept": settled.kept,
                "hint": judged.ended.excuse(),
                "totalMs": millis(voice.elapsed()),
            }));
        }
        Ok(settled.verdict.exit())
    }
}

/// Tries the step in a copy of a sandbox: a copy that passes is the result.
///
/// # Errors
/// Whatever kept it from a verdict.
pub async fn in_sandbox(
    args: TryArgs,
    global: &Global,
    sandbox: &str,
    mut signals: Signals,
    voice: &Voice,
) -> Result<Exit, Fault> {
    let session = Session::open(global)?;
    let client = &session.client;
    let source = resolve::sandbox(client, sandbox).await?;
    let (fork, fork_time) = fork(client, &source, voice).await?;
    let copy = only_copy(&fork)?;
    let steps = args.steps();
    let ended = tokio::select! {
        ended = steps.run(client, &copy, voice) => ended,
        () = signals.next() => Err(Fault::interrupted().cause("the copy was discarded")),
    };
    let passed = ended.as_ref().is_ok_and(Ended::passed);
    if !passed {
        client.delete(&copy).await.map_err(|error| refused(&format!("cannot discard the copy `{copy}`"), error))?;
    }
    let ended = ended?;
    let words = if passed { ": the copy is the result" } else { ": the copy was discarded" };
    voice.say(&report::verdict(passed, words, voice.elapsed()));
    if let Some(excuse) = ended.excuse() {
        voice.say(&format!("  {excuse}\n"));
    }
    let verdict = if passed { Verdict::Kept } else { Verdict::Failed };
    match voice.form() {
        Form::Json => output::json(&json!({
            "passed": passed,
            "verdict": verdict,
            "step": ended.step,
            "check": ended.check,
            "forkMs": millis(fork_time),
            "timings": fork.timings,
            "sandbox": passed.then_some(&copy),
            "totalMs": millis(voice.elapsed()),
        })),
        Form::Text if passed => output::data(&format!("{copy}\n")),
        Form::Text => {}
    }
    Ok(verdict.exit())
}

async fn fork(client: &Client, source: &str, voice: &Voice) -> Result<(ForkAnswer, Duration), Fault> {
    let began = Instant::now();
    let answer = client
        .fork(source, &ForkRequest::default())
        .await
        .map_err(|error| refused("cannot fork the machine", error))?;
    let time = began.elapsed();
    let pause = answer
        .timings
        .pause_us
        .map_or_else(String::new, |us| format!("paused {}, ", duration(Duration::from_micros(us))));
    voice.line("fork", &format!("{pause}copy ready in {}", duration(time)));
    Ok((answer, time))
}

fn only_copy(answer: &ForkAnswer) -> Result<String, Fault> {
    let first = answer.sandboxes.first().map(|copy| copy.id.clone());
    first.ok_or_else(|| Fault::new(Exit::Internal, "the fork made no copy"))
}

/// Asks at the terminal; where nobody can answer, the answer is no.
async fn ask(directory: &Directory) -> bool {
    use std::io::IsTerminal as _;
    if !std::io::stdin().is_terminal() {
        return false;
    }
    output::note(&format!("  write these changes back to {}? [y/N] ", directory.top.display()));
    let read = || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|_| line)
    };
    let answer = tokio::task::spawn_blocking(read).await;
    answer.is_ok_and(|line| line.is_ok_and(|line| matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")))
}

/// Most of what is free now.
fn free_memory_mib() -> Option<u32> {
    let facts = fs_err::read_to_string("/proc/meminfo").ok()?;
    let line = facts.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    let mib = kib / 1024 * MEMORY_PERCENT / 100;
    u32::try_from(mib.clamp(*MEMORY_MIB.start(), *MEMORY_MIB.end())).ok()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
