"""The modules of the SDK that speak for other sandboxes, unchanged, against a real node.

`modal` and `prime` make an image for each sandbox, which this node cannot yet: what they say is held here, so that it is known
when that changes.
"""
import pytest


@pytest.fixture(autouse=True)
def environment(node, monkeypatch):
    monkeypatch.setenv("RUNTIME_API_URL", node.url)
    monkeypatch.setenv("RUNTIME_API_KEY", node.key)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


def test_e2b(runtime):
    from withruntime.e2b import CommandExitException, Sandbox
    sandbox = Sandbox.create(envs={"GIVEN": "value"}, metadata={"a": "b"})
    ran = sandbox.commands.run("echo out; echo err >&2")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 0)
    assert sandbox.commands.run("echo $GIVEN; id -un", user="root").stdout == "value\nroot\n"
    with pytest.raises(CommandExitException):
        sandbox.commands.run("exit 3")
    asking = sandbox.commands.run("read line; echo got=$line", background=True, stdin=True)
    sandbox.commands.send_stdin(asking.pid, "hello\n")
    assert asking.wait().stdout == "got=hello\n"
    sandbox.files.write("/workspace/a.txt", "content")
    assert sandbox.files.read("/workspace/a.txt") == "content"
    assert "a.txt" in [entry.name for entry in sandbox.files.list("/workspace")]
    background = sandbox.commands.run("sleep 100", background=True)
    assert background.pid in [one.pid for one in sandbox.commands.list()]
    assert background.kill()
    snapshot = sandbox.create_snapshot()
    copy = Sandbox.create(snapshot.snapshot_id)
    assert copy.files.read("/workspace/a.txt") == "content"
    copy.kill()
    for fork in sandbox.fork(count=2):
        assert fork.files.read("/workspace/a.txt") == "content"
        fork.kill()
    sandbox.pause()
    assert not sandbox.is_running()
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.is_running() and again.files.read("/workspace/a.txt") == "content"
    assert sandbox.kill() and not sandbox.kill()
    Sandbox.delete_snapshot(snapshot.snapshot_id)


