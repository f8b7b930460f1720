//! A real registry of the test's own, a hostile server, and one way to pull from either.

use crate::image::{Image, digest};
use branchbox_registry::{Credentials, Options, Progress, Pulled, Reference, RegistryError, pull};
use branchbox_testkit::{needs, tools};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// More than any image of these tests has.
pub const ROOM: u64 = 64 << 20;
const START_TIMEOUT: Duration = Duration::from_secs(60);

pub fn options() -> Options<'static> {
    Options { credentials: None, bytes_max: ROOM, ca_file: None, cancelled: None }
}

pub fn credentials(password: &str) -> Credentials {
    Credentials { username: "ann".into(), password: password.into() }
}

/// Pulls `host/name`, with what was told on the way.
pub fn pull_with(name: &str, into: &Path, options: &Options<'_>) -> (Result<Pulled, RegistryError>, Vec<Progress>) {
    let reference: Reference = name.parse().unwrap();
    let mut told = Vec::new();
    let result = pull(&reference, into, options, &mut |progress| told.push(progress));
    (result, told)
}

/// Pulls into a directory of its own, which is gone afterwards.
pub fn pull_once(name: &str, options: &Options<'_>) -> Result<Pulled, RegistryError> {
    pull_with(name, tempfile::tempdir().unwrap().path(), options).0
}

/// The sentence of an error that must be [`RegistryError::Broken`].
pub fn broken(result: Result<Pulled, RegistryError>) -> String {
    match result {
        Err(error @ RegistryError::Broken { .. }) => error.to_string(),
        other => panic!("not broken: {other:?}"),
    }
}

/// The names of the files in a directory.
pub fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs_err::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Debian's registry on a port of its own; ends with the test.
pub struct Registry {
    child: Child,
    root: TempDir,
    agent: ureq::Agent,
    scheme: &'static str,
    pub address: String,
}

/// What a registry asks of its clients.
pub enum Door {
    Open,
    /// Name and password: `ann`, `right`.
    Password,
    /// TLS with a certificate that [`Registry::ca_file`] holds.
    Tls,
}

