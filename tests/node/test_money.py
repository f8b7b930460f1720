"""Money: what use costs, what keys may do and spend, and what happens at the end of it."""
import json
import time

import pytest
from support.node import Node
from support.wait import until
from withruntime import Runtime, RuntimeAPIError

# So dear that a second of it can be seen.
DEAR = "[prices]\ncpu_hour = 3600\nmemory_gib_hour = 3600\nsnapshot_gb_month = 10000\n"


def with_settings(text: str) -> Node:
    node = Node()
    (node.state_dir / "settings.toml").write_text(text)
    return node


def key(node, name, **more) -> str:
    made = node.raw("POST", "/v1/keys", {"name": name, **more})
    assert made.status == 201, made.body
    return made.json["key"]


def resource(node, which) -> dict:
    return next(entry for entry in node.raw("GET", "/v1/usage").json["resources"] if entry["resourceId"] == which)


def test_use_costs_what_the_list_says():
    with with_settings(DEAR) as node:
        sandbox = node.client.sandboxes.create(memory_mib=1024)
        sandbox.exec("timeout 1 sh -c 'while :; do :; done'")
        sandbox.stop()
        used = resource(node, sandbox.id)
        # A dollar for a second of a processor, and for one of a GiB.
        expected = (used["activeCpuSeconds"] + used["runningSeconds"]) * 1_000_000
        assert used["memoryGiBSeconds"] == pytest.approx(used["runningSeconds"])
        assert used["chargedMicros"] == pytest.approx(expected, rel=0.001) and expected > 1_000_000
        assert used["rates"] == {"compute.cpu": 3_600_000_000, "compute.memory": 3_600_000_000}
        assert node.raw("GET", f"/v1/sandboxes/{sandbox.id}").json["chargedMicros"] == used["chargedMicros"]
        assert int(node.raw("GET", "/v1/usage").json["spent"]) == used["chargedMicros"]
        node.crash()
        node.start()
        assert resource(node, sandbox.id)["chargedMicros"] == used["chargedMicros"], "it outlives the node"
        sandbox = node.client.sandboxes.get(sandbox.id)
        sandbox.delete()
        assert resource(node, sandbox.id)["chargedMicros"] == used["chargedMicros"], "and the sandbox"


def test_snapshots_cost_and_a_forks_own_does_not():
    with with_settings(DEAR) as node:
        sandbox = node.client.sandboxes.create()
        sandbox.exec("head -c 20000000 /dev/urandom > /workspace/data; sync")
        copy = sandbox.fork()
        saved = sandbox.snapshot()
        stored = until(lambda: node.client.snapshots.get(saved["id"])["storedBytes"], seconds=30, what="its bytes are counted")
        began = time.time()
        charged = until(lambda: resource(node, saved["id"])["chargedMicros"], seconds=60, what="it is charged")
        # 20 MB of 10,000 dollars a GB-month are 77 microdollars a second.
        assert 0 < charged < (time.time() - began + 60) * stored * 1e10 / 1e9 / 2_592_000 and stored > 20_000_000
        assert resource(node, saved["id"])["rates"].keys() == {"storage.stored"}
        snapshots = [entry for entry in node.raw("GET", "/v1/usage").json["resources"] if entry["kind"] == "snapshot"]
        assert [entry["resourceId"] for entry in snapshots] == [saved["id"]]
        for box in (copy, sandbox):
            box.delete()


