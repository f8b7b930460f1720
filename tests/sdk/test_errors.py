"""The error envelope, and everything that a client can send and must not."""
import http.client
import json
import socket
import urllib.parse

import pytest
from withruntime import AuthenticationError, ConflictError, NotFoundError, Runtime

UNKNOWN = "01900000-0000-7000-8000-000000000000"


def test_the_envelope_is_whole(node):
    answer = node.raw("GET", f"/v1/sandboxes/{UNKNOWN}")
    error = answer.error
    assert answer.status == error["status"] == 404 and error["code"] == "not_found"
    assert error["message"] and error["hint"] and error["requestId"] == answer.headers["x-request-id"]
    assert isinstance(error["details"], dict) and error["retryable"] is False


def test_every_answer_has_a_request_id(node):
    ids = {node.raw("GET", "/v1/sandboxes").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize("key", [None, "wrong", "bbx_" + "A" * 43])
def test_no_way_in_without_the_key(node, key):
    answer = node.raw("GET", "/v1/sandboxes", key=key)
    assert (answer.status, answer.error["code"]) == (401, "unauthorized")
    with pytest.raises(AuthenticationError):
        Runtime(api_key="wrong", base_url=node.url).sandboxes.list()


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("GET", "/v1/nothing", 404, "route_not_found"), ("GET", "/elsewhere", 404, "route_not_found"),
    ("PATCH", "/v1/sandboxes", 405, "method_not_allowed"), ("POST", f"/v1/sandboxes/{UNKNOWN}:dance", 404, "route_not_found"),
    ("POST", f"/v1/sandboxes/{UNKNOWN}:exec", 404, "not_found"), ("POST", f"/v1/sandboxes/{UNKNOWN}:fork", 404, "not_found"),
    ("POST", "/v1/sandboxes/not-an-id:stop", 404, "not_found"), ("GET", f"/v1/snapshots/{UNKNOWN}", 404, "snapshot_not_found"),
    ("DELETE", f"/v1/sandboxes/{UNKNOWN}", 404, "not_found"), ("POST", "/v1/volumes", 501, "unavailable"),
    ("GET", "/v1/sandboxes/..%2f..%2fetc%2fpasswd", 404, "not_found"), ("GET", "/v1/sandboxes/%00", 404, "not_found"),
])
def test_routes_and_ids_that_are_not_there(node, method, path, status, code):
    body = None if method in ("GET", "DELETE") else ({"command": "true"} if path.endswith("exec") else {})
    answer = node.raw(method, path, body)
    assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"a":' * 2000 + b"1" + b"}" * 2000, b'{"name": NaN}', b'"text"'])
def test_bodies_that_are_no_object(node, data):
    answer = node.raw("POST", "/v1/sandboxes", data=data)
    if data == b"" and answer.status in (200, 201):
        node.client.sandboxes.delete(answer.json["id"])
        return
    assert (answer.status, answer.error["code"]) == (400, "invalid_request")


def test_too_much_json(node):
    answer = node.raw("POST", "/v1/sandboxes", data=b'{"name":"' + b"x" * (3 << 20) + b'"}')
    assert answer.status in (400, 413) and answer.error["code"] in ("too_large", "invalid_request")


def test_a_client_that_hangs_up_in_the_middle(node, sandbox):
    where = urllib.parse.urlsplit(node.url)
    for sent in (b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nContent-Le", b"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
                 + node.key.encode() + b"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"labels\""):
        with socket.create_connection((where.hostname, where.port)) as link:
            link.sendall(sent)
    assert [box.id for box in node.client.sandboxes.list()] == [sandbox.id]
    assert sandbox.exec("echo on").stdout == "on\n"


def test_a_connection_serves_many_requests(node):
    where = urllib.parse.urlsplit(node.url)
    link = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    for _ in range(3):
        link.request("GET", "/v1/sandboxes", headers={"Authorization": "Bearer " + node.key, "Accept-Encoding": "gzip"})
        answer = link.getresponse()
        assert answer.status == 200 and answer.getheader("content-encoding") is None
        assert json.loads(answer.read())["data"] == []
    link.close()


@pytest.mark.parametrize("body", [{}, {"command": "a", "argv": ["b"]}, {"argv": []}, {"command": "a", "timeoutMs": 0},
                                  {"command": "a", "timeoutMs": 86_400_001}, {"command": "a", "cwd": "relative"}, {"command": "a\u0000b"},
                                  {"command": "a", "stdin": "x", "stdinBase64": "eA=="}, {"command": "a", "stdinBase64": "%%%"},
                                  {"command": "a", "env": {"A=B": "x"}}, {"command": "a", "user": "nobody"}, {"command": "a", "unknown": 1}])
def test_commands_that_cannot_be_accepted(node, sandbox, body):
    answer = node.raw("POST", f"/v1/sandboxes/{sandbox.id}:exec", body)
    assert (answer.status, answer.error["code"]) == (400, "invalid_request") and answer.error["details"]["issues"]


def test_forks_and_snapshots_that_cannot_be_accepted(node, sandbox):
    for body in ({"count": 0}, {"count": 101}, {"count": "2"}, {"labels": {"": "x"}}, {"nonsense": True}):
        assert node.raw("POST", f"/v1/sandboxes/{sandbox.id}:fork", body).status == 400, body
    for body in ({"retentionDays": 0}, {"retentionDays": 366}, {"mode": "half"}, {"name": "a\nb"}):
        assert node.raw("POST", f"/v1/sandboxes/{sandbox.id}:snapshot", body).status == 400, body


def test_what_a_stopped_or_awake_sandbox_refuses(runtime):
    with runtime.sandboxes.create() as sandbox:
        with pytest.raises(ConflictError) as awake:
            runtime.request("POST", f"/v1/sandboxes/{sandbox.id}:wake", body={})
        assert awake.value.code == "not_paused"
        sandbox.stop()
        for act in (sandbox.fork, sandbox.snapshot, lambda: sandbox.files.read("/etc/hostname")):
            with pytest.raises((ConflictError, NotFoundError)):
                act()
