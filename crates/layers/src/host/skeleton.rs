//! Building the skeleton and the tools layer.

use super::HostError;
use super::accounts::{Accounts, accounts};
use super::allow::{EMPTY, EMPTY_FILES, OUR_FILES, SYMLINKS, WHOLE};
use super::etc::copy_etc;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// Name of the list of what was left out, beside the skeleton.
const LEFT_OUT: &str = "left-out";
/// The executable as every sandbox sees it.
const GUEST_INSIDE: &str = "/.branchbox/guest";
/// Group `shadow` of Debian; elsewhere the files are root's.
const SHADOW_GROUP: &str = "shadow";

fn failed(path: &Path) -> impl FnOnce(io::Error) -> HostError {
    let path = path.to_path_buf();
    move |source| HostError::Copy { path, source }
}

/// Builds `image_dir/root` from the host below `host`.
pub(super) fn build(host: &Path, image_dir: &Path) -> Result<(), HostError> {
    let root = image_dir.join("root");
    make_directory(&root, 0o755, 0, 0)?;
    for (path, mode, uid, gid) in EMPTY {
        make_directory(&root.join(path), *mode, *uid, *gid)?;
    }
    let left_out = copy_etc(&host.join("etc"), &root.join("etc"))?;
    write_accounts(host, &root)?;
    for (path, content) in OUR_FILES {
        replace_file(&root.join(path), content, 0o644)?;
    }
    for path in EMPTY_FILES {
        replace_file(&root.join(path), "", 0o644)?;
    }
    for (path, target) in SYMLINKS {
        replace_symlink(&root.join(path), Path::new(target))?;
    }
    copy_layout(host, &root)?;
    let list: String = left_out.iter().map(|path| format!("{}\n", path.display())).collect();
    replace_file(&image_dir.join(LEFT_OUT), &list, 0o600)
}

/// The list that [`build`] wrote.
pub(super) fn read_left_out(image_dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(image_dir.join(LEFT_OUT)).unwrap_or_default();
    text.lines().map(PathBuf::from).collect()
}

/// Builds the layer of our tools: in `usr/bin`, `sudo` is a set-uid copy of our executable `systemctl` and
/// `branchbox-watch` are links to the mounted one.
pub(super) fn build_tools(exe: &Path, dir: &Path) -> Result<(), HostError> {
    let (usr, bin) = (dir.join("usr"), dir.join("usr/bin"));
    make_directory(dir, 0o755, 0, 0)?;
    make_directory(&usr, 0o755, 0, 0)?;
    make_directory(&bin, 0o755, 0, 0)?;
    let sudo = bin.join("sudo");
    fs_err::copy(exe, &sudo).map_err(failed(&sudo))?;
    chown(&sudo, Some(0), Some(0)).map_err(failed(&sudo))?;
    fs_err::set_permissions(&sudo, PermissionsExt::from_mode(0o4755)).map_err(failed(&sudo))?;
    for link in ["systemctl", "branchbox-watch"] {
        replace_symlink(&bin.join(link), Path::new(GUEST_INSIDE))?;
    }
    Ok(())
}

/// The top-level directories that are symlinks on the host (`/bin` to `usr/bin`), and mount points for the others.
fn copy_layout(host: &Path, root: &Path) -> Result<(), HostError> {
    for whole in WHOLE {
        let (from, to) = (host.join(whole), root.join(whole));
        let Ok(metadata) = from.symlink_metadata() else { continue };
        if metadata.is_dir() && to.symlink_metadata().is_err() {
            make_directory(&to, 0o755, 0, 0)?;
        } else if metadata.is_symlink() {
            let target = fs_err::read_link(&from).map_err(failed(&from))?;
            replace_symlink(&to, &target)?;
        }
    }
    Ok(())
}

fn write_accounts(host: &Path, root: &Path) -> Result<(), HostError> {
    let read = |name: &str| {
        let path = host.join("etc").join(name);
        fs_err::read_to_string(&path).map_err(|source| HostError::Look { path, source })
    };
    let Accounts { passwd, group, shadow, gshadow } = accounts(&read("passwd")?, &read("group")?);
    let shadow_gid = group
        .lines()
        .filter_map(|line| line.strip_prefix(SHADOW_GROUP)?.strip_prefix(":x:")?.trim_end_matches(':').parse().ok())
        .next()
        .unwrap_or(0);
    let etc = root.join("etc");
    for (name, text, mode, gid) in [
        ("passwd", &passwd, 0o644, 0),
        ("group", &group, 0o644, 0),
        ("shadow", &shadow, 0o640, shadow_gid),
        ("gshadow", &gshadow, 0o640, shadow_gid),
    ] {
        let path = etc.join(name);
        replace_file(&path, text, mode)?;
        chown(&path, Some(0), Some(gid)).map_err(failed(&path))?;
    }
    for name in ["subuid", "subgid"] {
        replace_file(&etc.join(name), "", 0o644)?;
    }
    Ok(())
}

fn make_directory(path: &Path, mode: u32, uid: u32, gid: u32) -> Result<(), HostError> {
    if !path.is_dir() {
        fs_err::create_dir(path).map_err(failed(path))?;
    }
    chown(path, Some(uid), Some(gid)).map_err(failed(path))?;
    fs_err::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(failed(path))
}

/// Writes a file of ours where the host's may have been, a symlink included.
fn replace_file(path: &Path, content: &str, mode: u32) -> Result<(), HostError> {
    remove_existing(path)?;
    fs_err::write(path, content).map_err(failed(path))?;
    fs_err::set_permissions(path, PermissionsExt::from_mode(mode)).map_err(failed(path))
}

fn replace_symlink(path: &Path, target: &Path) -> Result<(), HostError> {
    remove_existing(path)?;
    symlink(target, path).map_err(failed(path))
}

fn remove_existing(path: &Path) -> Result<(), HostError> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => fs_err::remove_dir(path).map_err(failed(path)),
        Ok(_) => fs_err::remove_file(path).map_err(failed(path)),
        Err(_) => Ok(()),
    }
}
