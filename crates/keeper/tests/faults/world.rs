//! A sandbox with programs that check themselves, a keeper that can be armed, and the look at both.

use crate::state::{Guest, Keeper, State, ended};
use crate::watch::{self, Process};
use branchbox_jail::cgroup::{Layout, SandboxCgroup};
use branchbox_protocol::guest::ExecState;
use branchbox_protocol::keeper::{self, Call, KeeperError, Reply};
use branchbox_protocol::{decode, encode, recv_packet, send_packet};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

pub const RUNTIME: (u32, u32) = (1000, 1000);
/// How long a program may take to count on; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);
const SOURCE: &str = include_str!("programs.c");

/// What is started, and the file it counts in.
const PROGRAMS: &[(&str, &str)] = &[
    ("exec ./programs server", "server"),
    ("exec ./programs timed", "timed"),
    ("exec ./programs spin", "spin"),
    (PYTHON, "python"),
    (PIPELINE, "pipeline"),
    ("mkfifo hold; sleep 100000 & kill -STOP $!; echo $! > stopped; exec 3<> hold; read -u 3", ""),
];
const PYTHON: &str = r#"exec python3 -c '
import os, threading, time, queue
out = os.open("python", os.O_CREAT | os.O_RDWR); jobs = queue.Queue(); n = 0
def work(pause):
    while True:
        begun = time.monotonic(); time.sleep(pause); assert time.monotonic() - begun >= pause * 0.99
        jobs.put(1)
for pause in (0.004, 0.006, 0.01): threading.Thread(target=work, args=(pause,), daemon=True).start()
while True:
    n += jobs.get(); os.pwrite(out, b"%020d" % n, 0)
'"#;
/// The sleep is a program of its own: a capture may meet it in fork, in exec and at its end.
const PIPELINE: &str =
    "while sleep 0.02; do echo tick; done | while read line; do n=$((n+1)); printf '%020d' $n > pipeline; done";

/// How a call to a keeper ended.
#[derive(Debug)]
pub enum Outcome {
    Done,
    Failed(KeeperError),
    Died,
}

pub struct World {
    pub state: State,
    pub armed: PathBuf,
    pub list: PathBuf,
    pub guest: Guest,
    keeper: Option<(Child, Keeper)>,
    guest_pid: i32,
    before: BTreeMap<i32, Process>,
    captures: u32,
}

impl World {
    /// A sandbox in which every program counts.
    pub fn new() -> Self {
        let mut state = State::new();
        let (armed, list) = (state.directory.join("armed"), state.directory.join("points"));
        state.environment = vec![("BRANCHBOX_FAULT_FILE", armed.clone()), ("BRANCHBOX_FAULT_LIST", list.clone())];
        let (child, keeper, running) = state.running();
        let mut guest = state.guest();
        let built = guest.run(
            &format!("cat > programs.c <<'END'\n{SOURCE}\nEND\ncc -O1 -mno-red-zone -pthread -o programs programs.c"),
            RUNTIME,
        );
        assert_eq!(built, "", "the programs could not be built");
        for (script, _) in PROGRAMS {
            guest.spawn(script, RUNTIME);
        }
        let guest_pid = running.guest_pid;
        let keeper = Some((child, keeper));
        let mut world = Self { state, armed, list, guest, keeper, guest_pid, before: BTreeMap::new(), captures: 0 };
        world.counts_on();
        world.settle();
        world
    }

    fn cgroup(&self) -> PathBuf {
        SandboxCgroup::open(&Layout::detect().unwrap(), &self.state.config.id).work_path()
    }

    /// Takes what is there now as what is to stay: everything but what comes and goes by itself.
    pub fn settle(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let first = watch::processes(&self.cgroup()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let second = watch::processes(&self.cgroup()).unwrap();
            let is_stopped = second.values().any(Process::is_stopped);
            self.before = second.into_iter().filter(|(pid, process)| first.get(pid) == Some(process)).collect();
            if is_stopped && self.before.len() >= PROGRAMS.len() + 2 {
                return;
            }
            assert!(Instant::now() < deadline, "the programs do not settle: {:?}", self.before);
        }
    }

