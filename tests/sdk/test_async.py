"""The asynchronous client: the verbs of a sandbox's life, many at once, and what a cancelled call leaves."""
import asyncio
import functools
import hashlib
import inspect

import pytest
from withruntime import AsyncRuntime, NotFoundError


def in_sandbox(test):
    """Runs an asynchronous test with a client and a fresh sandbox."""
    async def run(node, extra):
        async with AsyncRuntime(api_key=node.key, base_url=node.url) as runtime:
            async with await runtime.sandboxes.create() as sandbox:
                await test(runtime, sandbox, **extra)

    @functools.wraps(test)
    def wrapped(node, **extra):
        asyncio.run(run(node, extra))
    own = list(inspect.signature(test).parameters.values())[2:]
    node = inspect.Parameter("node", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wrapped.__signature__ = inspect.Signature([node, *own])
    return wrapped


@in_sandbox
async def test_commands_and_processes(runtime, sandbox):
    ran = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 3)
    streamed = [event async for event in sandbox.exec_stream("echo a; echo b")]
    assert "".join(event["data"] for event in streamed if event["type"] == "stdout") == "a\nb\n"
    assert streamed[-1]["type"] == "exit" and streamed[-1]["exitCode"] == 0
    cat = await sandbox.spawn("cat", stdin="pipe")
    await cat.write("hello\n")
    await cat.write("", eof=True)
    said = [event["data"] async for event in cat.output() if event["type"] == "stdout"]
    assert "".join(said) == "hello\n" and (await cat.wait()).exit_code == 0
    sleeper = await sandbox.spawn(["sleep", "1000"])
    assert sleeper.id in [one["id"] for one in await sandbox.processes()]
    await (await sandbox.process(sleeper.id)).kill("SIGTERM")
    assert (await sleeper.wait()).exit_code == -15


@in_sandbox
async def test_files(runtime, sandbox, tmp_path):
    files, content = sandbox.files, bytes(range(256)) * 8192
    await files.write("/workspace/in/a.bin", content)
    assert await files.read("/workspace/in/a.bin") == content
    whole = hashlib.sha256()
    async for piece in files.read_stream("/workspace/in/a.bin"):
        whole.update(piece)
    assert whole.digest() == hashlib.sha256(content).digest()
    assert [entry["name"] for entry in await files.list("/workspace/in")] == ["a.bin"]
    await files.mkdir("/workspace/made/deep")
    await files.rename("/workspace/in/a.bin", "/workspace/made/b.bin")
    assert (await files.stat("/workspace/made/b.bin"))["size"] == len(content)
    assert not await files.exists("/workspace/in/a.bin")
    (tmp_path / "up").mkdir()
    (tmp_path / "up/one.txt").write_text("one")
    await files.upload(str(tmp_path / "up"), "/workspace/up")
    await files.download("/workspace/up", str(tmp_path / "down"))
    assert (tmp_path / "down/one.txt").read_text() == "one"
    await files.remove("/workspace/made", recursive=True)
    with pytest.raises(NotFoundError):
        await files.read("/workspace/made/b.bin")


@in_sandbox
async def test_forks_and_snapshots(runtime, sandbox):
    await sandbox.exec("echo kept > /tmp/a")
    running = await sandbox.spawn(["sleep", "1000"])
    first, second = await sandbox.fork(2)
    for copy in (first, second):
        assert (await copy.exec("cat /tmp/a; pgrep -c sleep")).stdout == "kept\n1\n"
        await copy.delete()
    saved = await sandbox.snapshot(name="saved")
    assert (await runtime.snapshots.get(saved["id"]))["name"] == "saved"
    assert [one["id"] async for one in await runtime.snapshots.list(name="saved")] == [saved["id"]]
    async with await runtime.sandboxes.create(snapshot=saved["id"]) as again:
        assert (await again.exec("cat /tmp/a; pgrep -c sleep")).stdout == "kept\n1\n"
    await runtime.snapshots.delete(saved["id"])
    await running.kill()


@in_sandbox
async def test_a_life(runtime, sandbox):
    await sandbox.update(name="named", labels={"a": "b"})
    assert [one.id for one in await (await runtime.sandboxes.list(labels={"a": "b"})).to_list()] == [sandbox.id]
    assert (await runtime.sandboxes.get_or_create("named")).id == sandbox.id
    await sandbox.exec("echo kept > /workspace/a")
    await sandbox.pause()
    assert sandbox.state == "paused"
    assert (await sandbox.exec("cat /workspace/a")).stdout == "kept\n"
    await sandbox.wake()
    await sandbox.extend(600)
    await sandbox.stop()
    await sandbox.restart()
    assert (await sandbox.exec("cat /workspace/a")).stdout == "kept\n"
    assert (await runtime.me())["orgId"]
    await sandbox.delete()
    with pytest.raises(NotFoundError):
        await runtime.sandboxes.get(sandbox.id)


@in_sandbox
async def test_terminals_ports_previews_and_code(runtime, sandbox):
    terminal = await sandbox.terminal(command="read line; echo got=$line")
    await terminal.write("hello\n")
    shown = b""
    while (piece := await terminal.recv()) is not None:
        shown += piece
    assert b"got=hello" in shown
    await terminal.close()
    server = await sandbox.spawn("exec python3 -u -c \"import socket; s = socket.create_server(('127.0.0.1', 7000)); "
                                 "print('listening'); c, _ = s.accept(); c.sendall(b'through')\"")
    assert await anext(event["data"] async for event in server.output() if event["type"] == "stdout")
    forward = await sandbox.forward_port(7000)
    reader, writer = await asyncio.open_connection("127.0.0.1", forward.local_port)
    assert await reader.read() == b"through"
    writer.close()
    await forward.close()
    preview = await sandbox.previews.create(8000)
    assert [one["port"] for one in await sandbox.previews.list()] == [8000] and preview["url"].startswith("http://8000-")
    await sandbox.previews.delete(8000)
    await sandbox.interpreter.run("x = 40")
    assert (await sandbox.interpreter.run("x + 2"))["results"][0]["data"]["text/plain"] == "42"
    assert (await sandbox.network.get())["internet"] is False


@in_sandbox
async def test_many_at_once(runtime, sandbox):
    ran = await asyncio.gather(*(sandbox.exec(f"sleep 0.0{n % 9}; echo {n}") for n in range(32)))
    assert [one.stdout for one in ran] == [f"{n}\n" for n in range(32)]
    made = await asyncio.gather(*(runtime.sandboxes.create() for _ in range(4)))
    said = await asyncio.gather(*(one.exec("cat /proc/sys/kernel/random/boot_id; echo $$") for one in made))
    assert all(one.exit_code == 0 for one in said) and len({one.id for one in made}) == 4
    await asyncio.gather(*(one.delete() for one in made))


@in_sandbox
async def test_a_cancelled_command_leaves_a_sandbox_that_works(runtime, sandbox):
    running = asyncio.create_task(sandbox.exec("echo started > /tmp/started; sleep 1000", timeout_ms=3_600_000))
    while not await sandbox.files.exists("/tmp/started"):
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await sandbox.exec("echo alive")).stdout == "alive\n"
