//! Writing back through a real overlay: what arrives, what never does, and what stops it.

use crate::changes::after_running;
use crate::support::{private_mounts, root};
use branchbox_layers::changes::Owners;
use branchbox_layers::writeback::{Guarded, Plan, WriteBackError, baseline};
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

struct Scene {
    _dir: tempfile::TempDir,
    up: PathBuf,
    project: PathBuf,
    journals: PathBuf,
    baseline: SystemTime,
}

impl Scene {
    /// Runs `script` over a project made by `prepare`.
    fn new(prepare: &str, script: &str) -> Self {
        private_mounts();
        let dir = tempfile::tempdir().unwrap();
        let (up, project) = after_running(dir.path(), prepare, script);
        let journals = dir.path().join("journals");
        let baseline = baseline();
        // The file clock ticks every few milliseconds; what comes now is later by it.
        std::thread::sleep(Duration::from_millis(20));
        Self { _dir: dir, up, project, journals, baseline }
    }

    fn plan(&self) -> Plan {
        let owners = Owners { outside: (0, 0), inside: (0, 0) };
        Plan::new(&self.up, &self.project, owners, self.baseline).unwrap()
    }

    fn stat(&self, name: &str) -> std::fs::Metadata {
        self.project.join(name).symlink_metadata().unwrap()
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.project.join(name)).unwrap()
    }
}

#[test]
fn a_step_arrives_with_the_owner_of_the_directory_and_without_set_id_bits() {
    if !root() {
        return;
    }
    let prepare =
        "mkdir -p src old/deep m; for f in src/a src/b old/deep/x m/mode; do echo $f > $f; done; chown -R 1234:1235 .";
    let script = "echo more >> src/a; rm src/b; rm -r old; mkdir -p new/dir; echo n > new/dir/n; ln -s ../src/a new/link; \
        cp /usr/bin/env suid; chmod 6755 suid; chmod 700 m/mode; mkfifo pipe; mv src lib; touch -d @1000 new/dir/n";
    let scene = Scene::new(prepare, script);
    let plan = scene.plan();
    assert!(plan.conflicts.is_empty(), "{plan}");
    assert_eq!(plan.refused.len(), 1, "{plan}");
    let applied = plan.apply(&scene.journals, Guarded::Leave).unwrap();
    assert_eq!(applied.guarded_left_out, 0);
    assert_eq!(scene.text("lib/a"), "src/a\nmore\n");
    for gone in ["src", "old", "pipe"] {
        assert!(scene.project.join(gone).symlink_metadata().is_err(), "{gone}");
    }
    for made in ["lib", "lib/a", "new", "new/dir", "new/dir/n", "new/link", "suid", "m/mode"] {
        assert_eq!((scene.stat(made).uid(), scene.stat(made).gid()), (1234, 1235), "{made}");
    }
    assert_eq!(scene.stat("suid").mode() & 0o7777, 0o755);
    assert_eq!(scene.stat("m/mode").mode() & 0o7777, 0o700);
    assert_eq!(scene.stat("new/dir/n").mtime(), 1000);
    assert_eq!(std::fs::read_link(scene.project.join("new/link")).unwrap(), Path::new("../src/a"));
    let again = scene.plan();
    assert!(again.is_empty(), "{again}");
    let left: Vec<_> = std::fs::read_dir(&scene.project).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("branchbox")), "{left:?}");
    assert_eq!(std::fs::read_dir(&scene.journals).unwrap().count(), 0);
}

#[test]
fn a_change_on_the_host_meanwhile_is_a_conflict_and_nothing_is_written() {
    if !root() {
        return;
    }
    let prepare = "mkdir d e; for f in a b d/x e/y; do echo $f > $f; done";
    let script = "echo step >> a; rm -r d; echo new > new; echo s >> e/y";
    for touch in ["a", "d/x", "new", "e/y gone", "d/added"] {
        let scene = Scene::new(prepare, script);
        match touch.strip_suffix(" gone") {
            Some(gone) => std::fs::remove_file(scene.project.join(gone)).unwrap(),
            None => std::fs::write(scene.project.join(touch), "host").unwrap(),
        }
        let error = scene.plan().apply(&scene.journals, Guarded::Leave).unwrap_err();
        assert!(matches!(&error, WriteBackError::Conflict { paths } if paths.len() == 1), "{touch}: {error}");
        assert_eq!(scene.text("b"), "b\n");
        if touch != "a" {
            assert_eq!(scene.text("a"), "a\n");
        }
    }
}