    /// Every counter moves, in the sandbox of that first process.
    pub fn counts_on(&self) {
        counts_on(self.guest_pid);
    }

    /// Arms a point for passages from now on.
    pub fn arm(&self, word: &str) {
        std::fs::write(&self.armed, format!("{word} {}", self.captures)).unwrap();
    }

    pub fn disarm(&self) {
        std::fs::write(&self.armed, "").unwrap();
    }

    /// One capture with processes; what it made is removed, unless it is to be kept.
    pub fn capture(&mut self, keep: bool) -> (Outcome, PathBuf, String) {
        self.captures += 1;
        let name = format!("c{}", self.captures);
        let (image, layer) = (self.state.directory.join(&name), self.state.pool.layer_path(&name).unwrap());
        let (_, keeper) = self.keeper.as_mut().unwrap();
        let outcome = call(keeper, Call::Capture { image: Some(image.clone()), layer });
        let outcome = match outcome {
            Some(Ok(Reply::Captured(_))) => Outcome::Done,
            Some(Ok(other)) => panic!("{other:?}"),
            Some(Err(error)) => Outcome::Failed(error),
            None => Outcome::Died,
        };
        if matches!(outcome, Outcome::Failed(_)) {
            assert!(!image.exists(), "an image of a capture that failed: {outcome:?}");
        }
        if !keep {
            // As the node does: a layer has the node's own name, and an image of a dead keeper is found by it too.
            self.forget(&name);
        }
        (outcome, image, name)
    }

    /// One pause, and where its image goes. After it is done there is neither sandbox nor keeper.
    pub fn pause(&mut self) -> (Outcome, PathBuf) {
        self.captures += 1;
        let image = self.state.config.sandbox_dir.join("paused");
        let (_, keeper) = self.keeper.as_mut().unwrap();
        let outcome = match call(keeper, Call::Pause { image: image.clone() }) {
            Some(Ok(Reply::Paused { .. })) => Outcome::Done,
            Some(Ok(other)) => panic!("{other:?}"),
            Some(Err(error)) => Outcome::Failed(error),
            None => Outcome::Died,
        };
        (outcome, image)
    }

    /// After a pause.
    pub fn assert_gone(mut self) {
        let (mut child, _) = self.keeper.take().unwrap();
        assert!(ended(&mut child).success());
        self.state.assert_gone(self.guest_pid);
    }

    pub fn forget(&self, name: &str) {
        let _ = std::fs::remove_dir_all(self.state.directory.join(name));
        let _ = self.state.pool.remove_layer(name);
    }

    /// Asks for a capture and kills the keeper that long after, wherever it is.
    pub fn kill_after(&mut self, wait: Duration) {
        self.captures += 1;
        let name = format!("c{}", self.captures);
        let (image, layer) = (self.state.directory.join(&name), self.state.pool.layer_path(&name).unwrap());
        let (child, keeper) = self.keeper.as_mut().unwrap();
        let request = keeper::Request { id: 7, call: Call::Capture { image: Some(image), layer } };
        send_packet(&keeper.socket, &encode(&request).unwrap(), &[]).unwrap();
        std::thread::sleep(wait);
        child.kill().unwrap();
        self.bury();
        self.forget(&name);
    }

    /// The keeper that was told to die is dead.
    pub fn bury(&mut self) {
        let (mut child, _) = self.keeper.take().unwrap();
        let status = ended(&mut child);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{}", self.state.log());
    }

    pub fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    /// Starts a keeper without waiting for it.
    pub fn start(&mut self) -> Child {
        self.state.start()
    }

    /// Starts the next keeper, which adopts the sandbox.
    pub fn adopt(&mut self) {
        let (child, keeper, running) = self.state.running();
        assert_eq!(running.guest_pid, self.guest_pid, "the sandbox was not adopted but made anew");
        let log = self.state.log();
        assert!(!log.contains("what the last keeper left"), "{log}");
        self.keeper = Some((child, keeper));
    }

    /// Nothing in the sandbox is other than before, also after everything has counted on.
    pub fn check(&self, when: &str) {
        self.is_as_before(when);
        self.counts_on();
        self.is_as_before(when);
    }

