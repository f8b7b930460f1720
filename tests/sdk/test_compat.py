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
    from withruntime.e2b import Sandbox
    sandbox = Sandbox.create()
    ran = sandbox.commands.run("echo out; echo err >&2")
    assert (ran.stdout, ran.stderr, ran.exit_code) == ("out\n", "err\n", 0)
    sandbox.files.write("/workspace/a.txt", "content")
    assert sandbox.files.read("/workspace/a.txt") == "content"
    assert "a.txt" in [entry.name for entry in sandbox.files.list("/workspace")]
    background = sandbox.commands.run("sleep 100", background=True)
    assert background.kill()
    snapshot = sandbox.create_snapshot()
    copy = Sandbox.create(snapshot.snapshot_id)
    assert copy.files.read("/workspace/a.txt") == "content"
    copy.kill()
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.is_running() and again.files.read("/workspace/a.txt") == "content"
    assert sandbox.kill()
    runtime.snapshots.delete(snapshot.snapshot_id)


def test_daytona():
    from withruntime.daytona import Daytona
    daytona = Daytona()
    sandbox = daytona.create()
    ran = sandbox.process.exec("echo out")
    assert (ran.exit_code, ran.result.strip()) == (0, "out")
    sandbox.fs.upload_file(b"content", "/workspace/a.txt")
    assert sandbox.fs.download_file("/workspace/a.txt") == b"content"
    assert "a.txt" in [entry.name for entry in sandbox.fs.list_files("/workspace")]
    assert sandbox.process.code_run("print(6*7)").result.strip() == "42"
    sandbox.stop()
    sandbox.start()
    assert sandbox.fs.download_file("/workspace/a.txt") == b"content"
    sandbox.delete()


def test_morph(runtime):
    from withruntime.morph.api import MorphCloudClient
    client = MorphCloudClient()
    base = client.snapshots.create(image_id="morphvm-minimal", vcpus=1, memory=512, disk_size=4096)
    instance = client.instances.start(base.id)
    assert instance.exec("echo out").stdout.strip() == "out"
    instance.exec("echo kept > /tmp/kept")
    saved = instance.snapshot()
    _, branches = instance.branch(count=2)
    for branch in branches:
        assert branch.exec("cat /tmp/kept").stdout.strip() == "kept"
        branch.stop()
    instance.stop()
    assert saved.id in [snapshot["id"] for snapshot in runtime.snapshots.list().to_list()]


def test_runloop():
    from withruntime.runloop import RunloopSDK
    devbox = RunloopSDK().devbox.create()
    assert devbox.cmd.exec("echo out").stdout() == "out\n"
    devbox.file.write(file_path="/workspace/a.txt", contents="content")
    assert devbox.file.read(file_path="/workspace/a.txt") == "content"
    devbox.shutdown()


def test_vercel():
    from withruntime.vercel.sandbox import sync as vercel
    with vercel.create_sandbox() as box:
        ran = box.run_process("echo", ["out"], capture_output=True)
        assert (ran.returncode, ran.stdout) == (0, "out\n")
        box.fs.write_text("a.txt", "content")
        assert box.fs.read_text("a.txt") == "content"


def test_blaxel():
    from withruntime.blaxel import SyncSandboxInstance
    sandbox = SyncSandboxInstance.create()
    assert sandbox.process.exec({"command": "echo out", "wait_for_completion": True}).stdout == "out\n"
    sandbox.fs.write("/workspace/a.txt", "content")
    assert sandbox.fs.read("/workspace/a.txt") == "content"
    sandbox.delete()


def test_sprites():
    from withruntime.sprites import SpritesClient
    sprite = SpritesClient().create_sprite("sprite-one")
    assert sprite.command("echo", "out").output() == b"out\n"
    sprite.delete()


def test_modal_and_prime_need_images_to_be_made():
    import withruntime.modal as modal
    with pytest.raises(Exception, match="images"):
        modal.Sandbox.create(app=modal.App.lookup("app", create_if_missing=True))
    from withruntime.prime import APIClient, CreateSandboxRequest, SandboxClient
    with pytest.raises(Exception, match="images"):
        SandboxClient(APIClient()).create(CreateSandboxRequest(name="one", docker_image="debian"))
