"""What a person reaches of a sandbox from outside: shared ports, code, terminals and tunnels; and what is not there."""
import json
import os
import subprocess
import urllib.error
import urllib.request

import pytest
from support.node import BINARY
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