    /// Waits, since a shell that is about to fork blocks signals for that moment.
    fn is_as_before(&self, when: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let problems = self.problems();
            if problems.is_empty() {
                return;
            }
            let noticed = errors(self.guest_pid);
            assert!(noticed.is_empty() && Instant::now() < deadline, "{when}:\n{problems}{}", self.state.log());
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn problems(&self) -> String {
        let mut text = errors(self.guest_pid);
        let cgroup = self.cgroup();
        let events = std::fs::read_to_string(cgroup.join("cgroup.events")).unwrap();
        let freeze = std::fs::read_to_string(cgroup.join("cgroup.freeze")).unwrap();
        if events.contains("frozen 1") || freeze.trim() != "0" {
            text.push_str("the cgroup is frozen\n");
        }
        let now = watch::processes(&cgroup).unwrap();
        for (pid, before) in &self.before {
            match now.get(pid) {
                None => text.push_str(&format!("process {pid} is gone\n")),
                Some(process) => text.push_str(&process.differs(before, *pid)),
            }
        }
        now.keys().for_each(|pid| text.push_str(&Process::disorder(*pid)));
        text
    }

    /// The names of the points that one capture passes, in order.
    pub fn points(&mut self) -> Vec<String> {
        let _ = std::fs::remove_file(&self.list);
        let (outcome, ..) = self.capture(false);
        assert!(matches!(outcome, Outcome::Done), "{outcome:?}\n{}", self.state.log());
        names(&self.list)
    }

    pub fn shut_down(mut self) {
        let (mut child, mut keeper) = self.keeper.take().unwrap();
        assert!(matches!(call(&mut keeper, Call::Shutdown), Some(Ok(Reply::Ended(_)))));
        assert!(ended(&mut child).success());
        self.state.assert_gone(self.guest_pid);
    }

    pub fn run(&mut self, script: &str) -> String {
        self.guest.run(script, RUNTIME)
    }

    pub fn spawn(&mut self, script: &str) {
        let exec = self.guest.spawn(script, RUNTIME);
        assert_eq!(self.guest.state(exec), ExecState::Running);
    }
}

/// The lines of a list of points.
pub fn names(list: &std::path::Path) -> Vec<String> {
    std::fs::read_to_string(list).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// First, middle and last passage of every point, as words to arm with, in the order of first passage.
pub fn passages(points: &[String]) -> Vec<String> {
    let mut order: Vec<&String> = Vec::new();
    for name in points {
        if !order.contains(&name) {
            order.push(name);
        }
    }
    let mut words = Vec::new();
    for name in order {
        let count = points.iter().filter(|other| *other == name).count();
        let mut chosen = vec![1, count.div_ceil(2), count];
        chosen.dedup();
        words.extend(chosen.into_iter().map(|passage| format!("{name}#{passage}")));
    }
    words
}

fn read(guest_pid: i32, name: &str) -> String {
    std::fs::read_to_string(format!("/proc/{guest_pid}/root/workspace/{name}")).unwrap_or_default()
}

/// What the programs of a sandbox noticed.
pub fn errors(guest_pid: i32) -> String {
    read(guest_pid, "errors")
}

/// Every counter moves.
pub fn counts_on(guest_pid: i32) {
    let deadline = Instant::now() + PATIENCE;
    for (_, name) in PROGRAMS.iter().filter(|(_, name)| !name.is_empty()) {
        let count = || read(guest_pid, name).parse::<u64>().unwrap_or(0);
        let first = count();
        while count() <= first + 1 {
            assert!(Instant::now() < deadline, "{name} stands still at {first}: {}", errors(guest_pid));
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    assert_eq!(errors(guest_pid), "");
}

/// A call whose keeper may die.
pub fn call(keeper: &mut Keeper, call: Call) -> Option<Result<Reply, KeeperError>> {
    send_packet(&keeper.socket, &encode(&keeper::Request { id: 7, call }).unwrap(), &[]).ok()?;
    let response: keeper::Response = decode(&recv_packet(&keeper.socket).ok()?.bytes).unwrap();
    Some(response.result)
}
