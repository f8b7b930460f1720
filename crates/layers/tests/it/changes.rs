//! What the walk over an upper says, against what was really done through the overlay.

use crate::support::{attach, private_mounts, root, run_inside, spec, tree};
use branchbox_layers::changes::{ChangeKind, Changes, Owners, changes};
use branchbox_model::PoolDriver;
use std::path::{Path, PathBuf};

/// A shell's root with a project in `/p`, mounted as a tree of its own; runs `script` there.
pub fn after_running(dir: &Path, prepare: &str, script: &str) -> (PathBuf, PathBuf) {
    let (project, lower, upper, at) = (dir.join("project"), dir.join("lower"), dir.join("upper"), dir.join("at"));
    for made in [&project, &lower.join("usr"), &lower.join("p"), &at] {
        std::fs::create_dir_all(made).unwrap();
    }
    for link in ["bin", "lib", "lib64", "sbin"] {
        std::os::unix::fs::symlink(format!("usr/{link}"), lower.join(link)).unwrap();
    }
    let prepared = std::process::Command::new("sh").args(["-ec", prepare]).current_dir(&project).status().unwrap();
    assert!(prepared.success());
    let trees = vec![
        tree("root", vec![lower], "/"),
        tree("usr", vec!["/usr".into()], "/usr"),
        tree("p", vec![project.clone()], "/p"),
    ];
    attach(&spec(&upper, PoolDriver::Plain, trees), &at);
    run_inside(&at, 0, &format!("cd /p; {script}"));
    (upper.join("p/up"), project)
}

fn lines(found: &Changes) -> Vec<String> {
    let letter = |kind| match kind {
        ChangeKind::Added => 'A',
        ChangeKind::Changed => 'C',
        ChangeKind::Deleted => 'D',
        ChangeKind::Meta => 'M',
    };
    found.list.iter().map(|c| format!("{} {}", letter(c.kind), c.path.display())).collect()
}

fn diff(prepare: &str, script: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    private_mounts();
    let (up, project) = after_running(dir.path(), prepare, script);
    lines(&changes(&up, &[project], Owners::default(), 1000).unwrap())
}

#[test]
fn every_kind_of_change_is_named_and_nothing_else() {
    if !root() {
        return;
    }
    let prepare = "mkdir -p d/e keep; for f in same edit gone meta type touch d/e/f d/g keep/k; do echo $f > $f; done; ln -s a link";
    let script = "echo x >> edit; rm gone; chmod 600 meta; rm type; mkdir type; echo n > type/n; touch touch; \
        cp same tmp; cat tmp > same; rm tmp; ln -sf b link; rm -r d; echo new > new; mkfifo pipe; touch keep/k";
    let expected = ["D d", "C edit", "D gone", "C link", "M meta", "A new", "A pipe", "C type", "A type/n"];
    assert_eq!(diff(prepare, script), expected);
}

#[test]
fn moved_and_replaced_directories_are_seen_through() {
    if !root() {
        return;
    }
    let prepare = "mkdir -p a/sub b c; echo 1 > a/one; echo 2 > a/sub/two; echo b > b/b; echo x > c/x; echo y > c/y";
    let script = "mv a moved; echo 3 > moved/three; rm -r b; mkdir b; echo b > b/b; rm -r c; mkdir c; echo x2 > c/x";
    let expected =
        ["D a", "C c/x", "D c/y", "A moved", "A moved/one", "A moved/sub", "A moved/sub/two", "A moved/three"];
    assert_eq!(diff(prepare, script), expected);
    // A directory that moved twice and one that took its place.
    let expected = ["A a/new", "D a/one", "D a/sub", "A z", "A z/one", "A z/sub", "A z/sub/two"];
    assert_eq!(diff(prepare, "mv a b/t; mv b/t z; mkdir a; echo n > a/new"), expected);
}

#[test]
fn a_list_has_a_limit_and_says_how_many_more() {
    if !root() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    let prepare = "echo a > t; echo b >> t; mkdir d; touch d/1 d/2";
    let script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i > $i; done; echo c >> t; rm -r d; printf 'a\\0b' > bin";
    let (up, project) = after_running(dir.path(), prepare, script);
    let found = changes(&up, std::slice::from_ref(&project), Owners::default(), 4).unwrap();
    assert_eq!((found.list.len(), found.more), (4, 8));
    let all = changes(&up, &[project], Owners::default(), 1000).unwrap();
    let of = |name: &str| all.list.iter().find(|c| c.path == Path::new(name)).unwrap();
    assert_eq!((of("t").lines, of("t").is_binary), (Some((1, 0)), Some(false)));
    assert_eq!((of("bin").lines, of("bin").is_binary), (None, Some(true)));
    assert_eq!(of("d").entries_below, 2);
    assert_eq!(of("t").before.unwrap().size, 4);
    assert_eq!(of("t").after.unwrap().size, 6);
}
