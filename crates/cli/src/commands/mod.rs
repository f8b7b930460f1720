//! The commands, and the one place that starts them, shows their failure and says how the process ends.

pub mod account;
pub mod code;
pub mod create;
pub mod doctor;
pub mod exec;
pub mod files;
pub mod fork;
pub mod forward;
pub mod get;
pub mod history;
pub mod images;
pub mod keys;
pub mod life;
pub mod ls;
pub mod manual;
pub mod metrics;
pub mod previews;
pub mod processes;
pub mod rm;
pub mod run;
pub mod serve;
pub mod shell;
pub mod snapshot;
pub mod snapshots;
pub mod stop;

use crate::args::{Cli, Command, Global, SandboxVerb};
use crate::connect::Session;
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::resolve;
use branchbox_api::SandboxInfo;
use std::future::Future;

/// Runs what the command line asks for.
#[must_use]
pub fn run(cli: Cli) -> Exit {
    let form = Form::of(cli.global.json);
    match dispatch(cli) {
        Ok(exit) => exit,
        Err(fault) => {
            output::fault(form, &fault);
            fault.exit()
        }
    }
}

fn dispatch(cli: Cli) -> Result<Exit, Fault> {
    let global = cli.global;
    match cli.command {
        Command::Try(args) => args.run(&global),
        Command::Serve(args) => args.run(&global),
        Command::Doctor => Ok(doctor::run(Form::of(global.json))),
        Command::Sandbox(verb) | Command::Sandboxes(verb) => on_sandboxes(verb, &global),
        Command::Completions(args) => Ok(args.run()),
        Command::Man(args) => args.run(),
        Command::Whoami => small_runtime()?.block_on(async { account::whoami(&Session::open(&global)?).await }),
        Command::Limits => small_runtime()?.block_on(async { account::limits(&Session::open(&global)?).await }),
        Command::Usage => small_runtime()?.block_on(async { account::usage(&Session::open(&global)?).await }),
        Command::Images(verb) => small_runtime()?.block_on(async { verb.run(&Session::open(&global)?).await }),
        Command::Keys(verb) => small_runtime()?.block_on(async { verb.run(&Session::open(&global)?).await }),
        Command::Events(args) => small_runtime()?.block_on(async { args.run(&Session::open(&global)?).await }),
        Command::Audit(args) => small_runtime()?.block_on(async { args.run(&Session::open(&global)?).await }),
        Command::Snapshots(verb) => small_runtime()?.block_on(async { verb.run(&Session::open(&global)?).await }),
    }
}

fn on_sandboxes(verb: SandboxVerb, global: &Global) -> Result<Exit, Fault> {
    let session = Session::open(global)?;
    let session = &session;
    small_runtime()?.block_on(async move {
        match verb {
            SandboxVerb::Create(args) => args.run(session).await,
            SandboxVerb::Exec(args) => args.run(session).await,
            SandboxVerb::Ls(args) => args.run(session).await,
            SandboxVerb::Get(args) => args.run(session).await,
            SandboxVerb::Fork(args) => args.run(session).await,
            SandboxVerb::Snapshot(args) => args.run(session).await,
            SandboxVerb::Rm(args) => args.run(session).await,
            SandboxVerb::Stop(args) => args.run(session).await,
            SandboxVerb::Pause(args) => args.run(session).await,
            SandboxVerb::Wake(args) => args.run(session).await,
            SandboxVerb::Restart(args) => args.run(session).await,
            SandboxVerb::Extend(args) => args.run(session).await,
            SandboxVerb::Update(args) => args.run(session).await,
            SandboxVerb::Network(args) => args.run(session).await,
            SandboxVerb::Run(args) => args.run(session).await,
            SandboxVerb::Spawn(args) => args.run(session).await,
            SandboxVerb::Ps(args) => args.run(session).await,
            SandboxVerb::Logs(args) => args.run(session).await,
            SandboxVerb::Kill(args) => args.run(session).await,
            SandboxVerb::Cp(args) => args.run(session).await,
            SandboxVerb::Cat(args) => args.run(session).await,
            SandboxVerb::Files(args) => args.run(session).await,
            SandboxVerb::Preview(args) => args.run(session).await,
            SandboxVerb::Previews(args) => args.run(session).await,
            SandboxVerb::Unshare(args) => args.run(session).await,
            SandboxVerb::RunCode(args) => args.run(session).await,
            SandboxVerb::Metrics(args) => args.run(session).await,
            SandboxVerb::Shell(args) => args.run(session).await,
            SandboxVerb::PortForward(args) => args.run(session).await,
        }
    })
}

/// A client waits for one answer at a time: one thread is enough.
fn small_runtime() -> Result<tokio::runtime::Runtime, Fault> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Fault::new(Exit::Internal, "cannot start the runtime").because(&error))
}

/// Shows a sandbox's id and state, as most verbs on one do.
fn show_state(form: Form, info: &SandboxInfo) {
    match form {
        Form::Json => output::json(info),
        Form::Text => output::data(&format!("{} {}\n", info.id, word(info.state))),
    }
}

/// An enum of the wire as its word there.
fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// `a=b, c=d`
fn labels(labels: &std::collections::BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

/// Does something to each of several things, tells each failure, and ends as the worst of them did.
async fn each<F>(session: &Session, texts: &[String], mut act: impl FnMut(String) -> F) -> Exit
where
    F: Future<Output = Result<(), Fault>>,
{
    let mut exit = Exit::Done;
    for text in texts {
        if let Err(fault) = act(text.clone()).await {
            output::fault(session.form, &fault);
            exit = fault.exit();
        }
    }
    exit
}

/// The sandbox that a word of the command line means.
async fn sandbox(session: &Session, text: &str) -> Result<String, Fault> {
    resolve::sandbox(&session.client, text).await
}
