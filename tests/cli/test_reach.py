"""What a person reaches of a sandbox from outside: shared ports, code, terminals and tunnels; and what is not there."""
import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.request

import pytest
from support.node import BINARY, Node
from support.wait import until


@pytest.fixture(scope="module")
def web(node):
    sandbox_id = node.cli("create", "--name", "web").stdout.strip()
    node.cli("exec", "web", "--", "mkdir -p site && echo hello > site/index.html")
    node.cli("spawn", "web", "--", "exec python3 -m http.server 8000 --bind 127.0.0.1 --directory site")
    until(lambda: node.cli("exec", "web", "--", "curl -s http://127.0.0.1:8000/", check=False).stdout == "hello\n", seconds=30)
    yield sandbox_id
    node.client.sandboxes.delete(sandbox_id)


def fetch(url: str, **headers) -> tuple[int, str]:
    """A page, without any proxy; the names below .localhost are this machine, whatever a resolver says of them."""
    parts = urllib.request.urlparse(url)
    at = parts._replace(netloc=f"127.0.0.1:{parts.port}").geturl()
    request = urllib.request.Request(at, headers={"Host": parts.netloc, **headers})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_port_is_shared_listed_and_shared_no_more(node, web):
    printed = node.cli("preview", "web", "8000", "--ttl", "10m").stdout
    assert printed.count("\n") == 1 and fetch(printed.strip()) == (200, "hello\n")
    bare = json.loads(node.cli("previews", "web", "--json").stdout)["data"]
    assert [(one["port"], one["visibility"]) for one in bare] == [(8000, "private")]
    assert fetch(bare[0]["url"])[0] == 401, "without its token nobody may"
    public = node.cli("preview", "web", "8000", "--public").stdout.strip()
    assert fetch(public) == (200, "hello\n") and "token" not in public
    table = node.cli("previews", "web").stdout.splitlines()
    assert table[0].split() == ["PORT", "FOR", "URL"] and table[1].split() == ["8000", "public", public]
    assert node.cli("unshare", "web", "8000").stdout == ""
    assert fetch(public)[0] != 200
    assert node.cli("previews", "web").stdout == ""


def test_code_keeps_its_state_and_ends_as_it_did(node, web):
    assert node.cli("run-code", "web", "x = 6 * 7\nprint('said')").stdout == "said\n"
    assert node.cli("run-code", "web", "x").stdout == "42\n"
    failed = node.cli("run-code", "web", "1 / 0", check=False)
    assert failed.returncode == 1 and failed.stdout == "" and "ZeroDivisionError" in failed.stderr
    assert node.cli("run-code", "web", "import time; time.sleep(60)", "--timeout", "1", check=False).returncode == 124
    assert node.cli("run-code", "web", "echo $((6 * 7))", "--language", "bash").stdout == "42\n"
    assert json.loads(node.cli("run-code", "web", "x", "--json").stdout)["results"][0]["data"]["text/plain"] == "42"
    piped = subprocess.run([BINARY, "run-code", "--state-dir", node.state_dir, "web"], input="x + 1\n", text=True,
                           capture_output=True, timeout=60, check=True)
    assert piped.stdout == "43\n"
    assert node.cli("run-code", "web", check=False).returncode == 2, "no code is usage"


@pytest.mark.parametrize("words", [("ssh", "web"), ("sandboxes", "desktop", "web"), ("sandboxes", "mount", "web"), ("volumes", "ls"), ("volume", "ls"), ("login",)])
def test_what_is_not_there_says_so(words):
    ran = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and ran.stdout == "" and "this node has no" in ran.stderr and "hint:" in ran.stderr
    ran = subprocess.run([BINARY, *words, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and json.loads(ran.stderr)["error"]["code"] == "unavailable"


def test_what_has_happened_is_shown(node, web):
    node.cli("pause", "web")
    node.cli("wake", "web")
    lines = [line.split() for line in node.cli("events", "--sandbox", "web").stdout.splitlines()]
    assert lines[0] == ["TIME", "EVENT", "NAME", "ID"]
    assert [line[1] for line in lines[1:3]] == ["sandbox.woken", "sandbox.paused"] and lines[1][2:] == ["web", web]
    only = json.loads(node.cli("events", "--type", "sandbox.paused", "--limit", "1", "--json").stdout)["data"]
    assert [(one["type"], one["resourceId"]) for one in only] == [("sandbox.paused", web)]
    line = node.cli("audit", "--action", "sandbox.woken", "--limit", "1").stdout.splitlines()[1].split()
    assert line[1] == "sandbox.woken" and line[-1] == web


def test_what_is_used_is_shown(node, web):
    until(lambda: "\nnow " in node.cli("metrics", "web", "--range", "15m").stdout, seconds=30)
    table = node.cli("metrics", "web", "--range", "15m")
    assert table.stdout.startswith("TIME ") and "\nnow " in table.stdout and table.stderr.startswith("running, of ")
    shown = json.loads(node.cli("metrics", "web", "--json").stdout)
    assert (shown["sandboxId"], shown["range"]) == (web, "1h") and shown["latest"]["memoryBytes"] > 0
    assert node.cli("metrics", "web", "--range", "2h", check=False).returncode == 2


def test_every_line_of_the_readmes_tour(tmp_path):
    """The tour as it stands there, run by a shell in a directory with a repository."""
    tour = pathlib.Path("README.md").read_text().split("## The same from a shell")[1].split("```")[1]
    lines = [line[2:] for line in tour.splitlines() if line.startswith("$ ")]
    assert len(lines) > 8 and all(line.startswith("branchbox ") for line in lines)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "branchbox").symlink_to(os.path.abspath(BINARY))
    subprocess.run(["git", "init", "-q", "repo"], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "repo" / "file").write_text("x")
    said = {}
    with Node() as own:
        env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "BRANCHBOX_STATE_DIR": str(own.state_dir)}
        for line in lines:
            ran = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
                                 check=False, stdin=subprocess.DEVNULL)
            assert ran.returncode == 0, f"{line}: {ran.stderr}"
            said[line.split()[1]] = ran.stdout
    assert said["exec"] == "?? file\n" and said["run-code"] == "['.git', 'file']\n"
    assert len(said["fork"].split()) == 4 and said["pause"].endswith(" paused\n") and "sandbox.paused" in said["events"]
