//! File operations.

use crate::Test;
use crate::harness::{Peer, Sandbox, bash};
use branchbox_protocol::guest::{Call, FileEntry, FileKind, FileOp, FileReply, GuestError, Reply};

pub const TESTS: &[Test] = &[
    ("files::content_is_written_and_read_in_pieces", content_is_written_and_read_in_pieces),
    ("files::the_user_s_rights_decide", the_user_s_rights_decide),
    ("files::listings_have_depth_pattern_and_limit", listings_have_depth_pattern_and_limit),
    ("files::entries_are_made_moved_and_removed", entries_are_made_moved_and_removed),
    ("files::hostile_paths_and_files_do_no_harm", hostile_paths_and_files_do_no_harm),
];

const USER: (u32, u32) = (1000, 1000);
const ROOT: (u32, u32) = (0, 0);

fn op(node: &mut Peer, user: (u32, u32), op: FileOp) -> Result<FileReply, i32> {
    match node.call(Call::File { user, op }) {
        Ok(Reply::File(reply)) => Ok(reply),
        Err(GuestError::File { errno, .. }) => Err(errno),
        other => panic!("{other:?}"),
    }
}

fn write(path: &str, offset: u64, bytes: &[u8], last: bool) -> FileOp {
    FileOp::Write { path: path.into(), offset, bytes: bytes.to_vec(), last, mode: 0o640, token: 7 }
}

fn stat(node: &mut Peer, path: &str) -> Option<FileEntry> {
    match op(node, USER, FileOp::Stat { path: path.into() }) {
        Ok(FileReply::Entry(entry)) => entry,
        other => panic!("{other:?}"),
    }
}

fn read(node: &mut Peer, path: &str, offset: u64, bytes_max: u32) -> Result<(Vec<u8>, u64), i32> {
    match op(node, USER, FileOp::Read { path: path.into(), offset, bytes_max })? {
        FileReply::Content { bytes, size } => Ok((bytes, size)),
        other => panic!("{other:?}"),
    }
}

fn list(
    node: &mut Peer,
    path: &str,
    depth: u32,
    hidden: bool,
    glob: Option<&str>,
    limit: u32,
) -> Result<(Vec<String>, bool), i32> {
    let glob = glob.map(str::to_owned);
    match op(node, USER, FileOp::List { path: path.into(), depth, hidden, glob, limit })? {
        FileReply::Entries { entries, truncated } => Ok((entries.into_iter().map(|e| e.path).collect(), truncated)),
        other => panic!("{other:?}"),
    }
}

fn content_is_written_and_read_in_pieces() {
    let (_sandbox, mut node) = Sandbox::start();
    let path = "/workspace/a/b/c.bin";
    let (one, two) = (vec![1u8; 65536], vec![2u8; 100]);
    assert_eq!(op(&mut node, USER, write(path, 0, &one, false)), Ok(FileReply::Done));
    assert!(stat(&mut node, path).is_none(), "nothing to see before the last piece");
    assert_eq!(op(&mut node, USER, write(path, 65536, &two, true)), Ok(FileReply::Done));
    let entry = stat(&mut node, path).unwrap();
    assert_eq!((entry.kind, entry.size, entry.mode, entry.uid, entry.gid), (FileKind::File, 65636, 0o640, 1000, 1000));
    assert_eq!(read(&mut node, path, 65530, 50), Ok(([vec![1u8; 6], vec![2u8; 44]].concat(), 65636)));
    assert_eq!(read(&mut node, path, 70_000, 50), Ok((vec![], 65636)));
    assert_eq!(op(&mut node, USER, write(path, 0, b"old", false)), Ok(FileReply::Done));
    assert_eq!(op(&mut node, USER, FileOp::WriteAbort { path: path.into(), token: 7 }), Ok(FileReply::Done));
    assert_eq!(list(&mut node, "/workspace/a/b", 1, true, None, 10), Ok((vec![path.into()], false)));
    // Through a link: the link stays.
    node.run(bash("ln -s a/b/c.bin link; ln -s nowhere dangling"));
    assert_eq!(op(&mut node, USER, write("/workspace/link", 0, b"new", true)), Ok(FileReply::Done));
    assert_eq!(read(&mut node, path, 0, 10), Ok((b"new".to_vec(), 3)));
    assert_eq!(stat(&mut node, "/workspace/link").unwrap().target.as_deref(), Some("a/b/c.bin"));
    let long = format!("/workspace/{}", "n".repeat(250));
    assert_eq!(op(&mut node, USER, write(&long, 0, b"x", true)), Ok(FileReply::Done));
    assert!(read(&mut node, "/proc/meminfo", 0, 100).unwrap().0.starts_with(b"MemTotal"));
}

