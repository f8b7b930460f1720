"""Law 1: what cannot be represented is refused by name, and the source runs on."""
import pytest
from support.wait import until
from support.zoo import Zoo
from withruntime import ConflictError

TRACER = """
import ctypes, os, signal, sys, time
child = os.fork()
if child == 0:
    while True: time.sleep(0.05)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.ptrace(0x4206, child, 0, 0) == 0
print(child, flush=True)
sys.stdin.readline()
libc.ptrace(0x11, child, 0, 0)
os.kill(child, signal.SIGKILL)
"""


def test_a_traced_process_is_refused_with_both_names(sandbox, zoo: Zoo):
    sandbox.files.write("/workspace/tracer.py", TRACER)
    tracer = sandbox.spawn("exec python3 -u /workspace/tracer.py", stdin="pipe")
    until(lambda: tracer.refresh()["outputBytes"] > 0)
    traced = next(event["data"] for event in tracer.output() if event["type"] == "stdout").strip()
    for act in (sandbox.fork, sandbox.snapshot):
        with pytest.raises(ConflictError) as refused:
            act()
        error = refused.value
        assert error.code == "capture_refused" and error.hint and error.retryable is False
        assert "python3" in error.message and traced in str(error.details | {"message": error.message})
        assert {"pid", "process", "object", "why"} <= error.details.keys()
    zoo.verify(sandbox)
    tracer.write("\n", eof=True)
    tracer.wait()
    with sandbox.fork() as copy:
        zoo.copy().verify(copy)


def test_a_refused_capture_leaves_no_snapshot(node, sandbox):
    sandbox.files.write("/workspace/tracer.py", TRACER)
    tracer = sandbox.spawn("exec python3 -u /workspace/tracer.py", stdin="pipe")
    until(lambda: tracer.refresh()["outputBytes"] > 0)
    with pytest.raises(ConflictError):
        sandbox.snapshot()
    assert [s["state"] for s in node.client.snapshots.list(sandbox_id=sandbox.id) if s["state"] == "ready"] == []
    kept = [str(path) for place in ("extents/*", "layers/*", "pool/layers/*") for path in node.state_dir.glob(place)]
    assert kept == []
    tracer.write("\n", eof=True)