def test_e2bs_terminal_and_code():
    from withruntime.e2b import PtySize
    from withruntime.e2b.code_interpreter import Sandbox
    sandbox = Sandbox.create()
    terminal, shown = sandbox.pty.create(PtySize(rows=24, cols=80)), []
    sandbox.pty.resize(terminal.pid, PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    terminal.wait(on_pty=shown.append)
    assert b"30 100" in b"".join(shown)
    context = sandbox.create_code_context(cwd="/tmp")
    sandbox.run_code("x = 40", context=context)
    assert sandbox.run_code("x + 2", context=context).text == "42"
    assert sandbox.run_code("1/0").error.name == "ZeroDivisionError"
    assert sandbox.run_code("echo hi", language="bash").logs.stdout == ["hi\n"]
    sandbox.kill()


def test_daytona():
    from withruntime.daytona import CreateSandboxFromSnapshotParams, Daytona, SessionExecuteRequest
    daytona = Daytona()
    sandbox = daytona.create(CreateSandboxFromSnapshotParams(env_vars={"GIVEN": "value"}, labels={"a": "b"}))
    ran = sandbox.process.exec("echo $GIVEN; pwd", cwd="/tmp")
    assert (ran.exit_code, ran.result) == (0, "value\n/tmp\n")
    sandbox.process.create_session("one")
    run = sandbox.process.execute_session_command
    run("one", SessionExecuteRequest(command="cd /tmp; export X=5"))
    assert run("one", SessionExecuteRequest(command="pwd; echo $X")).stdout == "/tmp\n5\n"
    sandbox.process.delete_session("one")
    sandbox.fs.upload_file(b"one two", "/workspace/in/a.txt")
    assert sandbox.fs.download_file("/workspace/in/a.txt") == b"one two"
    assert [entry.name for entry in sandbox.fs.list_files("/workspace/in")] == ["a.txt"]
    assert [(match.line, match.content) for match in sandbox.fs.find_files("/workspace", "two")] == [(1, "one two")]
    assert sandbox.fs.search_files("/workspace", "*.txt").files == ["/workspace/in/a.txt"]
    sandbox.fs.replace_in_files(["/workspace/in/a.txt"], "two", "three")
    sandbox.fs.move_files("/workspace/in/a.txt", "/workspace/a.txt")
    assert sandbox.process.code_run("print(6*7)").result.strip() == "42"
    sandbox.code_interpreter.run_code("x = 40")
    assert sandbox.code_interpreter.run_code("print(x + 2)").stdout == "42\n"
    sandbox.stop()
    sandbox.start()
    assert sandbox.fs.download_file("/workspace/a.txt") == b"one three"
    copy = sandbox.fork("daytona-copy")
    assert copy.fs.download_file("/workspace/a.txt") == b"one three"
    copy.delete()
    sandbox.create_snapshot("ready")
    again = daytona.create(CreateSandboxFromSnapshotParams(snapshot="ready"))
    assert again.fs.download_file("/workspace/a.txt") == b"one three"
    again.delete()
    sandbox.delete()


def test_daytonas_git():
    from withruntime.daytona import Daytona
    sandbox = Daytona().create()
    sandbox.process.exec("git init -q --bare /workspace/origin")
    sandbox.git.clone("/workspace/origin", "/workspace/repo")
    sandbox.fs.upload_file(b"x", "/workspace/repo/new")
    assert [one["name"] for one in sandbox.git.status("/workspace/repo").file_status] == ["new"]
    sandbox.git.add("/workspace/repo", ["new"])
    made = sandbox.git.commit("/workspace/repo", "message", "me", "me@a.example")
    assert sandbox.process.exec("git rev-parse HEAD", cwd="/workspace/repo").result.strip() == made.sha
    sandbox.git.push("/workspace/repo")
    sandbox.git.create_branch("/workspace/repo", "other")
    assert sorted(sandbox.git.branches("/workspace/repo").branches)[-1] == "other"
    sandbox.delete()


def test_morph(runtime, tmp_path):
    from withruntime.morph.api import MorphCloudClient
    client = MorphCloudClient()
    sizes = dict(image_id="morphvm-minimal", vcpus=1, memory=512, disk_size=4096)
    base = client.snapshots.create(**sizes, digest="base")
    assert client.snapshots.create(**sizes, digest="base").id == base.id
    assert base.setup("echo set > /workspace/set").id == base.setup("echo set > /workspace/set").id
    instance = client.instances.start(base.setup("echo set > /workspace/set").id)
    ran = instance.exec("cat /workspace/set; exit 3")
    assert (ran.stdout, ran.exit_code) == ("set\n", 3)
    (tmp_path / "up").write_text("content")
    instance.upload(str(tmp_path / "up"), "/workspace/up")
    instance.download("/workspace/up", str(tmp_path / "down"))
    assert (tmp_path / "down").read_text() == "content"
    instance.exec("echo kept > /tmp/kept")
    saved = instance.snapshot()
    _, branches = instance.branch(count=2)
    for branch in branches:
        assert branch.exec("cat /tmp/kept").stdout.strip() == "kept"
        branch.stop()
    instance.pause()
    instance.resume()
    assert instance.exec("cat /tmp/kept").stdout == "kept\n"
    instance.stop()
    assert saved.id in [snapshot["id"] for snapshot in runtime.snapshots.list().to_list()]
    saved.delete()


def test_runloop():
    from withruntime.runloop import RunloopSDK
    devbox = RunloopSDK().devbox.create(name="one", environment_variables={"GIVEN": "value"})
    ran = devbox.cmd.exec("echo $GIVEN; echo err >&2; exit 3")
    assert (ran.stdout(), ran.stderr(), ran.exit_code) == ("value\n", "err\n", 3)
    devbox.shell("one").exec("cd /tmp")
    assert devbox.shell("one").exec("pwd").stdout() == "/tmp\n"
    asking = devbox.cmd.exec_async("read line; echo got=$line", attach_stdin=True)
    asking.send_std_in("hello\n")
    assert asking.result().stdout() == "got=hello\n"
    devbox.file.write(file_path="/workspace/a.txt", contents="content")
    assert devbox.file.read(file_path="/workspace/a.txt") == "content"
    devbox.file.upload(path="/workspace/b.bin", file=b"\x00\x01")
    assert devbox.file.download(path="/workspace/b.bin") == b"\x00\x01"
    devbox.suspend()
    devbox.resume()
    saved = devbox.snapshot_disk(name="saved")
    copy = saved.create_devbox(name="devbox-copy")
    assert copy.file.read(file_path="/workspace/a.txt") == "content"
    copy.shutdown()
    saved.delete()
    devbox.shutdown()


def test_vercel():
    from withruntime.vercel.sandbox import SnapshotSource
    from withruntime.vercel.sandbox import sync as vercel
    with vercel.create_sandbox(name="box", env={"GIVEN": "value"}) as box:
        ran = box.run_process("sh", ["-c", "echo $GIVEN; id -un"], sudo=True, capture_output=True)
        assert (ran.returncode, ran.stdout) == (0, "value\nroot\n")
        process = box.create_process("sh", ["-c", "echo a; echo b"], stdout=-1, stderr=-1)
        assert (process.communicate(), process.wait()) == (("a\nb\n", ""), 0)
        box.fs.write_text("a.txt", "content")
        with box.fs.open("a.txt") as file:
            assert file.read() == "content"
        assert [entry.path for entry in box.fs.listdir(".")] == ["a.txt"]
        box.stop()
        assert vercel.resume_sandbox(name="box").fs.read_text("a.txt") == "content"
        copy = vercel.fork_sandbox(source_sandbox="box", name="box-copy")
        assert copy.fs.read_text("a.txt") == "content"
        copy.destroy()
        saved = box.snapshot()
        with vercel.create_sandbox(source=SnapshotSource(snapshot_id=saved.id)) as again:
            assert again.fs.read_text("a.txt") == "content"
        saved.delete()


def test_blaxel():
    from withruntime.blaxel import SyncSandboxInstance
    sandbox = SyncSandboxInstance.create({"name": "blaxel-one", "envs": [{"name": "GIVEN", "value": "value"}]})
    assert sandbox.process.exec({"command": "echo $GIVEN", "wait_for_completion": True}).stdout == "value\n"
    sandbox.fs.write("/workspace/a.txt", "content")
    assert sandbox.fs.read("/workspace/a.txt") == "content"
    saved = sandbox.snapshot("saved")
    sandbox.fork("two")
    sandbox.fork("three", snapshot_id=saved.id)
    for name in ("two", "three"):
        copy = SyncSandboxInstance.get(name)
        assert copy.fs.read("/workspace/a.txt") == "content"
        copy.delete()
    sandbox.delete_snapshot(saved.id)
    sandbox.delete()


def test_sprites():
    from withruntime.sprites import SpritesClient
    sprite = SpritesClient().create_sprite("sprite-one")
    assert sprite.command("echo", "out").output() == b"out\n"
    assert sprite.run("sh", "-c", "echo $A; exit 3", env={"A": "b"}, capture_output=True).returncode == 3
    file = sprite.filesystem("/workspace") / "in" / "a.txt"
    file.write_text("content", mkdir_parents=True)
    assert file.read_text() == "content"
    assert [one.type for one in sprite.create_checkpoint("saved")][-1] == "complete"
    assert [one.comment for one in sprite.list_checkpoints()] == ["saved"]
    sprite.delete()


def test_modal_and_prime_need_images_to_be_made():
    import withruntime.modal as modal
    with pytest.raises(Exception, match="images"):
        modal.Sandbox.create(app=modal.App.lookup("app", create_if_missing=True))
    from withruntime.prime import APIClient, CreateSandboxRequest, SandboxClient
    with pytest.raises(Exception, match="images"):
        SandboxClient(APIClient()).create(CreateSandboxRequest(name="one", docker_image="debian"))
