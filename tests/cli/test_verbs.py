"""Every verb on a sandbox, as people and as scripts of the Runtime command line say them."""
import hashlib
import json
import os
import pathlib
import stat
import subprocess

import pytest
from support.node import BINARY
from support.wait import until


@pytest.fixture
def made(node):
    sandbox_id = node.cli("create", "--name", "web").stdout.strip()
    yield sandbox_id
    node.client.sandboxes.delete(sandbox_id)


@pytest.fixture
def runtime_cli(node, tmp_path):
    """The binary under the other command line's name, with that one's environment."""
    link = tmp_path / "runtime"
    link.symlink_to(os.path.abspath(BINARY))
    env = {**os.environ, "RUNTIME_API_URL": node.url, "RUNTIME_API_KEY": node.key}

    def run(*words, check=True, **options):
        ran = subprocess.run([link, *words], capture_output=True, text=True, timeout=120, env=env, check=False,
                             stdin=subprocess.DEVNULL, **options)
        assert not check or ran.returncode == 0, ran.stderr
        return ran
    return run


def test_the_public_shell_sample_runs(runtime_cli):
    box = runtime_cli("sandboxes", "create", "--label", "role=base").stdout.strip()
    assert runtime_cli("sandboxes", "exec", box, "--", "echo ready > flask").returncode == 0
    snap = runtime_cli("sandboxes", "snapshot", box, "--name", "flask-ready", "--retention", "30").stdout
    assert snap.count("\n") == 1 and len(snap.strip()) == 36, "only the snapshot's id"
    fresh = runtime_cli("sandboxes", "create", "--snapshot", snap.strip()).stdout.strip()
    assert runtime_cli("sandbox", "exec", fresh, "--", "cat", "flask").stdout == "ready\n"
    for product in ("snapshots", "snapshot"):
        assert "flask-ready" in runtime_cli(product, "ls").stdout
    copies = runtime_cli("sandboxes", "fork", box, "--count", "2").stdout.split()
    assert len(copies) == 2
    runtime_cli("sandboxes", "rm", box, fresh, *copies)
    runtime_cli("snapshots", "rm", snap.strip())
    assert runtime_cli("whoami").stdout


def test_a_whole_life(node, made):
    assert node.cli("pause", "web").stdout == f"{made} paused\n"
    assert node.cli("wake", "web").stdout == f"{made} running\n"
    assert node.cli("wake", "web").stdout == f"{made} running\n", "awake is what was wanted"
    node.cli("exec", "web", "--", "echo kept > kept")
    assert node.cli("stop", "web").stdout == f"{made} stopped\n"
    assert node.cli("restart", "web").stdout == f"{made} running\n"
    assert node.cli("exec", "web", "--", "cat kept").stdout == "kept\n"
    extended = node.cli("extend", "web", "600")
    assert extended.stdout == f"{made} running\n" and "no time limit" in extended.stderr
    refused = node.cli("restart", "web", check=False)
    assert refused.returncode == 1 and refused.stdout == "" and "hint:" in refused.stderr


def test_update_changes_what_it_names(node, made):
    node.cli("update", "web", "--name", "site", "--label", "a=b", "--env", "K=V", "--env", "L=W", "--idle-pause", "10m",
             "--auto-wake", "off", "--persistent", "on", "--timeout", "2h", "--on-timeout", "stop")
    info = node.client.sandboxes.get(made).info
    assert (info["name"], info["labels"], info["envNames"]) == ("site", {"a": "b"}, ["K", "L"])
    assert (info["idlePauseSeconds"], info["autoWake"], info["persistent"]) == (600, False, True)
    assert (info["timeoutSeconds"], info["onTimeout"]) == (7200, "stop")
    node.cli("update", "site", "--unset-env", "K", "--timeout", "0", "--idle-pause", "0", "--name", "web")
    info = node.client.sandboxes.get(made).info
    assert (info["envNames"], info["endsAt"], info["idlePauseSeconds"]) == (["L"], None, 0)
    assert node.cli("update", "web", check=False).returncode == 2


def test_create_takes_the_contracts_flags(node):
    made = node.cli("create", "--cpu", "shared", "--cpu-floor", "100", "--timeout", "10m", "--on-timeout", "delete",
                    "--idle-pause", "90", "--no-auto-wake", "--persistent", "--no-internet", "--memory", "512").stdout.strip()
    info = node.client.sandboxes.get(made).info
    assert (info["timeoutSeconds"], info["onTimeout"], info["idlePauseSeconds"]) == (600, "delete", 90)
    assert (info["autoWake"], info["persistent"], info["cpuFloorMillis"], info["memoryMiB"]) == (False, True, 100, 512)
    node.client.sandboxes.delete(made)
    refused = node.cli("create", "--allow", "example.com", "--json", check=False)
    assert refused.returncode == 3 and json.loads(refused.stderr)["error"]["code"] == "network_rules_unavailable"


def test_run_ends_as_the_command_and_leaves_nothing(node):
    before = len(node.client.sandboxes.list(include_stopped=True).to_list())
    ran = node.cli("run", "--memory", "512", "--", "echo out; echo err >&2; exit 7", check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "out\n", "err\n")
    assert len(node.client.sandboxes.list(include_stopped=True).to_list()) == before
    kept = node.cli("run", "--keep", "--", "true").stderr.strip()
    node.client.sandboxes.delete(kept)


