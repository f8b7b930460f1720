"""What a test may need from the machine, and whether the machine has it.

A test says ``@pytest.mark.needs("name")``. Only a need listed here can skip a test; any other skip is turned into a
failure by ``conftest.py``, so that nothing is skipped in silence.
"""
import os
import shutil
import subprocess
import sys


def _tmpfs() -> bool:
    return os.access("/dev/shm", os.W_OK)


def _foreign_user() -> bool:
    return shutil.which("setpriv") is not None and os.geteuid() == 0


def _mounts() -> bool:
    """A file system that can be filled: a tmpfs with a size, mounted by the test."""
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return probe.returncode == 0


NEEDS = {
    "Python 3.12": lambda: sys.version_info >= (3, 12),
    "another user": _foreign_user,
    "a tmpfs": _tmpfs,
    "mounts": _mounts,
}
# Needs that the test command provides: a machine without them fails instead of skipping.
PROVIDED = {"another user", "a tmpfs", "mounts"}


def unmet(name: str) -> bool:
    """Whether the machine lacks it; a provided need that is lacking is an error."""
    met = NEEDS[name]()
    assert met or name not in PROVIDED, f"the machine must provide {name}"
    return not met
