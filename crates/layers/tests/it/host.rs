//! The host image shows what the list allows and nothing else.

use branchbox_layers::HostImage;
use std::collections::BTreeSet;
use std::path::Path;

use crate::support::root;

/// Things of a host that must never be readable in its image, present on this machine or not.
const FORBIDDEN: &[&str] = &[
    "etc/ssh",
    "etc/ssl/private",
    "etc/sudoers",
    "etc/sudoers.d",
    "etc/shadow-",
    "etc/gshadow-",
    "etc/passwd-",
    "etc/NetworkManager",
    "etc/docker",
    "etc/kubernetes",
    "etc/wireguard",
    "etc/apt/auth.conf",
    "etc/apt/auth.conf.d",
    "etc/security/opasswd",
    "etc/npmrc",
    "etc/wgetrc",
    "etc/krb5.keytab",
    "etc/ldap",
    "etc/mysql",
    "etc/postgresql",
    "etc/cron.d",
    "etc/systemd",
    "etc/ppp",
    "etc/maven/settings.xml",
    "etc/letsencrypt",
    "root/.ssh",
    "root/.bash_history",
    "root/.cargo",
    "var/lib/docker",
    "var/lib/postgresql",
    "var/log/auth.log",
    "var/lib/sudo",
    "boot/grub",
    "srv/secret",
    "home/ann",
    "work",
    "run/secrets",
];

#[test]
fn nothing_forbidden_is_in_the_skeleton() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = HostImage::prepare(dir.path(), Path::new("/bin/true")).unwrap();
    for path in FORBIDDEN {
        assert!(image.skeleton.join(path).symlink_metadata().is_err(), "{path} is in the image");
    }
    let host_shadow = std::fs::read_to_string("/etc/shadow").unwrap_or_default();
    let ours = std::fs::read_to_string(image.skeleton.join("etc/shadow")).unwrap();
    for hash in host_shadow.lines().filter_map(|line| line.split(':').nth(1)).filter(|hash| hash.len() > 4) {
        assert!(!ours.contains(hash));
    }
    for present in ["etc/passwd", "etc/ssl/certs", "etc/nsswitch.conf", "dev/null", "workspace", "etc/pip.conf", "bin"]
    {
        assert!(image.skeleton.join(present).symlink_metadata().is_ok(), "{present} is missing");
    }
    let top: BTreeSet<String> =
        std::fs::read_dir(&image.skeleton).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    for name in &top {
        let known = "bin boot dev etc home lib lib32 lib64 libx32 media mnt opt proc root run sbin srv sys tmp usr var workspace .branchbox";
        assert!(known.split(' ').any(|k| k == name), "{name} at the top");
    }
}

/// A made-up host with a secret wherever one could hide behind an allowed name.
fn planted_host(root: &Path) {
    for dir in [
        "usr/bin",
        "etc/ssl/certs",
        "etc/ssl/private",
        "etc/apt/sources.list.d",
        "etc/apt/auth.conf.d",
        "etc/php",
        "etc/ssh",
    ] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    for (path, text) in [
        ("etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
        ("etc/shadow", "root:$6$SECRET:1::::::\n"),
        ("etc/os-release", "ID=made-up\n"),
        ("etc/ssl/certs/ca.crt", "public"),
        ("etc/ssl/certs/site.key", "SECRET"),
        ("etc/ssl/certs/odd.pem", "-----BEGIN PRIVATE KEY-----\nSECRET\n"),
        ("etc/ssl/private/site.pem", "SECRET"),
        ("etc/apt/sources.list.d/fine.list", "deb https://deb.example/ stable main\n"),
        ("etc/apt/sources.list.d/private.list", "deb https://u:SECRET@deb.example/ stable main\n"),
        ("etc/apt/auth.conf.d/x", "SECRET"),
        ("etc/php/php.ini", "mysqli.default_password = SECRET\n"),
        ("etc/ssh/ssh_host_ed25519_key", "SECRET"),
        ("etc/unknown.conf", "SECRET"),
        ("etc/profile", "umask 022\n"),
    ] {
        std::fs::write(root.join(path), text).unwrap();
    }
    std::fs::write(root.join("etc/host.conf"), "SECRET").unwrap();
    std::fs::set_permissions(root.join("etc/host.conf"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("usr/bin", root.join("bin")).unwrap();
}

#[test]
fn planted_secrets_stay_outside() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let host = dir.path().join("host");
    planted_host(&host);
    let image = HostImage::prepare_from(&host, &dir.path().join("images"), Path::new("/bin/true")).unwrap();
    let mut files = Vec::new();
    walk(&image.skeleton, &mut files);
    for file in &files {
        let text = std::fs::read(file).unwrap();
        assert!(!text.windows(6).any(|w| w == b"SECRET"), "{}", file.display());
    }
    for present in ["etc/ssl/certs/ca.crt", "etc/apt/sources.list.d/fine.list", "etc/profile", "etc/os-release"] {
        assert!(image.skeleton.join(present).exists(), "{present}");
    }
    assert_eq!(std::fs::read_link(image.skeleton.join("bin")).unwrap(), Path::new("usr/bin"));
    assert!(image.left_out.iter().any(|path| path.ends_with("private.list")), "{:?}", image.left_out);
}

fn walk(dir: &Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => walk(&entry.path(), files),
            kind if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

#[test]
fn an_image_is_built_once_and_again_when_the_host_changes() {
    if !root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (host, images) = (dir.path().join("host"), dir.path().join("images"));
    planted_host(&host);
    let prepare = || HostImage::prepare_from(&host, &images, Path::new("/bin/true")).unwrap();
    let first = prepare();
    let again = prepare();
    assert_eq!((&first.identity, &first.skeleton), (&again.identity, &again.skeleton));
    std::fs::write(host.join("etc/profile"), "umask 077\n").unwrap();
    let other_etc = prepare();
    assert_eq!(first.identity, other_etc.identity);
    assert_ne!(first.skeleton, other_etc.skeleton);
    std::fs::write(host.join("etc/os-release"), "ID=other\n").unwrap();
    assert_ne!(first.identity, prepare().identity);
    assert_eq!(std::fs::read_dir(&images).unwrap().count(), 4, "three skeletons and one tools layer");
}
