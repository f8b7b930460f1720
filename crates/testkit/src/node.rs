//! A node of a test's own: the real program, a state directory of its own, a free port.
//!
//! Dropping a [`NodeProcess`] ends its sandboxes and removes its state directory. The key is read from the state
//! directory, as a user on the machine would.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a node may take to say that it is ready; the first start builds the host image's skeleton.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to end, with its sandboxes.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// What the ready line begins with.
const READY: &str = "branchbox ready ";
/// Names another program to test than the one beside the test.
pub const BINARY: &str = "BRANCHBOX_BIN";

/// The program under test: `BRANCHBOX_BIN`, else `branchbox` in the directory that holds the running program, or in
/// one of the three above it.
///
/// # Errors
/// When there is none, with the places looked at.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(BINARY) {
        return Ok(path.into());
    }
    let own = std::env::current_exe().context("find the running program")?;
    own.ancestors()
        .skip(1)
        .take(4)
        .map(|directory| directory.join("branchbox"))
        .find(|path| path.is_file())
        .with_context(|| format!("no branchbox near {}: set {BINARY}", own.display()))
}

/// How a node is started.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    /// An existing state directory; `None` makes one that is removed at the end.
    pub state_dir: Option<PathBuf>,
    /// Where a new state directory is made; `None` is the system's temporary directory.
    pub parent: Option<PathBuf>,
    /// More words for `branchbox serve`.
    pub arguments: Vec<String>,
}

/// A running node.
#[derive(Debug)]
pub struct NodeProcess {
    /// The API's origin.
    pub url: String,
    /// The admin key.
    pub key: String,
    /// Its state directory.
    pub state_dir: PathBuf,
    child: Child,
    temporary: Option<tempfile::TempDir>,
}

impl NodeProcess {
    /// Starts a node with a state directory of its own.
    ///
    /// # Errors
    /// When it does not become ready; the message holds what it logged.
    pub fn start() -> Result<Self> {
        Self::start_with(NodeOptions::default())
    }

    /// Starts a node.
    ///
    /// # Errors
    /// As [`NodeProcess::start`].
    pub fn start_with(options: NodeOptions) -> Result<Self> {
        let (temporary, state_dir) = match options.state_dir {
            Some(path) => (None, path),
            None => {
                let made = make_state_dir(options.parent.as_deref())?;
                let path = made.path().to_owned();
                (Some(made), path)
            }
        };
        let log = state_dir.with_extension("log");
        let mut child = spawn(&state_dir, &log, &options.arguments)?;
        match wait_ready(&mut child).and_then(|url| Ok((url, read_key(&state_dir)?))) {
            Ok((url, key)) => Ok(Self { url, key, state_dir, child, temporary }),
            Err(error) => {
                child.kill().ok();
                child.wait().ok();
                let said = fs_err::read_to_string(&log).unwrap_or_default();
                Err(error.context(format!("the node did not start; it logged:\n{said}")))
            }
        }
    }

    /// The node's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the node as a crash would. Its sandboxes run on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().context("kill the node")?;
        self.child.wait().context("wait for the node")?;
        Ok(())
    }

    /// Ends the node and its sandboxes and waits for both.
    ///
    /// # Errors
    /// When it does not end in time, or fails.
    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait().context("look at the node")?.is_some() {
            return Ok(());
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("end the node")?;
        let deadline = Instant::now() + STOP_WITHIN;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().context("wait for the node")? {
                ensure!(status.success(), "the node ended with {status}");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.kill().ok();
        bail!("the node did not end within {STOP_WITHIN:?}")
    }
}

impl Drop for NodeProcess {
    #[expect(clippy::print_stderr, reason = "a drop cannot return its error")]
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("node of the test: {error:#}");
        }
        let log = self.state_dir.with_extension("log");
        if self.temporary.is_some() {
            fs_err::remove_file(log).ok();
        }
    }
}

fn make_state_dir(parent: Option<&Path>) -> Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("branchbox-state-");
    let made = match parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    made.context("make a state directory")
}

fn spawn(state_dir: &Path, log: &Path, arguments: &[String]) -> Result<Child> {
    let log = fs_err::File::create(log).context("make the node's log")?;
    Command::new(binary()?)
        .args(["serve", "--listen", "127.0.0.1:0", "--end-sandboxes", "--state-dir"])
        .arg(state_dir)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.into_parts().0)
        .spawn()
        .context("start the node")
}

/// Reads the ready line on a thread of its own, so that a silent node fails the test instead of hanging it.
fn wait_ready(child: &mut Child) -> Result<String> {
    let stdout = child.stdout.take().context("the node has no output")?;
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        let read = reader.read_line(&mut line);
        send.send(read.map(|_| line)).ok();
        std::io::copy(&mut reader, &mut std::io::sink()).ok();
    });
    let line = receive.recv_timeout(READY_WITHIN).context("no ready line in time")?.context("read the ready line")?;
    match line.trim_end().strip_prefix(READY) {
        Some(url) => Ok(url.to_owned()),
        None => bail!("the node said {line:?} instead of its ready line"),
    }
}

fn read_key(state_dir: &Path) -> Result<String> {
    let text = fs_err::read_to_string(state_dir.join("admin.key")).context("read the key")?;
    Ok(text.trim().to_owned())
}
