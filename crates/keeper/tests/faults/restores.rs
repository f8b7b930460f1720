//! Restores that are cut off at every point.

use crate::state::{Keeper, State, ended};
use crate::world::{Outcome, World, call, counts_on, names, passages};
use branchbox_jail::cgroup::{Layout, SandboxCgroup};
use branchbox_protocol::PROTOCOL_VERSION;
use branchbox_protocol::keeper::{Call, Reply};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

pub fn failing() {
    every_point("error");
}

pub fn killed() {
    every_point("kill");
}

/// A source with a capture of it.
struct Source {
    world: World,
    image: PathBuf,
    layer: String,
}

fn every_point(action: &str) {
    let mut world = World::new();
    let (outcome, image, layer) = world.capture(true);
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}\n{}", world.state.log());
    let source = Source { world, image, layer };
    let _ = std::fs::remove_file(&source.world.list);
    source.succeeds("first");
    let words = passages(&names(&source.world.list));
    for word in &words {
        source.cut(word, action);
        source.world.check(&format!("after {word}:{action} of a restore"));
    }
    source.succeeds("last");
    println!("{action}: {} passages", words.len());
    source.world.forget(&source.layer);
    source.world.shut_down();
}

impl Source {
    fn copy(&self) -> State {
        let mut copy = self.world.state.copy(&self.image, &self.layer);
        copy.environment = self.world.state.environment.clone();
        copy
    }

    /// A copy whose programs count on.
    fn succeeds(&self, when: &str) {
        let copy = self.copy();
        let (mut child, mut keeper, running) = copy.running();
        counts_on(running.guest_pid);
        assert!(matches!(call(&mut keeper, Call::Shutdown), Some(Ok(Reply::Ended(_)))), "{when}");
        assert!(ended(&mut child).success(), "{when}");
        copy.assert_gone(running.guest_pid);
        self.remove(&copy);
    }

    /// A copy that is cut off; what the node then removes by name is all that is left of it. Then a retry.
    fn cut(&self, word: &str, action: &str) {
        let copy = self.copy();
        self.world.arm(&format!("{word}:{action}"));
        let mut child = copy.start();
        let mut keeper = Keeper::connect(&copy.keeper_path());
        let answer = call(&mut keeper, Call::Hello { version: PROTOCOL_VERSION });
        let status = ended(&mut child);
        self.world.disarm();
        let group = SandboxCgroup::open(&Layout::detect().unwrap(), &copy.config.id);
        if action == "kill" {
            assert!(answer.is_none(), "{word}: {answer:?}");
            self.tasks_die(word, &copy, &group);
            group.remove().unwrap();
            for path in [copy.keeper_path(), copy.directory.join(format!("{}.guest", copy.config.id))] {
                let _ = std::fs::remove_file(path);
            }
        } else {
            let error = answer.unwrap_or_else(|| panic!("{word}: no answer\n{}", copy.log())).unwrap_err();
            assert!(error.message.contains(word.split('#').next().unwrap()), "{word}: {error:?}");
            assert_eq!(status.code(), Some(1), "{word}");
            copy.assert_gone(i32::MAX);
        }
        assert_eq!(mounts_of(&copy), "", "{word}");
        self.remove(&copy);
        if word.ends_with("#1") {
            self.succeeds(word);
        }
    }

    /// Saved processes die with a keeper that did not release them; after that they are a sandbox without a keeper.
    fn tasks_die(&self, word: &str, copy: &State, group: &SandboxCgroup) {
        let deadline = Instant::now() + PATIENCE;
        let released = ["start.released", "start.recorded"].iter().any(|point| word.starts_with(point));
        while !released && crate::watch::pids(&group.work_path()).is_ok_and(|pids| !pids.is_empty()) {
            assert!(Instant::now() < deadline, "{word}: saved processes outlive their keeper\n{}", copy.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn remove(&self, copy: &State) {
        copy.pool.remove_upper(&copy.config.id).unwrap();
        std::fs::remove_dir_all(&copy.config.sandbox_dir).unwrap();
    }
}

/// Mount points of this machine that name the sandbox.
fn mounts_of(copy: &State) -> String {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().filter(|line| line.contains(copy.config.id.as_str())).collect()
}
