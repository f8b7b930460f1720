"""Keys beside the admin key: shown once, kept as hashes, gone at once."""
import pathlib

import pytest
from withruntime import AuthenticationError, Runtime


def make(node, name):
    return node.raw("POST", "/v1/keys", {"name": name})


def test_a_key_opens_the_node_until_it_is_removed(node):
    made = make(node, "laptop")
    key = made.json["key"]
    assert made.status == 201 and key.startswith("bbx_") and len(key) == 47 and made.json["id"].startswith("key_")
    runtime = Runtime(api_key=key, base_url=node.url)
    with runtime.sandboxes.create() as sandbox:
        assert sandbox.exec("echo in").stdout == "in\n"
    me = node.raw("GET", "/v1/me", key=key).json
    assert (me["principalId"], me["credentialId"], me["role"]) == ("laptop", made.json["id"], "member")
    [listed] = node.raw("GET", "/v1/keys").json["data"]
    assert "key" not in listed and listed["name"] == "laptop" and listed["usedAt"]
    node.crash()
    node.start()
    assert node.raw("GET", "/v1/me", key=key).status == 200, "it outlives the node"
    assert node.raw("DELETE", "/v1/keys/laptop").json["id"] == made.json["id"]
    with pytest.raises(AuthenticationError):
        Runtime(api_key=key, base_url=node.url).sandboxes.list().to_list()
    assert node.raw("DELETE", "/v1/keys/laptop").error["code"] == "not_found"


def test_a_key_is_nowhere_in_the_state_directory(node):
    key = make(node, "secret").json["key"]
    assert node.raw("GET", "/v1/me", key=key).status == 200
    for path in pathlib.Path(node.state_dir).rglob("*"):
        # The pool's file is mounted below, where its content is looked at.
        if path.is_file() and path.name != "pool.btrfs":
            assert key.encode() not in path.read_bytes(), path
    assert key not in node.log()
    node.raw("DELETE", "/v1/keys/secret")


def test_only_the_admin_makes_keys(node):
    key = make(node, "guest").json["key"]
    for method, path in (("POST", "/v1/keys"), ("GET", "/v1/keys"), ("DELETE", "/v1/keys/guest")):
        refused = node.raw(method, path, {"name": "x"} if method == "POST" else None, key=key)
        assert (refused.status, refused.error["code"]) == (403, "forbidden")
    assert node.raw("DELETE", "/v1/keys/guest").status == 200


def test_bad_names_and_wrong_keys_are_told(node):
    assert make(node, "a b").error["details"]["issues"][0]["path"] == "name"
    assert node.raw("POST", "/v1/keys", {}).status == 400
    make(node, "twice")
    taken = make(node, "twice")
    assert (taken.status, taken.error["code"]) == (409, "name_taken")
    node.raw("DELETE", "/v1/keys/twice")
    for wrong in ("bbx_" + "a" * 43, "x", node.key[:-1]):
        assert node.raw("GET", "/v1/me", key=wrong).status == 401


def test_idempotency_keys_belong_to_their_key(node):
    first, second = make(node, "first").json["key"], make(node, "second").json["key"]
    headers = {"Idempotency-Key": "same"}
    one = node.raw("POST", "/v1/sandboxes", {}, headers=headers, key=first).json
    other = node.raw("POST", "/v1/sandboxes", {}, headers=headers, key=second).json
    again = node.raw("POST", "/v1/sandboxes", {}, headers=headers, key=first).json
    assert one["id"] != other["id"] and (again["id"], again["replayed"]) == (one["id"], True)
    for box in (one, other):
        node.client.sandboxes.delete(box["id"])
    node.raw("DELETE", "/v1/keys/first")
    node.raw("DELETE", "/v1/keys/second")


def test_the_audit_log_names_the_key(node):
    made = make(node, "auditor").json
    sandbox = Runtime(api_key=made["key"], base_url=node.url).sandboxes.create()
    sandbox.delete()
    node.raw("DELETE", "/v1/keys/auditor")
    lines = node.raw("GET", "/v1/audit?limit=50").json["events"]
    by_key = [line["action"] for line in lines if line["actor"]["id"] == made["id"]]
    assert by_key == ["sandbox.deleted", "sandbox.created"] and made["key"] not in str(lines)
    [removed] = [line for line in lines if line["action"] == "key.deleted" and line["target"]["id"] == made["id"]]
    assert removed["actor"]["id"] == "admin"