fn the_user_s_rights_decide() {
    let (_sandbox, mut node) = Sandbox::start();
    assert_eq!(op(&mut node, ROOT, write("/root/secret", 0, b"s", true)), Ok(FileReply::Done));
    assert_eq!(read(&mut node, "/root/secret", 0, 10), Err(13));
    assert_eq!(op(&mut node, USER, write("/etc/passwd", 0, b"x", true)), Err(13));
    assert_eq!(op(&mut node, USER, FileOp::Chmod { path: "/etc/passwd".into(), mode: 0o777 }), Err(1));
    assert_eq!(op(&mut node, USER, FileOp::Remove { path: "/etc/passwd".into(), recursive: true }), Err(13));
    // A group of the user's counts.
    let mut spec = bash(
        "mkdir /shared; chgrp 2345 /shared; chmod 770 /shared; echo g > /shared/f; chmod 640 /shared/f; chgrp 2345 /shared/f",
    );
    spec.user = ROOT;
    node.run(spec);
    assert_eq!(read(&mut node, "/shared/f", 0, 10), Ok((b"g\n".to_vec(), 2)));
    assert_eq!(
        op(&mut node, (1001, 1001), FileOp::Read { path: "/shared/f".into(), offset: 0, bytes_max: 9 }),
        Err(13)
    );
    // And the guest is root again afterwards.
    assert!(op(&mut node, ROOT, FileOp::Read { path: "/root/secret".into(), offset: 0, bytes_max: 9 }).is_ok());
    assert_eq!(node.run(bash("id -u")).out(), "1000");
}

fn listings_have_depth_pattern_and_limit() {
    let (_sandbox, mut node) = Sandbox::start();
    node.run(bash(
        "mkdir -p d/e/f .h; touch a.py d/b.py d/e/c.py d/e/f/x.txt .h/z.py .dot; ln -s d loop; ln -s .. d/up",
    ));
    let shown = |names: &[&str]| names.iter().map(|name| format!("/workspace/{name}")).collect::<Vec<_>>();
    assert_eq!(list(&mut node, "/workspace", 1, false, None, 100), Ok((shown(&["a.py", "d", "loop"]), false)));
    assert_eq!(
        list(&mut node, "/workspace", 2, true, None, 100).unwrap().0,
        shown(&[".dot", ".h", ".h/z.py", "a.py", "d", "d/b.py", "d/e", "d/up", "loop"])
    );
    assert_eq!(
        list(&mut node, "/workspace", 10, false, Some("*.py"), 100).unwrap().0,
        shown(&["a.py", "d/b.py", "d/e/c.py"])
    );
    assert_eq!(
        list(&mut node, "/workspace", 10, false, Some("d/**/*.py"), 100).unwrap().0,
        shown(&["d/b.py", "d/e/c.py"])
    );
    assert_eq!(list(&mut node, "/workspace", 10, false, None, 2), Ok((shown(&["a.py", "d"]), true)));
    assert_eq!(list(&mut node, "/workspace/a.py", 1, false, None, 2), Err(20));
    assert_eq!(list(&mut node, "/workspace/none", 1, false, None, 2), Err(2));
    // More than fits one packet.
    node.run(bash("mkdir many; cd many; touch $(seq -f 'a-rather-long-name-that-makes-the-answer-large-%06g' 1 3000)"));
    let (names, truncated) = list(&mut node, "/workspace/many", 1, false, None, 100_000).unwrap();
    assert_eq!((names.len(), truncated), (2000, true));
}