def test_processes_are_started_listed_read_and_ended(node, made):
    process = node.cli("spawn", "web", "--env", "A=b", "--cwd", "/tmp", "--", "echo $A $PWD; sleep 1000").stdout.strip()
    until(lambda: node.cli("logs", "web", process).stdout == "b /tmp\n")
    listed = node.cli("ps", "web").stdout
    assert process in listed and "running" in listed and "sleep 1000" in listed
    follower = subprocess.Popen([BINARY, "logs", "--state-dir", node.state_dir, "web", process, "-f"],
                                stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    node.cli("kill", "web", process, "--signal", "kill")
    assert follower.communicate(timeout=30)[0] == "b /tmp\n" and follower.returncode == 137
    assert json.loads(node.cli("ps", "web", "--json").stdout)["data"][0]["state"] == "killed"
    missing = node.cli("logs", "web", "p999", check=False)
    assert missing.returncode == 1 and "p999" in missing.stderr


def test_files_go_in_and_out(node, made, tmp_path):
    (tmp_path / "tool").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "tool").chmod(0o755)
    node.cli("cp", str(tmp_path / "tool"), "web:/workspace/bin/")
    assert node.cli("exec", "web", "--", "bin/tool").stdout == "ran\n"
    assert node.cli("cat", "web", "/workspace/bin/tool").stdout == "#!/bin/sh\necho ran\n"
    big = os.urandom(3_000_000)
    (tmp_path / "big").write_bytes(big)
    node.cli("cp", str(tmp_path / "big"), "web:/workspace/big")
    node.cli("cp", "web:/workspace/big", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == big
    node.cli("cp", "web:/workspace/bin/tool", str(tmp_path / "again"))
    assert stat.S_IMODE((tmp_path / "again").stat().st_mode) == 0o755
    node.cli("exec", "web", "--", "mkdir -p huge && head -c 80M /dev/urandom > huge/file && md5sum < huge/file > sum")
    digest = node.cli("cat", "web", "/workspace/sum").stdout.split()[0]
    node.cli("cp", "web:/workspace/huge/file", str(tmp_path / "huge"))
    node.cli("cp", "web:/workspace/huge", str(tmp_path / "folder"))
    for copied in (tmp_path / "huge", tmp_path / "folder" / "file"):
        assert hashlib.md5(copied.read_bytes()).hexdigest() == digest, "more than one answer of JSON may have"
    listed = node.cli("files", "web", "--depth", "2").stdout
    assert "/workspace/bin/tool" in listed and "/workspace/bin/" in listed
    for words in (("cp", "a", "b"), ("cp", "web:/a", "web:/b")):
        assert node.cli(*words, check=False).returncode == 2
    missing = node.cli("cp", "web:/nothing", str(tmp_path / "x"), check=False)
    assert missing.returncode == 1 and not (tmp_path / "x").exists()


def test_folders_go_in_and_out(node, made, tmp_path):
    folder = tmp_path / "folder"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "deep" / "x").write_text("x")
    (folder / "link").symlink_to("deep/x")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    node.cli("cp", str(folder), "web:/workspace/folder")
    assert node.cli("exec", "web", "--", "cat folder/link; test -x folder/run && test -d folder/deep/empty && echo all").stdout == "xall\n"
    node.cli("cp", "web:/workspace/folder", str(tmp_path / "back"))
    back = {str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*")}
    assert back == {"deep", "deep/empty", "deep/x", "link", "run"}
    assert os.readlink(tmp_path / "back" / "link") == "deep/x"


def test_rules_limits_and_use_are_shown(node, made):
    assert node.cli("network", "web").stdout.startswith("internet  no\nenforced  yes\n")
    assert node.cli("network", "web", "--no-internet").returncode == 0
    assert node.cli("network", "web", "--internet", check=False).returncode == 3
    assert "Sandboxes at once" in node.cli("limits").stdout
    assert json.loads(node.cli("usage", "--json").stdout)["unit"] == "microdollars"


def test_help_manual_and_completions_come_from_one_place(tmp_path):
    def run(*words):
        return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60, check=True).stdout
    manual = run("man")
    assert manual.startswith(".") and "branchbox" in manual
    run("man", "--dir", str(tmp_path))
    assert pathlib.Path(tmp_path / "branchbox-pause.1").exists()
    for shell in ("bash", "zsh", "fish"):
        assert "pause" in run("completions", shell)
    assert "Example:" in run("pause", "--help")


def test_keys_are_made_listed_and_removed(node):
    key = node.cli("keys", "create", "--name", "laptop").stdout.strip()
    assert node.raw("GET", "/v1/me", key=key).json["principalId"] == "laptop"
    listed = node.cli("keys", "ls").stdout
    assert "laptop" in listed and key not in listed
    assert node.cli("keys", "rm", "laptop").stdout.endswith(" deleted\n")
    assert node.raw("GET", "/v1/me", key=key).status == 401
