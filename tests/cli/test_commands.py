"""The commands as a person types them: what is printed where, and how they exit."""
import json
import os
import subprocess

import pytest
from support.node import BINARY
from support.zoo import Zoo


def run(*words: str, env=None, **options) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, **(env or {})}, **options)


@pytest.fixture
def made(node):
    created = node.cli("create", "--name", "web")
    sandbox_id = created.stdout.strip()
    yield sandbox_id
    node.client.sandboxes.delete(sandbox_id)


def test_ids_alone_are_data(node, made):
    assert len(made) == 36 and "\n" not in made
    copies = node.cli("fork", "web", "--count", "2").stdout.split()
    snapshot = node.cli("snapshot", "web", "--name", "kept").stdout.strip()
    assert len(copies) == 2 and all(len(word) == 36 for word in [*copies, snapshot])
    restored = node.cli("create", "--snapshot", snapshot).stdout.strip()
    listed = json.loads(node.cli("ls", "--json").stdout)
    ids = {entry["id"] for entry in (listed["data"] if isinstance(listed, dict) else listed)}
    assert {made, restored, *copies} <= ids
    assert snapshot in node.cli("snapshots", "ls").stdout
    node.cli("rm", *copies, restored)
    node.cli("snapshots", "rm", snapshot)
    assert snapshot not in node.cli("snapshots", "ls").stdout
    assert [box.id for box in node.client.sandboxes.list()] == [made]


def test_a_name_a_prefix_and_nothing(node, made):
    for word in ("web", made, made[:30]):
        assert made in node.cli("get", word, "--json").stdout
    missing = node.cli("get", "nobody", check=False)
    assert missing.returncode == 1 and missing.stdout == "" and "error:" in missing.stderr and "nobody" in missing.stderr
    assert node.cli("get", made[:5], check=False).returncode != 0


@pytest.mark.parametrize(("words", "code"), [(["true"], 0), (["sh", "-c", "exit 7"], 7), (["sh", "-c", "kill -9 $$"], 137), (["no-such"], 127)])
def test_exec_exits_as_the_command(node, made, words, code):
    assert node.cli("exec", "web", "--", *words, check=False).returncode == code


def test_exec_keeps_the_streams_apart(node, made):
    ran = node.cli("exec", "web", "--", "sh", "-c", "echo out; echo err >&2")
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")
    assert node.cli("exec", "web", "--cwd", "/tmp", "--", "pwd").stdout == "/tmp\n"


def test_exec_time_limit(node, made):
    assert node.cli("exec", "web", "--timeout", "1", "--", "sleep", "60", check=False).returncode == 124


def test_a_whole_session(node, made):
    sandbox = node.client.sandboxes.get(made)
    zoo = Zoo.start(sandbox)
    copy = node.cli("fork", "web").stdout.strip()
    zoo.copy().verify(node.client.sandboxes.get(copy))
    zoo.verify(sandbox)
    node.cli("rm", copy)


def test_tables_are_plain_when_nobody_watches(node, made):
    table = node.cli("ls").stdout
    assert "\x1b" not in table and "web" in table and "running" in table


def test_usage_errors_are_two():
    for words in (["create", "--nonsense"], ["exec"], ["dance"], ["fork"]):
        ended = run(*words)
        assert ended.returncode == 2 and ended.stdout == ""
    assert run("--help").returncode == 0 and run("--version").stdout.startswith("branchbox ")


def test_an_unreachable_node_is_three(tmp_path):
    ended = run("ls", "--state-dir", str(tmp_path))
    assert ended.returncode == 3 and "hint:" in ended.stderr and "serve" in ended.stderr
    ended = run("ls", "--url", "http://127.0.0.1:9", env={"BRANCHBOX_API_KEY": "bbx_x"})
    assert ended.returncode == 3 and "127.0.0.1:9" in ended.stderr


def test_the_node_is_found_by_the_environment(node, made):
    for prefix in ("BRANCHBOX", "RUNTIME"):
        ran = run("get", "web", "--json", env={f"{prefix}_API_URL": node.url, f"{prefix}_API_KEY": node.key})
        assert ran.returncode == 0 and made in ran.stdout


def test_a_wrong_key_is_said(node, tmp_path):
    key = tmp_path / "key"
    key.write_text("bbx_wrong\n")
    ran = run("ls", "--url", node.url, "--key-file", str(key))
    assert ran.returncode == 1 and "unauthorized" in ran.stderr + ran.stdout or "key" in ran.stderr


def test_errors_in_json_have_the_code(node):
    ran = node.cli("get", "nobody", "--json", check=False)
    assert ran.returncode == 1 and json.loads(ran.stderr)["error"]["code"] == "not_found"


def test_doctor_says_what_this_machine_can():
    ran = run("doctor")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(run("doctor", "--json").stdout)
    checks = report["checks"] if isinstance(report, dict) else report
    assert all(check["ok"] for check in checks if check["required"])


@pytest.mark.needs("another user")
def test_doctor_as_somebody_else():
    ran = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", BINARY, "doctor"], capture_output=True,
                         text=True, timeout=60, check=False)
    assert ran.returncode == 3 and "root" in ran.stdout + ran.stderr