impl Registry {
    /// `None`, loudly, where the program is not there.
    pub fn start(door: &Door) -> Option<Self> {
        let program = tools::find("docker-registry");
        if !needs::or_skip(program.is_some(), "docker-registry (cargo xtask test --only tools)") {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let config = root.path().join("config.yml");
        fs_err::write(&config, config_of(door, root.path())).unwrap();
        let log = root.path().join("log");
        // The program's own end is seen to below; this is for a test that is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program.unwrap())
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(fs_err::File::create(root.path().join("out")).unwrap().into_parts().0)
            .stderr(fs_err::File::create(&log).unwrap().into_parts().0)
            .spawn()
            .unwrap();
        let (agent, scheme) = agent_for(door, root.path());
        let mut registry = Self { child, root, agent, scheme, address: String::new() };
        registry.address = registry.wait_for_address(&log);
        Some(registry)
    }

    fn wait_for_address(&mut self, log: &Path) -> String {
        let until = Instant::now() + START_TIMEOUT;
        loop {
            let text = fs_err::read_to_string(log).unwrap();
            let line = text.split("listening on ").nth(1);
            let address: String =
                line.unwrap_or_default().chars().take_while(|c| c.is_ascii_digit() || matches!(c, '.' | ':')).collect();
            if line.is_some_and(|line| line.len() > address.len()) {
                return address;
            }
            assert!(self.child.try_wait().unwrap().is_none() && Instant::now() < until, "it did not start: {text}");
            sleep(Duration::from_millis(20));
        }
    }

    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    pub fn ca_file(&self) -> PathBuf {
        self.root.path().join("cert.pem")
    }

    /// The file in which the registry keeps a blob or manifest.
    pub fn stored(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.root.path().join("store/docker/registry/v2/blobs/sha256").join(&hex[..2]).join(hex).join("data")
    }

    pub fn push(&self, repository: &str, tag: &str, image: &Image) {
        for blob in image.layers.iter().chain([&image.config]) {
            self.put_blob(repository, blob);
        }
        self.put_manifest(repository, tag, image.media_type, &image.manifest);
    }

    pub fn put_manifest(&self, repository: &str, name: &str, media_type: &str, bytes: &[u8]) {
        let url = format!("{}://{}/v2/{repository}/manifests/{name}", self.scheme, self.address);
        let answer = self.agent.put(&url).header("content-type", media_type).header("authorization", ANN).send(bytes);
        assert_eq!(answer.unwrap().status(), 201);
    }

    fn put_blob(&self, repository: &str, bytes: &[u8]) {
        let url = format!("{}://{}/v2/{repository}/blobs/uploads/", self.scheme, self.address);
        let begun = self.agent.post(&url).header("authorization", ANN).send_empty().unwrap();
        assert_eq!(begun.status(), 202);
        let place = begun.headers()["location"].to_str().unwrap();
        let url = format!("{place}&digest={}", digest(bytes));
        assert_eq!(self.agent.put(&url).header("authorization", ANN).send(bytes).unwrap().status(), 201);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// `ann:right`
const ANN: &str = "Basic YW5uOnJpZ2h0";
/// `ann` and the bcrypt of `right`.
const HTPASSWD: &str = "ann:$2b$04$Rr8uz8ELMS8ECBwp1uVSEumcV3sNk3/BsNRmUhPubYq7RizRTmChC\n";

fn agent_for(door: &Door, root: &Path) -> (ureq::Agent, &'static str) {
    let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None);
    if !matches!(door, Door::Tls) {
        return (config.build().new_agent(), "http");
    }
    let certificate = Certificate::from_pem(&fs_err::read(root.join("cert.pem")).unwrap()).unwrap();
    let roots = RootCerts::Specific(Arc::new(vec![certificate]));
    (config.tls_config(TlsConfig::builder().root_certs(roots).build()).build().new_agent(), "https")
}

fn config_of(door: &Door, root: &Path) -> String {
    let root_text = root.display();
    let mut text = format!(
        "version: 0.1\nlog:\n  level: info\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    \
         rootdirectory: {root_text}/store\nhttp:\n  addr: 127.0.0.1:0\n  secret: of-a-test\n"
    );
    match door {
        Door::Open => {}
        Door::Password => {
            fs_err::write(root.join("htpasswd"), HTPASSWD).unwrap();
            text += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {root_text}/htpasswd\n");
        }
        Door::Tls => {
            make_certificate(root);
            text += &format!("  tls:\n    certificate: {root_text}/cert.pem\n    key: {root_text}/key.pem\n");
        }
    }
    text
}

fn make_certificate(root: &Path) {
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test \
                 -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem";
    let made = Command::new("openssl").args(words.split_whitespace()).current_dir(root).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// One request, as its lines; the first is `GET /path HTTP/1.1`.
#[derive(Debug, Clone)]
pub struct Request(Vec<String>);

impl Request {
    pub fn path(&self) -> &str {
        self.0[0].split(' ').nth(1).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.iter().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

type Answer = dyn Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send;

/// A server that speaks HTTP by hand, one connection after the other, one request in each.
pub struct Hostile {
    pub address: String,
    asked: Arc<Mutex<Vec<Request>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hostile {
    pub fn start(answer: impl Fn(&Request, &mut TcpStream) -> std::io::Result<()> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self::on(listener, Box::new(answer))
    }

    pub fn on(listener: TcpListener, answer: Box<Answer>) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let (asked, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (seen, is_ended) = (Arc::clone(&asked), Arc::clone(&ended));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_ended.load(Ordering::SeqCst) {
                    return;
                }
                // A client that goes away in the middle is what some tests want.
                serve_one(stream.unwrap(), &seen, &*answer).ok();
            }
        });
        Self { address, asked, ended, thread: Some(thread) }
    }

    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    pub fn asked(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        TcpStream::connect(&self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

fn serve_one(mut stream: TcpStream, asked: &Mutex<Vec<Request>>, answer: &Answer) -> std::io::Result<()> {
    let mut lines = Vec::new();
    for line in BufReader::new(stream.try_clone()?).lines() {
        match line? {
            line if line.is_empty() => break,
            line => lines.push(line),
        }
    }
    if lines.is_empty() {
        return Ok(());
    }
    let request = Request(lines);
    asked.lock().unwrap().push(request.clone());
    answer(&request, &mut stream)
}

/// A whole answer.
pub fn reply(stream: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n")?;
    stream.write_all(body)
}

/// What an honest registry answers for an image, whatever the repository and the tag are called.
pub fn serve_image(image: &Image, request: &Request, stream: &mut TcpStream) -> std::io::Result<()> {
    let path = request.path();
    if path.contains("/manifests/") {
        return reply(stream, "200 OK", &format!("content-type: {}\r\n", image.media_type), &image.manifest);
    }
    let blobs = image.layers.iter().chain([&image.config]);
    match blobs.into_iter().find(|blob| path.ends_with(&digest(blob))) {
        Some(blob) => reply(stream, "200 OK", "", blob),
        None => reply(stream, "404 Not Found", "", b""),
    }
}
