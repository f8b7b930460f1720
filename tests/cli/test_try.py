"""``branchbox try``: a step in a copy, a verdict, and a directory that is touched only after a yes."""
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from support.node import BINARY
from support.wait import until

GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]


@pytest.fixture
def tree(tmp_path) -> pathlib.Path:
    """A git repository with a committed, an untracked and an ignored file, owned by an ordinary user."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "README.md").write_text("one\n")
    (root / ".gitignore").write_text("ignored\n")
    subprocess.run([*GIT, "init", "-q"], cwd=root, check=True)
    subprocess.run([*GIT, "add", "-A"], cwd=root, check=True)
    subprocess.run([*GIT, "commit", "-qm", "first"], cwd=root, check=True)
    (root / "ignored").write_text("kept\n")
    (root / "untracked").write_text("kept\n")
    (root / "sub").mkdir()
    (root / "sub" / "deep.txt").write_text("deep\n")
    return root


def attempt(cwd, *words: str, env=None, **options) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, "try", *words], cwd=cwd, capture_output=True, text=True, timeout=180, check=False,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}, **options)


def picture(root: pathlib.Path) -> dict:
    """Every entry with its kind, mode, owner, time and content."""
    seen = {}
    for path in sorted(root.rglob("*")):
        facts = path.lstat()
        content = os.readlink(path) if path.is_symlink() else (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        seen[str(path.relative_to(root))] = (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, facts.st_ino, content)
    return seen


def test_the_first_command_of_the_readme(tree):
    before = picture(tree)
    ended = attempt(tree, "--verify", "test -f README.md", "--", "rm -rf ./*")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert picture(tree) == before, "the directory was touched"
    said = ended.stdout + ended.stderr
    for word in ("README.md", "untracked", "sub/deep.txt", "discarded", "fork", "step", "check"):
        assert word in said, f"{word!r} is not in:\n{said}"


def test_a_passing_step_is_written_back_after_a_yes(tree):
    ended = attempt(tree, "--yes", "--verify", "grep -q two README.md", "--",
                    "echo two >> README.md; rm untracked; mkdir -p new/dir; echo x > new/dir/file; chmod 755 sub/deep.txt; ln -s README.md link")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tree / "README.md").read_text() == "one\ntwo\n" and not (tree / "untracked").exists()
    assert (tree / "new/dir/file").read_text() == "x\n" and os.readlink(tree / "link") == "README.md"
    assert (tree / "sub/deep.txt").stat().st_mode & 0o777 == 0o755
    owner = tree.stat()
    for path in tree.rglob("*"):
        assert (path.lstat().st_uid, path.lstat().st_gid) == (owner.st_uid, owner.st_gid), path


def test_without_a_yes_nothing_is_written(tree):
    before = picture(tree)
    ended = attempt(tree, "--", "echo two >> README.md")
    assert ended.returncode == 4 and picture(tree) == before


def test_the_steps_own_exit_decides_without_a_check(tree):
    before = picture(tree)
    ended = attempt(tree, "--yes", "--", "echo half > half; exit 3")
    assert ended.returncode == 1 and picture(tree) == before
    assert attempt(tree, "--yes", "--", "echo whole > whole").returncode == 0 and (tree / "whole").read_text() == "whole\n"


def test_several_words_are_an_argv(tree):
    ended = attempt(tree, "--yes", "--", "touch", "a b", "$HOME")
    assert ended.returncode == 0 and {"a b", "$HOME"} <= set(os.listdir(tree))


def test_the_step_sees_its_own_path_and_the_whole_tree(tree):
    step = f"test \"$PWD\" = {tree}/sub && test -e ../ignored && test -e ../untracked && git status --short && test -e /workspace/repo/README.md"
    ended = attempt(tree / "sub", "--", step)
    assert ended.returncode in (0, 4), ended.stdout + ended.stderr
    assert "?? ../untracked" in ended.stdout + ended.stderr and "dubious" not in ended.stdout + ended.stderr


def test_output_streams_and_nothing_changed_is_said(tree):
    ended = attempt(tree, "--", "echo visible; echo also >&2")
    assert ended.returncode in (0, 4) and "visible" in ended.stdout + ended.stderr and "also" in ended.stdout + ended.stderr


def test_a_change_made_meanwhile_is_a_conflict(tree, tmp_path):
    flag = tmp_path / "go"
    running = subprocess.Popen([BINARY, "try", "--yes", "--", "echo branch > README.md; echo started; read -t 5 < /dev/null; sleep 2"], cwd=tree,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ""
    for line in running.stdout:
        said += line
        if "started" in line:
            (tree / "README.md").write_text("host\n")
            flag.touch()
    assert running.wait(60) == 5, said
    assert (tree / "README.md").read_text() == "host\n" and "README.md" in said
    kept = pathlib.Path(said.split("kept for an hour in ")[1].splitlines()[0])
    assert (kept / "README.md").read_text() == "branch\n"
    shutil.rmtree(kept.parent)


def test_hooks_need_their_own_word(tree):
    plant = "printf '#!/bin/sh\\nid > /tmp/owned\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit; echo x > plain"
    ended = attempt(tree, "--yes", "--", plant)
    assert not (tree / ".git/hooks/pre-commit").exists(), ended.stdout + ended.stderr
    assert ".git/hooks/pre-commit" in ended.stdout + ended.stderr and "--allow-hooks" in ended.stdout + ended.stderr
    assert attempt(tree, "--yes", "--allow-hooks", "--", plant).returncode == 0 and (tree / ".git/hooks/pre-commit").exists()


@pytest.mark.parametrize("hostile", [
    "ln -s /etc etc && rm -rf sub && ln -s /tmp sub && echo x > sub/branchbox-escaped",
    "chmod 6755 README.md; mkfifo pipe; python3 -c \"import socket; socket.socket(1).bind('sock')\"; echo x > plain",
])
def test_a_hostile_tree_writes_nothing_outside(tree, hostile):
    attempt(tree, "--yes", "--", hostile)
    assert not os.path.exists("/tmp/branchbox-escaped")
    for path in tree.rglob("*"):
        mode = path.lstat().st_mode
        assert mode & 0o6000 == 0, f"{path} kept a set-id bit"
        assert path.is_symlink() or path.is_file() or path.is_dir(), f"{path} is a device, pipe or socket"
    assert not (tree / "etc").exists() or (tree / "etc").is_symlink()


@pytest.mark.needs("another user")
def test_not_root_says_the_exact_line(tree):
    os.chmod(tree.parent.parent, 0o755)
    ended = attempt(tree, "--", "true", user=65534, group=65534, extra_groups=[])
    assert ended.returncode == 3 and f"sudo -E {os.path.realpath(BINARY)} try -- true" in ended.stderr


def test_online_is_refused_until_there_is_a_gateway(tree):
    for words in (["--online"], ["--allow", "example.com"]):
        ended = attempt(tree, *words, "--", "true")
        assert ended.returncode == 3 and "hint:" in ended.stderr


def test_the_step_has_no_way_out(tree):
    program = "import socket; s=socket.socket(); s.settimeout(2); raise SystemExit(s.connect_ex(('1.1.1.1', 80)) == 0)"
    assert attempt(tree, "--", "python3", "-c", program).returncode in (0, 4)


def test_the_caller_s_environment_stays_outside(tree):
    ended = attempt(tree, "--", "env", env={"AWS_SECRET_ACCESS_KEY": "never-inside", "LANG": "C.UTF-8"})
    assert "never-inside" not in ended.stdout + ended.stderr and "PATH=" in ended.stdout + ended.stderr


def test_a_masked_file_is_hidden(tree):
    (tree / ".env").write_text("SECRET=1\n")
    ended = attempt(tree, "--mask", ".env", "--", "cat .env; true")
    assert "SECRET=1" not in ended.stdout + ended.stderr and (tree / ".env").read_text() == "SECRET=1\n"


def test_json_is_one_value(tree):
    ended = attempt(tree, "--json", "--verify", "false", "--", "echo x > y")
    value = json.loads(ended.stdout)
    assert ended.returncode == 1 and value["passed"] is False and value["step"]["exitCode"] == 0
    assert [change["path"] for change in value["changes"]["files"]] == ["y"]
    assert value["timings"]["pauseUs"] > 0


def test_usage_errors(tree):
    for words in ([], ["--"], ["--nonsense", "--", "true"]):
        assert attempt(tree, *words).returncode == 2


def test_an_interrupt_cleans_up(tree):
    before = picture(tree)
    running = subprocess.Popen([BINARY, "try", "--", "echo started; sleep 600"], cwd=tree, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    next(line for line in running.stdout if "started" in line)
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 130 and picture(tree) == before
    until(lambda: leftovers(running.pid) == [], what="nothing is left")


def test_sigkill_of_try_leaves_nothing(tree):
    before, made = picture(tree), things()
    running = subprocess.Popen([BINARY, "try", "--", "echo started; sleep 601"], cwd=tree, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    next(line for line in running.stdout if "started" in line)
    running.kill()
    running.wait()
    running.stdout.close()
    until(lambda: things() <= made, seconds=20, what="nothing is left")
    assert picture(tree) == before


def test_the_first_line_comes_at_once(tree):
    began = time.monotonic()
    running = subprocess.Popen([BINARY, "try", "--", "true"], cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    assert running.stdout.readline() and time.monotonic() - began < 0.3
    running.communicate(timeout=120)


def leftovers(pid: int) -> list[str]:
    return [entry for entry in os.listdir("/proc") if entry.isdigit() and entry != str(pid) and b"sleep\x00600" in cmdline(entry)]


def cmdline(pid: str) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def things() -> set[str]:
    """Processes, mounts, cgroups and temporary files of ours, as the host shows them."""
    found = {f"process {entry}" for entry in os.listdir("/proc") if entry.isdigit() and
             (b"sleep\x00601" in cmdline(entry) or cmdline(entry).startswith(b"branchbox-"))}
    found |= {f"mount {line.split()[4]}" for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines() if "branchbox" in line}
    for parent in ("/tmp", "/var/tmp", "/run/branchbox", "/sys/fs/cgroup/branchbox", "/sys/fs/cgroup/unified/branchbox"):
        if os.path.isdir(parent):
            found |= {f"{parent}/{name}" for name in os.listdir(parent) if parent.endswith("branchbox") or name.startswith("branchbox")}
    return found
