"""What a sandbox uses over time."""
import pytest
from support.wait import until
from withruntime import InvalidRequestError, NotFoundError

MIB = 1 << 20


def test_processors_and_memory_are_read_while_it_works(runtime):
    with runtime.sandboxes.create(vcpu=1, memory_mib=512) as sandbox:
        keep = "x = bytearray(100 << 20)\nwhile True: x[::4096] = bytes(len(x[::4096]))"
        busy = sandbox.spawn(["python3", "-c", keep])
        wanted = lambda latest: latest and latest["cpuPercent"] > 20 and latest["memoryBytes"] > 100 * MIB  # noqa: E731
        latest = until(lambda: next(filter(wanted, [sandbox.metrics()["latest"]]), None), seconds=30)
        assert latest["cpuPercent"] == pytest.approx(latest["cpuCores"] * 100, rel=1e-6) and latest["cpuPercent"] < 150
        for known, seconds, step in (("15m", 900, 5), ("1h", 3600, 20), ("30d", 2_592_000, 14_400)):
            seen = sandbox.metrics(range=known)
            assert (seen["range"], seen["stepSeconds"], seen["sandboxId"]) == (known, step, sandbox.id)
            assert (seen["vcpu"], seen["memoryLimitBytes"]) == (1, 512 * MIB) and seen["diskLimitBytes"] > 0
            points = seen["points"]
            assert points and points == sorted(points, key=lambda point: point["at"])
            assert len(points) <= seconds // step + 1
            assert max(point["cpuPeakPercent"] for point in points) >= latest["cpuPercent"]
            assert max(point["memoryPeakBytes"] for point in points) >= latest["memoryBytes"]
            assert all(point["samples"] >= 1 and point["cpuPeakPercent"] >= point["cpuPercent"] for point in points)
        busy.kill()
        until(lambda: sandbox.metrics()["latest"]["cpuPercent"] < 20, seconds=30)


def test_looking_wakes_nobody_and_bad_questions_are_named(runtime, sandbox):
    sandbox.pause()
    assert sandbox.metrics(range="24h")["state"] == "paused"
    assert runtime.sandboxes.get(sandbox.id).state == "paused"
    with pytest.raises(InvalidRequestError):
        sandbox.metrics(range="2h")
    sandbox.delete()
    with pytest.raises(NotFoundError):
        sandbox.metrics()
