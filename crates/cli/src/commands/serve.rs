//! `serve`: a node, until it is told to end.
//!
//! Sandboxes outlive it: SIGTERM ends the listening and leaves them running, unless `--end-sandboxes` says otherwise.

use crate::args::Global;
use crate::connect::{state_dir, variable};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::output::{self, Form};
use crate::signals::Signals;
use branchbox_model::PoolDriver;
use branchbox_node::{Ending, Node, NodeConfig, NodeError};

use branchbox_server::{Server, ServerError};
use clap::Args;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Run a node.
///
/// Listens on a loopback address and on STATE/node.sock until SIGTERM or Ctrl-C. Prints one line when it is ready. Its
/// sandboxes run on when it ends, and the next node on the same state directory finds them.
///
/// Example: `branchbox serve --listen 127.0.0.1:7070 --state-dir /var/lib/branchbox`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// A loopback address; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub listen: SocketAddr,
    /// End all sandboxes when the node ends
    #[arg(long)]
    pub end_sandboxes: bool,
    /// How long a second of time limits, idle times and retentions lasts, in microseconds; for tests
    #[arg(long, value_name = "US", default_value_t = 1_000_000, hide = true, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub second_us: u64,
    /// Take this for the machine's boot id; for tests
    #[arg(long, value_name = "ID", hide = true)]
    pub boot_id: Option<String>,
}

impl ServeArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// When the node cannot start, or cannot end cleanly.
    pub fn run(self, global: &Global) -> Result<Exit, Fault> {
        if !self.listen.ip().is_loopback() {
            return Err(Fault::usage(format!("cannot listen on {}", self.listen))
                .cause("it is not a loopback address, and keys would cross the network in the clear")
                .hint("listen on 127.0.0.1 and put a proxy with TLS in front"));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(Fault::cannot_run("a node needs root")
                .hint("run it again under sudo; `branchbox doctor` says what it needs"));
        }
        log_to_stderr();
        let state = state_dir(global, &variable);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| Fault::new(Exit::Internal, "cannot start the runtime").because(&error))?;
        runtime.block_on(self.serve(state, Form::of(global.json)))
    }

    async fn serve(self, state: PathBuf, form: Form) -> Result<Exit, Fault> {
        let mut signals = Signals::listen()?;
        let config = NodeConfig {
            second: Duration::from_micros(self.second_us),
            boot_id: self.boot_id.clone(),
            ..NodeConfig::new(&state)
        };
        let node = Node::start(config).await.map_err(|error| not_started(&state, &error))?;
        let served = self.until_told(&node, &state, form, &mut signals).await;
        let ending = if self.end_sandboxes && served.is_ok() { Ending::EndSandboxes } else { Ending::KeepSandboxes };
        let ended = node.shutdown(ending).await;
        served?;
        ended.map_err(|error| Fault::of(Exit::Internal, "the node could not end cleanly", &error))?;
        Ok(Exit::Done)
    }

    /// Listens until a signal comes, then takes no more requests and lets the open ones end.
    async fn until_told(&self, node: &Node, state: &Path, form: Form, signals: &mut Signals) -> Result<(), Fault> {
        let server = Server::new(node.clone());
        let failed =
            |error: ServerError| Fault::cannot_run("cannot listen").because(&error).hint("choose another --listen");
        let unix = server.bind_unix(&state.join("node.sock")).map_err(failed)?;
        let tcp = server.bind_tcp(self.listen).await.map_err(failed)?;
        match form {
            Form::Text => output::data(&format!("branchbox ready {}\n", tcp.address())),
            Form::Json => {
                let ready =
                    serde_json::json!({ "ready": tcp.address(), "socket": unix.address(), "pool": node.pool_driver() });
                output::data(&format!("{ready}\n"));
            }
        }
        output::note(&pool_line(node));
        signals.next().await;
        node.begin_closing();
        tokio::join!(tcp.stop(), unix.stop());
        Ok(())
    }
}

fn not_started(state: &Path, error: &NodeError) -> Fault {
    let what = format!("cannot start a node on {}", state.display());
    let fault = Fault::of(Exit::CannotRun, what, error);
    match error {
        NodeError::AlreadyRunning { pid, .. } => {
            fault.hint(format!("the node with pid {pid} has it: use that, or give another --state-dir"))
        }
        _ => fault,
    }
}

/// Which pool driver is in use, and why the lesser one.
fn pool_line(node: &Node) -> String {
    let driver = match node.pool_driver() {
        PoolDriver::Btrfs => "btrfs",
        PoolDriver::Plain => "plain copies",
    };
    node.pool_fallback().map_or_else(|| format!("pool: {driver}\n"), |why| format!("pool: {driver}, since {why}\n"))
}

/// Logs go to standard error; `BRANCHBOX_LOG` chooses what, as `warn` or `branchbox_node=debug`.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("BRANCHBOX_LOG");
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
}
