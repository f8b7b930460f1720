"""Idempotency keys: the same call twice runs once, another call with the same key is refused."""
import json
from concurrent.futures import ThreadPoolExecutor

KEY = {"Idempotency-Key": "once-1"}


def test_the_first_answer_comes_again(node):
    first = node.raw("POST", "/v1/sandboxes", {"labels": {"k": "1"}}, headers={**KEY, "Prefer": "wait=60"})
    again = node.raw("POST", "/v1/sandboxes", {"labels": {"k": "1"}}, headers={**KEY, "Prefer": "wait=60"})
    try:
        assert first.status == again.status and first.json["id"] == again.json["id"]
        assert again.json["replayed"] is True and "replayed" not in first.json
        assert again.headers["Idempotency-Replayed"] == "true"
        other = node.raw("POST", "/v1/sandboxes", {"labels": {"k": "2"}}, headers=KEY)
        assert (other.status, other.error["code"]) == (422, "idempotency_key_reused")
        assert len(node.client.sandboxes.list().to_list()) == 1
    finally:
        node.client.sandboxes.delete(first.json["id"])


def test_a_command_runs_once(node, sandbox):
    body, path = {"command": "echo x >> /workspace/ran; cat /workspace/ran"}, f"/v1/sandboxes/{sandbox.id}:exec"
    answers = [node.raw("POST", path, body, headers={"Idempotency-Key": "run-1"}).json for _ in range(3)]
    assert [answer["stdout"] for answer in answers] == ["x\n"] * 3
    assert [answer.get("replayed") for answer in answers] == [None, True, True]


def test_duplicates_in_flight_wait_for_the_first(node, sandbox):
    body, path = {"command": "echo x >> /workspace/slow; sleep 0.5; wc -l < /workspace/slow"}, f"/v1/sandboxes/{sandbox.id}:exec"
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: node.raw("POST", path, body, headers={"Idempotency-Key": "slow-1"}), range(4)))
    assert {answer.json["stdout"].strip() for answer in answers} == {"1"}
    assert sum("replayed" not in answer.json for answer in answers) == 1


def test_a_replayed_stream_is_the_same_process(node, sandbox):
    body, path = {"command": "echo once >> /workspace/streamed; cat /workspace/streamed", "stream": True}, f"/v1/sandboxes/{sandbox.id}:exec"
    starts = []
    for _ in range(2):
        answer = node.raw("POST", path, body, headers={"Idempotency-Key": "stream-1", "Accept": "application/x-ndjson"})
        events = [json.loads(line) for line in answer.body.splitlines() if line.strip()]
        assert "".join(event["data"] for event in events if event["type"] == "stdout") == "once\n"
        starts.append(events[0])
    assert starts[0]["processId"] == starts[1]["processId"] and starts[1]["replayed"] is True


def test_keys_have_a_form(node):
    for bad in ("-starts-wrong", "sp ace", "x" * 129):
        answer = node.raw("POST", "/v1/sandboxes", {}, headers={"Idempotency-Key": bad})
        assert (answer.status, answer.error["code"]) == (400, "invalid_request")
    assert node.client.sandboxes.list().to_list() == []


def test_a_replayed_error_is_the_same_error(node, sandbox):
    path = f"/v1/sandboxes/{sandbox.id}:fork"
    answers = [node.raw("POST", path, {"count": 0}, headers={"Idempotency-Key": "bad-fork"}) for _ in range(2)]
    assert [answer.status for answer in answers] == [400, 400]
