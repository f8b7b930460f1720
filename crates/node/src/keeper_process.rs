//! Starting a keeper: its configuration, its process, its first answer.
//!
//! A keeper outlives the node: its output goes to a file, it makes a session of its own, and nothing of it is killed
//! when the node drops. It is awaited so that no zombie is left. Whether it is there is told by its socket alone.

use crate::clients::{KeeperClient, START_WAIT};
use crate::error::NodeError;
use crate::peer::PeerError;
use branchbox_protocol::keeper::{KeeperConfig, Running};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::sync::{mpsc, watch};

/// Between two looks for a new keeper's socket.
const SOCKET_POLL: Duration = Duration::from_millis(1);
/// Bytes of a keeper's log that an error shows.
const LOG_BYTES_SHOWN: u64 = 1500;

fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.to_path_buf();
    move |source| NodeError::File { action, path, source }
}

/// Where a keeper finds its configuration.
pub(crate) fn config_path(sandbox_dir: &Path) -> PathBuf {
    sandbox_dir.join("keeper.json")
}

/// Reads a configuration back, for another keeper of the same sandbox.
pub(crate) fn read_config(sandbox_dir: &Path) -> Result<KeeperConfig, NodeError> {
    let path = config_path(sandbox_dir);
    let text = fs_err::read(&path).map_err(file("read", &path))?;
    serde_json::from_slice(&text).map_err(|error| file("understand", &path)(error.into()))
}

/// Writes a configuration, readable for root alone: it holds the sandbox's variables.
pub(crate) fn write_config(config: &KeeperConfig) -> Result<(), NodeError> {
    crate::state_dir::make_private(&config.sandbox_dir)?;
    let path = config_path(&config.sandbox_dir);
    let temporary = config.sandbox_dir.join("keeper.json.new");
    let text = serde_json::to_vec(config).map_err(|error| file("write", &path)(error.into()))?;
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&temporary)?;
        file.write_all(&text)?;
        std::fs::rename(&temporary, &path)
    };
    write().map_err(file("write", &path))
}

/// Starts a keeper on a written configuration and waits until its sandbox runs. One that does not get there is killed.
pub(crate) async fn start(config: &KeeperConfig, exe: &Path) -> Result<(KeeperClient, Running), NodeError> {
    let log_path = config.sandbox_dir.join("keeper.log");
    let log_start = fs_err::metadata(&log_path).map_or(0, |metadata| metadata.len());
    let process = Process::watch(spawn(config, exe, &log_path)?);
    let answered = async {
        let keeper = connect(config).await?;
        let running = keeper.hello().await?;
        Ok((keeper, running))
    };
    let started = tokio::select! {
        // Its answer, if there is one, says more than its end.
        biased;
        answer = answered => answer,
        () = process.ended() => Err(closed(config)),
    };
    started.map_err(|error| {
        process.kill();
        explained(config, error, &log_end(&log_path, log_start).unwrap_or_default())
    })
}

/// A keeper's process, awaited by a task of its own.
struct Process {
    ended: watch::Receiver<bool>,
    kill: mpsc::Sender<()>,
}

impl Process {
    fn watch(mut child: tokio::process::Child) -> Self {
        let (ended_send, ended) = watch::channel(false);
        let (kill, mut killed) = mpsc::channel(1);
        tokio::spawn(async move {
            let asked = tokio::select! {
                _ = child.wait() => None,
                asked = killed.recv() => asked,
            };
            if asked.is_some() {
                let _ = child.start_kill();
            }
            // Also when nobody can ask any more: a keeper that runs is awaited to its end.
            let _ = child.wait().await;
            ended_send.send_replace(true);
        });
        Self { ended, kill }
    }

    async fn ended(&self) {
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    fn kill(&self) {
        let _ = self.kill.try_send(());
    }
}

fn closed(config: &KeeperConfig) -> NodeError {
    NodeError::Peer { id: config.id.clone(), who: "keeper", source: PeerError::Closed }
}

/// The keeper's own words where it gave no answer; its log goes with the sandbox, so they are kept in ours.
fn explained(config: &KeeperConfig, error: NodeError, said: &str) -> NodeError {
    if !said.is_empty() {
        tracing::warn!(sandbox = %config.id, said, "from the keeper's log");
    }
    match error {
        NodeError::Peer { source: PeerError::Closed, .. } => {
            let problem = if said.is_empty() { "its keeper ended without a word" } else { said };
            NodeError::Start { id: config.id.clone(), problem: problem.to_owned() }
        }
        other => other,
    }
}

fn spawn(config: &KeeperConfig, exe: &Path, log_path: &Path) -> Result<tokio::process::Child, NodeError> {
    let mut options = std::fs::OpenOptions::new();
    let log = options.create(true).append(true).mode(0o600).open(log_path).map_err(file("open", log_path))?;
    let errors = log.try_clone().map_err(file("open", log_path))?;
    let mut command = Command::new(exe);
    command
        .arg0("branchbox-keeper")
        .arg(config_path(&config.sandbox_dir))
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .kill_on_drop(false);
    if let Some(filter) = std::env::var_os("BRANCHBOX_LOG") {
        command.env("BRANCHBOX_LOG", filter);
    }
    command.spawn().map_err(file("start", exe))
}

/// Connects as soon as the keeper listens.
async fn connect(config: &KeeperConfig) -> Result<KeeperClient, NodeError> {
    let deadline = Instant::now() + START_WAIT;
    loop {
        match KeeperClient::connect(&config.id, &config.run_dir) {
            Ok(keeper) => return Ok(keeper),
            Err(PeerError::Connect(_)) if Instant::now() < deadline => tokio::time::sleep(SOCKET_POLL).await,
            Err(source) => return Err(NodeError::Peer { id: config.id.clone(), who: "keeper", source }),
        }
    }
}

fn log_end(path: &Path, start: u64) -> std::io::Result<String> {
    let mut log = std::fs::File::open(path)?;
    let length = log.metadata()?.len();
    log.seek(SeekFrom::Start(start.max(length.saturating_sub(LOG_BYTES_SHOWN))))?;
    let mut bytes = Vec::new();
    log.take(LOG_BYTES_SHOWN).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