def test_a_daily_limit_ends_spending_and_loses_nothing():
    with with_settings(DEAR) as node:
        # Two seconds of two GiB.
        secret = key(node, "poor", dailyLimitMicros=4_000_000)
        poor = Runtime(api_key=secret, base_url=node.url)
        with poor.sandboxes.create(memory_mib=2048) as sandbox:
            sandbox.exec("echo kept > /workspace/kept")
            counter = sandbox.spawn("i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done")
            asleep = until(lambda: (now := node.raw("GET", f"/v1/sandboxes/{sandbox.id}").json)["state"] == "paused" and now,
                           seconds=60, what="it is paused")
            assert asleep["stopReason"] == "spending_limit"
            limits = node.raw("GET", "/v1/limits", key=secret).json["daily"]
            assert limits["limitMicros"] == 4_000_000 and limits["usedMicros"] >= 4_000_000 and limits["remainingMicros"] == 0
            for spend in (lambda: poor.sandboxes.create(), lambda: sandbox.exec("true"), lambda: sandbox.fork(), lambda: sandbox.wake(),
                          lambda: sandbox.snapshot()):
                with pytest.raises(RuntimeAPIError) as refused:
                    spend()
                assert (refused.value.status, refused.value.code) == (402, "spending_limit_reached"), refused.value
                assert int(refused.value.details["limitMicros"]) == 4_000_000
            assert poor.sandboxes.get(sandbox.id).state == "paused", "reading costs nothing"
            # Who is not limited has more, and what a poor key made stays poor.
            rich = node.client.sandboxes.get(sandbox.id)
            copy = rich.fork()
            assert copy.exec("cat kept").stdout == "kept\n" and copy.process(counter.id).state == "running"
            copy.delete()
            with pytest.raises(RuntimeAPIError):
                rich.exec("true")
        node.raw("DELETE", "/v1/keys/poor")


def test_a_key_has_so_many_sandboxes(node):
    secret = key(node, "two", maxSandboxes=2)
    runtime = Runtime(api_key=secret, base_url=node.url)
    first = runtime.sandboxes.create()
    for make in (lambda: first.fork(count=2), lambda: [runtime.sandboxes.create(), runtime.sandboxes.create()]):
        with pytest.raises(RuntimeAPIError) as refused:
            make()
        assert (refused.value.code, refused.value.details["limit"]) == ("quota_exceeded", "key.sandbox.count")
    rows = {row["limit"]: row for row in node.raw("GET", "/v1/limits", key=secret).json["account"]}
    assert (rows["key.sandbox.count"]["used"], rows["key.sandbox.count"]["max"]) == (2, 2)
    assert "key.sandbox.count" not in {row["limit"] for row in node.raw("GET", "/v1/limits").json["account"]}
    first.stop()
    runtime.sandboxes.create()
    for sandbox in node.client.sandboxes.list(include_stopped=True).to_list():
        sandbox.delete()
    node.raw("DELETE", "/v1/keys/two")


def test_requests_of_a_key_are_counted():
    with with_settings("[limits]\nrequests_per_second = 5\nburst = 10\n") as node:
        secret = key(node, "fast")
        answers = [node.raw("GET", "/v1/me", key=secret) for _ in range(30)]
        refused = [answer for answer in answers if answer.status == 429]
        assert len(refused) >= 10 and all(answer.status in (200, 429) for answer in answers)
        error = refused[0].error
        assert error["code"] == "rate_limited" and 0 < error["retryAfterMs"] <= 200 and refused[0].headers["Retry-After"] == "1"
        runtime = Runtime(api_key=secret, base_url=node.url)
        assert len([runtime.me() for _ in range(20)]) == 20, "the SDK waits and asks again"
        assert {node.raw("GET", "/v1/me").status for _ in range(40)} == {200}, "the admin is not counted"


@pytest.mark.parametrize("text, words", [
    ("[prices]\ncpu = 1\n", "line 2"), ("[prices]\ncpu_hour = -1\n", "prices.cpu_hour"), ("[limits]\nburst = 0\n", "limits.burst"), ("x", "line 1"),
])
def test_a_wrong_settings_file_is_told_at_the_start(text, words):
    node = with_settings(text)
    try:
        with pytest.raises(AssertionError):
            node.start()
        assert words in node.log() and "settings.toml" in node.log(), node.log()
    finally:
        node.process.wait(timeout=10)
        node.close()


def test_limits_are_shown_on_the_command_line(node):
    made = json.loads(node.cli("keys", "create", "--name", "shown", "--daily-limit", "2.50", "--max-sandboxes", "7", "--json").stdout)
    assert (made["dailyLimitMicros"], made["maxSandboxes"]) == (2_500_000, 7)
    table = node.cli("keys", "ls").stdout
    assert "$2.50" in table and " 7" in table
    assert "spent in 24h: $" in node.cli("limits").stdout 
    sandbox = node.cli("create").stdout.strip()
    assert "COST" in node.cli("usage").stdout
    node.cli("rm", sandbox)
    assert node.cli("keys", "create", "--name", "x", "--daily-limit", "-1", check=False).returncode == 2
    node.cli("keys", "rm", "shown")