fn entries_are_made_moved_and_removed() {
    let (_sandbox, mut node) = Sandbox::start();
    let mkdir = |path: &str, parents| FileOp::Mkdir { path: path.into(), parents };
    let rename = |from: &str, to: &str, overwrite| FileOp::Rename { from: from.into(), to: to.into(), overwrite };
    let remove = |path: &str, recursive| FileOp::Remove { path: path.into(), recursive };
    assert_eq!(op(&mut node, USER, mkdir("/workspace/x/y", false)), Err(2));
    assert_eq!(op(&mut node, USER, mkdir("/workspace/x/y", true)), Ok(FileReply::Done));
    assert_eq!(op(&mut node, USER, mkdir("/workspace/x/y", true)), Ok(FileReply::Done));
    assert_eq!(op(&mut node, USER, mkdir("/workspace/x/y", false)), Err(17));
    assert_eq!(op(&mut node, USER, write("/workspace/x/f", 0, b"1", true)), Ok(FileReply::Done));
    assert_eq!(op(&mut node, USER, write("/workspace/x/g", 0, b"2", true)), Ok(FileReply::Done));
    assert_eq!(op(&mut node, USER, rename("/workspace/x/f", "/workspace/x/g", false)), Err(17));
    assert_eq!(op(&mut node, USER, rename("/workspace/x/f", "/workspace/x/g", true)), Ok(FileReply::Done));
    assert_eq!(read(&mut node, "/workspace/x/g", 0, 9), Ok((b"1".to_vec(), 1)));
    assert_eq!(op(&mut node, USER, FileOp::Chmod { path: "/workspace/x/g".into(), mode: 0o755 }), Ok(FileReply::Done));
    assert_eq!(stat(&mut node, "/workspace/x/g").unwrap().mode, 0o755);
    node.run(bash("echo keep > kept; mkdir -p x/deep; ln -s ../../kept x/deep/link; ln -s /workspace x/all; mkdir x/none; chmod 0 x/none"));
    assert_eq!(op(&mut node, USER, remove("/workspace/x", false)), Err(39));
    assert_eq!(op(&mut node, USER, remove("/workspace/x", true)), Ok(FileReply::Removed(true)));
    assert_eq!(op(&mut node, USER, remove("/workspace/x", true)), Ok(FileReply::Removed(false)));
    assert_eq!(read(&mut node, "/workspace/kept", 0, 9), Ok((b"keep\n".to_vec(), 5)), "no link was followed");
    node.run(bash("p=t; for i in $(seq 200); do p=$p/d; done; mkdir -p $p"));
    assert_eq!(op(&mut node, USER, remove("/workspace/t", true)), Ok(FileReply::Removed(true)));
}

fn hostile_paths_and_files_do_no_harm() {
    let (_sandbox, mut node) = Sandbox::start();
    node.run(bash("mkfifo fifo; ln -s self loop; ln -s loop self; mkdir d"));
    assert_eq!(read(&mut node, "/workspace/fifo", 0, 9), Err(22));
    assert_eq!(read(&mut node, "/dev/zero", 0, 9), Err(22));
    assert_eq!(read(&mut node, "/workspace/d", 0, 9), Err(21));
    assert_eq!(read(&mut node, "/workspace/loop", 0, 9), Err(40));
    assert_eq!(read(&mut node, "/proc/self/fd/0", 0, 9), Err(40), "the guest's own descriptors are nobody's files");
    assert_eq!(read(&mut node, "relative", 0, 9), Err(22));
    assert_eq!(read(&mut node, "/a\0b", 0, 9), Err(22));
    assert_eq!(read(&mut node, &format!("/{}", "x".repeat(5000)), 0, 9), Err(36));
    assert_eq!(op(&mut node, USER, write("/workspace/d", 0, b"x", true)), Err(21));
    assert_eq!(op(&mut node, USER, write("/workspace/f", 0, &vec![0; 70_000], true)), Err(7));
    assert_eq!(op(&mut node, USER, FileOp::Remove { path: "/".into(), recursive: true }), Err(16));
    assert_eq!(
        op(&mut node, USER, FileOp::Read { path: "/workspace/f".into(), offset: u64::MAX, bytes_max: u32::MAX }),
        Err(2)
    );
    // What lies where the temporary file would go is not followed.
    node.run(bash("echo safe > victim; ln -s victim .f.bbx-0000000000000007"));
    assert_eq!(op(&mut node, USER, write("/workspace/f", 0, b"x", true)), Err(40));
    assert_eq!(read(&mut node, "/workspace/victim", 0, 9), Ok((b"safe\n".to_vec(), 5)));
    assert!(matches!(
        node.call(Call::File { user: (u32::MAX, 0), op: FileOp::Stat { path: "/".into() } }),
        Err(GuestError::BadCall(_))
    ));
}
