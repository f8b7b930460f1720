"""The adapter for the OpenAI Agents SDK: a session by its own client, and an agent whose model is a list of what to say."""
import asyncio
import io
import json
from pathlib import Path

import pytest
from agents import Runner, RunConfig
from agents.items import ModelResponse
from agents.models.interface import Model
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.tracing import set_tracing_disabled
from agents.usage import Usage
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from withruntime.openai_agents import RuntimeCloudSandboxClient, RuntimeCloudSandboxClientOptions

set_tracing_disabled(True)
pytestmark = pytest.mark.usefixtures("pointed")


def in_session(work, *, manifest=None, **options):
    """Runs ``work(session, client)`` in a fresh session, which is deleted afterwards."""
    async def run():
        client = RuntimeCloudSandboxClient()
        session = await client.create(manifest=manifest, options=RuntimeCloudSandboxClientOptions(**options))
        try:
            async with session:
                return await work(session, client)
        finally:
            await client.delete(session)
            await client.aclose()
    return asyncio.run(run())


def test_commands_have_their_output_their_code_and_a_limit():
    async def work(session, _):
        ran = await session.exec("echo out; echo err >&2; pwd; exit 3")
        assert (ran.stdout, ran.stderr, ran.exit_code) == (b"out\n/workspace\n", b"err\n", 3)
        assert (await session.exec("id -un", user="root")).stdout == b"root\n"
        with pytest.raises(ExecTimeoutError):
            await session.exec("sleep 1000", timeout=1)
        assert await session.running()
    in_session(work)


def test_files_of_the_manifest_and_others():
    async def work(session, _):
        assert (await session.exec("cat given/a.txt; echo $GIVEN")).stdout == b"given\nvalue\n"
        content = bytes(range(256)) * 8192             # 2 MiB: in pieces
        await session.write(Path("in/a.bin"), io.BytesIO(content))
        assert (await session.read(Path("in/a.bin"))).read() == content
        assert sorted(Path(entry.path).name for entry in await session.ls("/workspace")) == ["given", "in"]
        await session.mkdir(Path("made"))
        await session.mv(Path("in/a.bin"), Path("made/b.bin"))
        await session.rm(Path("in"), recursive=True)
        with pytest.raises(WorkspaceReadNotFoundError):
            await session.read(Path("in/a.bin"))
        await session.write(Path("made/root.txt"), io.BytesIO(b"root's"), user="root")
        assert (await session.exec("stat -c %U made/root.txt")).stdout == b"root\n"
    in_session(work, manifest=Manifest(entries={"given/a.txt": File(content=b"given\n")},
                                       environment={"value": {"GIVEN": "value"}}))


def test_a_terminal_takes_input():
    async def work(session, _):
        update = await session.pty_exec_start("read line; echo got=$line; exit 4", tty=True, yield_time_s=0.3)
        output = update.output
        update = await session.pty_write_stdin(session_id=update.process_id, chars="hello\n", yield_time_s=5)
        output += update.output
        while update.process_id is not None:
            update = await session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=5)
            output += update.output
        assert b"got=hello" in output and update.exit_code == 4
    in_session(work)


def test_an_exposed_port_is_a_preview():
    async def work(session, _):
        endpoint = await session.resolve_exposed_port(8000)
        assert endpoint.port and endpoint.query.startswith("runtime_preview_token=")
    in_session(work, exposed_ports=(8000,))


@pytest.mark.parametrize("how", ["tar", "snapshot"])
def test_a_session_is_resumed_from_what_was_kept(how, tmp_path, node):
    """Its files with a tar; with a snapshot its running programs too."""
    async def run():
        client = RuntimeCloudSandboxClient()
        session = await client.create(
            manifest=Manifest(), snapshot=LocalSnapshotSpec(base_path=tmp_path),
            options=RuntimeCloudSandboxClientOptions(workspace_persistence=how))
        async with session:
            await session.write(Path("a.txt"), io.BytesIO(b"kept"))
            node.client.sandboxes.get(session.state.sandbox_id).spawn(["sleep", "123456"])
        saved = client.serialize_session_state(session.state)
        await client.delete(session)
        again = await client.resume(client.deserialize_session_state(saved))
        async with again:
            assert again.state.sandbox_id != session.state.sandbox_id
            assert (await again.read(Path("a.txt"))).read() == b"kept"
            runs = (await again.exec("pgrep -f 'sleep 12345[6]'")).exit_code == 0
        await client.delete(again)
        await client.aclose()
        return runs
    assert asyncio.run(run()) == (how == "snapshot")
    for snapshot in node.client.snapshots.list().to_list():
        node.client.snapshots.delete(snapshot["id"])


def test_a_session_that_pauses_wakes_where_it_was(node):
    async def run():
        client = RuntimeCloudSandboxClient()
        session = await client.create(manifest=Manifest(), options=RuntimeCloudSandboxClientOptions(pause_on_exit=True))
        async with session:
            await session.exec("echo kept > /tmp/a")
        saved = client.serialize_session_state(session.state)
        await client.delete(session)
        assert node.client.sandboxes.get(session.state.sandbox_id).state == "paused"
        again = await client.resume(client.deserialize_session_state(saved))
        async with again:
            assert (await again.exec("cat /tmp/a")).stdout == b"kept\n"
        await client.runtime.sandboxes.delete(again.state.sandbox_id)
        await client.aclose()
    asyncio.run(run())


class Scripted(Model):
    """Says its lines one after another, and remembers what it was told."""

    def __init__(self, *lines):
        self.lines, self.heard = list(lines), []

    async def get_response(self, system_instructions, input, *_, **__):
        self.heard = input
        return ModelResponse(output=[self.lines.pop(0)], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError("these tests do not stream")


def calls(name, **arguments):
    return ResponseFunctionToolCall(type="function_call", name=name, call_id=f"call-{name}", arguments=json.dumps(arguments))


def says(text):
    return ResponseOutputMessage(id="said", role="assistant", status="completed", type="message",
                                 content=[ResponseOutputText(type="output_text", text=text, annotations=[])])


def test_an_agent_works_in_the_sandbox():
    model = Scripted(calls("exec_command", cmd="echo 'print(6*7)' > x.py && python3 x.py", yield_time_ms=30_000), says("done"))
    agent = SandboxAgent(name="coder", model=model, capabilities=[Shell(), Filesystem()])
    async def run():
        client = RuntimeCloudSandboxClient()
        try:
            config = RunConfig(sandbox=SandboxRunConfig(client=client, options=RuntimeCloudSandboxClientOptions()))
            return await Runner.run(agent, "Go.", run_config=config)
        finally:
            await client.aclose()
    assert asyncio.run(run()).final_output == "done"
    [answer] = [item["output"] for item in model.heard if item.get("type") == "function_call_output"]
    assert "42" in answer and "exited with code 0" in answer.lower()
