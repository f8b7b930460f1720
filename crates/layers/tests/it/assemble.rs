//! Overlays over id-mapped clones: ids on disk stay unshifted, lowers stay untouched, owners appear as asked.

use crate::support::{RANGE, attach, private_mounts, root, run_inside, spec, tree};
use branchbox_layers::changes::{Owners, changes};
use branchbox_layers::{AssembleError, HostImage, assemble};
use branchbox_model::{Bind, PoolDriver, Tree};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

fn host_image(dir: &Path) -> HostImage {
    HostImage::prepare(&dir.join("images"), Path::new("/bin/true")).unwrap()
}

#[test]
fn writes_by_shifted_ids_are_unshifted_on_disk() {
    if !root() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    let upper = dir.path().join("upper");
    let image = host_image(dir.path());
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    attach(&image.root_spec(upper.clone(), PoolDriver::Plain), &at);

    run_inside(&at, 1000, "echo hello > /workspace/f; mkdir /workspace/d; chmod 640 /workspace/f");
    run_inside(
        &at,
        0,
        "echo x > /etc/new; rm /usr/bin/env; chown 33:33 /etc/new; mkdir /opt/o; echo 1 >> /var/lib/dpkg/status",
    );
    let f = upper.join("root/up/workspace/f").symlink_metadata().unwrap();
    assert_eq!((f.uid(), f.gid(), f.mode() & 0o777), (1000, 1000, 0o640));
    let new = upper.join("root/up/etc/new").symlink_metadata().unwrap();
    assert_eq!((new.uid(), new.gid()), (33, 33));
    let whiteout = upper.join("usr/up/bin/env").symlink_metadata().unwrap();
    assert_eq!((whiteout.mode() & 0o170_000, whiteout.rdev()), (0o020_000, 0));
    assert!(Path::new("/usr/bin/env").exists() && upper.join("opt/up/o").is_dir());
    assert_eq!(
        run_inside(&at, 1000, "stat -c %u:%g /workspace / /usr/bin/sudo; id -un"),
        "1000:1000\n0:0\n0:0\nruntime\n"
    );
}

#[test]
fn a_users_directory_belongs_to_the_sandbox_user_and_is_never_written() {
    if !root() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let project = dir.path().join("project");
    std::fs::create_dir(&project).unwrap();
    for (name, owner) in [("mine", 1234), ("roots", 0), ("others", 4321)] {
        std::fs::write(project.join(name), name).unwrap();
        chown(project.join(name), Some(owner), Some(owner)).unwrap();
    }
    chown(&project, Some(1234), Some(1234)).unwrap();
    let image = host_image(dir.path());
    let upper = dir.path().join("upper");
    let mut root = image.root_spec(upper.clone(), PoolDriver::Plain);
    let target = PathBuf::from("/home/me/project");
    let owners = ((1234, 1234), (1000, 1000));
    root.trees.push(Tree {
        name: "dir".into(),
        lower: vec![project.clone()],
        target,
        owner_outside: owners.0,
        owner_inside: owners.1,
    });
    root.binds.push(Bind {
        source: project.join("mine"),
        target: "/home/me/one".into(),
        read_only: true,
        owner_outside: owners.0,
        owner_inside: owners.1,
    });
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    attach(&root, &at);

    let seen = run_inside(&at, 1000, "cd /home/me/project; stat -c '%n %u' . mine roots others; cat /home/me/one");
    assert_eq!(seen, ". 1000\nmine 1000\nroots 0\nothers 4321\nmine");
    run_inside(
        &at,
        1000,
        "cd /home/me/project; echo more >> mine; echo n > n; mv roots renamed; rm -f others; ! echo x > /home/me/one",
    );
    run_inside(&at, 1000, "cd /home/me/project; rm -rf ./*; test -z \"$(ls)\"");
    let names: Vec<_> = std::fs::read_dir(&project).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(std::fs::read_to_string(project.join("mine")).unwrap(), "mine");
    run_inside(&at, 1000, "echo mine > /home/me/project/again");
    let again = upper.join("dir/up/again").symlink_metadata().unwrap();
    assert_eq!((again.uid(), again.gid()), (1000, 1000));
}