#[test]
fn a_change_between_plan_and_yes_is_a_conflict_too() {
    if !root() {
        return;
    }
    let scene = Scene::new("echo a > a; echo b > b", "echo step >> a; echo step >> b");
    let plan = scene.plan();
    std::fs::write(scene.project.join("b"), "host").unwrap();
    let error = plan.apply(&scene.journals, Guarded::Leave).unwrap_err();
    assert!(matches!(error, WriteBackError::Conflict { .. }), "{error}");
    assert_eq!((scene.text("a"), scene.text("b")), ("a\n".into(), "host".into()));
    assert_eq!(std::fs::read_dir(&scene.journals).unwrap().count(), 0);
}

#[test]
fn what_the_host_runs_by_itself_needs_its_own_word() {
    if !root() {
        return;
    }
    let prepare = "mkdir -p .git/hooks; echo '[core]' > .git/config; echo s > .git/hooks/pre-commit.sample";
    let script = "echo evil > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit .git/hooks/pre-commit.sample; \
        echo '\tfsmonitor = evil' >> .git/config; echo evil > .envrc; ln -s /tmp .vscode; echo fine > fine; echo i > .git/index";
    let scene = Scene::new(prepare, script);
    let plan = scene.plan();
    assert_eq!(plan.guarded().count(), 5, "{plan}");
    let applied = plan.apply(&scene.journals, Guarded::Leave).unwrap();
    assert_eq!(applied.guarded_left_out, 5);
    assert_eq!((scene.text(".git/config").as_str(), scene.text("fine").as_str()), ("[core]\n", "fine\n"));
    assert!(!scene.project.join(".git/hooks/pre-commit").exists() && scene.project.join(".git/index").exists());
    assert_eq!(scene.stat(".git/hooks/pre-commit.sample").mode() & 0o111, 0);
    let plan = scene.plan();
    plan.apply(&scene.journals, Guarded::Write).unwrap();
    assert_eq!(scene.text(".envrc"), "evil\n");
}

#[test]
fn a_symlink_on_either_side_leads_nowhere() {
    if !root() {
        return;
    }
    let scene = Scene::new("mkdir d; echo x > d/x", "echo step > d/x; echo y > d/y");
    let outside = scene.project.parent().unwrap().join("outside");
    std::fs::create_dir(&outside).unwrap();
    // The host's directory is replaced by a symlink between the step and the yes.
    std::fs::rename(scene.project.join("d"), scene.project.join("d.real")).unwrap();
    symlink(&outside, scene.project.join("d")).unwrap();
    let result = Plan::new(&scene.up, &scene.project, Owners::default(), scene.baseline)
        .and_then(|plan| plan.apply(&scene.journals, Guarded::Write));
    assert!(result.is_err(), "{result:?}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    // A step that turns a directory into a symlink gets a symlink written, and nothing behind it.
    let scene = Scene::new(
        "mkdir d; echo x > d/x",
        "rm -r d; ln -s /etc d; mkdir -p .branchbox-writeback-0000/x; echo j > .branchbox-writeback-0000/x/j",
    );
    let plan = scene.plan();
    plan.apply(&scene.journals, Guarded::Write).unwrap();
    assert_eq!(std::fs::read_link(scene.project.join("d")).unwrap(), Path::new("/etc"));
    assert!(!scene.project.join(".branchbox-writeback-0000").exists());
}

#[test]
fn new_directories_hand_their_owner_on() {
    if !root() {
        return;
    }
    let scene = Scene::new(
        "mkdir mine; echo m > mine/m",
        "echo 2 > mine/m; mkdir -p mine/a/b; echo c > mine/a/b/c; echo t > top",
    );
    chown(&scene.project, Some(50), Some(51)).unwrap();
    chown(scene.project.join("mine"), Some(60), Some(61)).unwrap();
    chown(scene.project.join("mine/m"), Some(70), Some(71)).unwrap();
    let baseline = SystemTime::now() + Duration::from_secs(1);
    let plan = Plan::new(&scene.up, &scene.project, Owners::default(), baseline).unwrap();
    plan.apply(&scene.journals, Guarded::Leave).unwrap();
    let owner = |name: &str| (scene.stat(name).uid(), scene.stat(name).gid());
    assert_eq!((owner("top"), owner("mine/a/b/c"), owner("mine/m")), ((50, 51), (60, 61), (70, 71)));
}
