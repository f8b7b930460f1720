"""The API document against a live node: every operation is asked with good and bad data, and answers as the document says."""
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from support.node import Node
from support.wait import until

HERE = pathlib.Path(__file__).parent.resolve()
# Requests of one operation in the random phase; the cases that the document's bounds give come on top.
EXAMPLES = 8
# What is asked has to be the same each time.
SEED = 1
SECONDS_MAX = 220

CONFIG = """
hooks = "hooks"
seed = {seed}
base-url = "{url}"
continue-on-failure = true
request-timeout = 60.0
workers = 1
[headers]
Authorization = "Bearer {key}"
[parameters]
"path.sandbox" = "{sandbox}"
"path.process" = "{process}"
"path.snapshot" = "{snapshot}"
"path.key" = "{other_key}"
"path.upload" = "{upload}"
"path.context" = "{context}"
"path.watch" = "{watch}"
"path.port" = 80
"path.image" = "host"
[checks.not_a_server_error]
# What is absent says so with 501.
expected-statuses = ["2xx", "3xx", "4xx", 501]
[checks.positive_data_acceptance]
# 422: an archive that cannot be put together, and the like.
expected-statuses = ["2xx", "401", "403", "404", "409", "422", 501]
[checks.negative_data_rejection]
# A body that is too large is not read, so it is not looked at either.
expected-statuses = ["400", "401", "403", "404", "405", "409", "413", "422", 501]
[phases.examples]
enabled = false
# Its links would follow operations into one another; the suite of the real SDK does that.
[phases.stateful]
enabled = false
[generation]
deterministic = true
max-examples = {examples}
[[operations]]
include-tag = "absent"
enabled = false
# WebSockets; and the file of a result that no cell here has made.
[[operations]]
include-operation-id = ["openTerminal", "openTunnel", "getResult"]
enabled = false
# What may end a sandbox has one of its own.
[[operations]]
include-operation-id = {life}
parameters = {{ "path.sandbox" = "{victim}" }}
# States that do not come are not waited for.
[[operations]]
include-operation-id = "getSandbox"
parameters = {{ "query.waitFor" = "running" }}
# The folder of the default is all that the sandbox sees.
[[operations]]
include-operation-id = "packFiles"
parameters = {{ "query.path" = "/workspace" }}
# What only the sandbox's files, the clock, a digest, an archive or a Dockerfile can tell is refused with 400 as well.
[[operations]]
include-path-regex = '/files|/uploads|/previews|/context/|/images'
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "409", "422", 501]
# Its lines go on for two minutes.
[[operations]]
include-operation-id = "readWatch"
parameters = {{ "query.follow" = false, "query.waitMs" = 1 }}
# One with a terminal.
[[operations]]
include-operation-id = "resizeTerminal"
parameters = {{ "path.process" = "{terminal}" }}
# One that has ended: its output is whole at once.
[[operations]]
include-operation-id = "getOutput"
parameters = {{ "path.process" = "{ended}" }}
"""
LIFE = ["deleteSandbox", "stopSandbox", "pauseSandbox", "wakeSandbox", "restartSandbox", "extendSandbox", "setRetention", "updateSandbox"]


@pytest.fixture(scope="module")
def node():
    """A node on which no request can make so much that others have no room."""
    running = Node()
    (running.state_dir / "settings.toml").write_text("[node]\nsandboxes = 24\n")
    with running:
        yield running


def config(node) -> str:
    def made(path, body):
        answer = node.raw("POST", path, body)
        assert answer.status in (200, 201), answer.body
        return answer.json
    sandbox, victim = made("/v1/sandboxes", {})["id"], made("/v1/sandboxes", {})["id"]
    in_it = f"/v1/sandboxes/{sandbox}"
    ended = made(f"{in_it}/processes", {"command": "echo ended"})["id"]
    until(lambda: node.raw("GET", f"{in_it}/processes/{ended}").json["state"] == "exited", what="it has ended")
    made(f"{in_it}/previews", {"port": 80})
    made(f"{in_it}/interpreter:run", {"code": "1"})
    return CONFIG.format(
        seed=SEED, url=node.url, key=node.key, examples=EXAMPLES, life=json.dumps(LIFE), sandbox=sandbox, victim=victim, ended=ended,
        process=made(f"{in_it}/processes", {"command": "cat", "stdinMode": "pipe"})["id"],
        watch=made(f"{in_it}/files/watches", {"path": "/workspace"})["id"],
        terminal=made(f"{in_it}/processes", {"command": "cat", "pty": {"cols": 80, "rows": 24}})["id"],
        snapshot=made(f"{in_it}:snapshot", {"mode": "disk"})["id"],
        other_key=made("/v1/keys", {"name": "other"})["id"],
        upload=made(f"{in_it}/uploads", {"path": "/tmp/x", "size": 3, "sha256": "0" * 64})["uploadId"],
        context=node.raw("GET", f"{in_it}/interpreter/contexts").json["data"][0]["id"])


def test_the_node_does_what_its_document_says(node, tmp_path):
    (tmp_path / "schemathesis.toml").write_text(config(node))
    program = pathlib.Path(sys.executable).parent / "schemathesis"
    words = [program, "--config-file", "schemathesis.toml", "--no-color", "run", f"{node.url}/v1/openapi.json"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX, env={**os.environ, "NO_PROXY": "*", "PYTHONPATH": str(HERE)}, check=False)
    said = ran.stdout[-20_000:]
    assert ran.returncode == 0, said
    assert int(re.search(r"Tested: (\d+)", said)[1]) > 60, said
    assert node.process.poll() is None, "the node has ended"