#[test]
fn what_cannot_be_put_together_is_named() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let upper = dir.path().join("upper");
    let bad = |trees| assemble(&spec(&upper, PoolDriver::Plain, trees), RANGE).unwrap_err();
    assert!(matches!(bad(vec![]), AssembleError::Spec(_)));
    assert!(matches!(bad(vec![tree("../x", vec!["/usr".into()], "/")]), AssembleError::Spec(_)));
    let proc = bad(vec![tree("root", vec!["/proc".into()], "/")]);
    assert!(matches!(&proc, AssembleError::NoIdMap { path } if path == Path::new("/proc")), "{proc}");
    let none = bad(vec![tree("root", vec![dir.path().join("none")], "/")]);
    assert!(matches!(none, AssembleError::Clone { .. }), "{none}");
}

#[test]
fn a_hostile_upper_cannot_lead_a_mount_point_outside() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (upper, lower, outside) = (dir.path().join("upper"), dir.path().join("lower"), dir.path().join("outside"));
    for made in [&lower, &outside, &upper.join("root/up")] {
        std::fs::create_dir_all(made).unwrap();
    }
    std::os::unix::fs::symlink(&outside, upper.join("root/up/home")).unwrap();
    let trees = vec![tree("root", vec![lower.clone()], "/"), tree("dir", vec![lower], "/home/me")];
    let error = assemble(&spec(&upper, PoolDriver::Plain, trees), RANGE).unwrap_err();
    assert!(matches!(error, AssembleError::Target { .. }), "{error}");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_host_image_runs_the_hosts_tools() {
    if !root() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    let image = host_image(dir.path());
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    attach(&image.root_spec(dir.path().join("upper"), PoolDriver::Plain), &at);
    let script = "git config --get safe.directory; getent hosts localhost >/dev/null; su runtime -s /bin/sh -c 'id -u'; \
        useradd bob; id -u bob; python3 -c 'print(1)'; ls /etc/ssl/openssl.cnf";
    assert_eq!(run_inside(&at, 0, script), "*\n1000\n1001\n1\n/etc/ssl/openssl.cnf\n");
    if !Path::new("/usr/bin/dpkg").exists() {
        return;
    }
    let package = "mkdir -p /tmp/p/DEBIAN /tmp/p/usr/share/zz; echo hi > /tmp/p/usr/share/zz/f; \
        printf 'Package: zz\\nVersion: 1\\nArchitecture: all\\nMaintainer: x\\nDescription: y\\n' > /tmp/p/DEBIAN/control; \
        dpkg-deb -b /tmp/p /tmp/zz.deb >/dev/null; dpkg -i /tmp/zz.deb >/dev/null; cat /usr/share/zz/f; \
        apt-get remove -y zz >/dev/null; test ! -e /usr/share/zz";
    assert_eq!(run_inside(&at, 0, package), "hi\n");
    assert!(!Path::new("/usr/share/zz").exists());
}

#[test]
fn mount_points_in_a_users_directory_are_no_change_of_it() {
    if !root() {
        return;
    }
    private_mounts();
    let dir = tempfile::tempdir().unwrap();
    let project = dir.path().join("project");
    std::fs::create_dir_all(project.join("sub/there")).unwrap();
    for owned in ["", "sub", "sub/there"] {
        chown(project.join(owned), Some(1234), Some(1235)).unwrap();
    }
    let image = host_image(dir.path());
    let upper = dir.path().join("upper");
    let mut root = image.root_spec(upper.clone(), PoolDriver::Plain);
    let (owner_outside, owner_inside) = ((1234, 1235), (1000, 1000));
    root.trees.push(Tree {
        name: "dir".into(),
        lower: vec![project.clone()],
        target: "/home/me".into(),
        owner_outside,
        owner_inside,
    });
    let bind = |target: &str| Bind {
        source: "/etc/ssl".into(),
        target: target.into(),
        read_only: true,
        owner_outside: (0, 0),
        owner_inside: (0, 0),
    };
    root.binds = vec![bind("/home/me/sub/there"), bind("/home/me/sub/new")];
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    attach(&root, &at);
    assert_eq!(
        run_inside(&at, 1000, "cd /home/me; stat -c %u:%g . sub; ls sub/there/certs | head -1 | wc -l"),
        "1000:1000\n1000:1000\n1\n"
    );
    assert!(!upper.join("dir/up/sub/there").exists(), "what is below needs no mount point");
    let owners = Owners { outside: owner_outside, inside: owner_inside };
    let found = changes(&upper.join("dir/up"), &[project], owners, 10).unwrap();
    let paths: Vec<_> = found.list.iter().map(|change| change.path.display().to_string()).collect();
    assert_eq!(paths, ["sub/new"]);
}
