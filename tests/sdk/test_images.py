"""Images: today this machine's own files, read and named as the SDK does."""
import pytest
from withruntime import NotFoundError, ServiceUnavailableError


def test_the_host_image_is_found_by_every_name_it_has(runtime):
    [image] = runtime.images.list().to_list()
    assert (image["name"], image["state"], image["tags"], image["workdir"]) == ("host", "ready", ["latest"], "/workspace")
    for ref in ("host", "host:latest", "host@1", image["id"], image["source"]["identity"]):
        assert runtime.images.resolve(ref)["id"] == image["id"]
        with runtime.sandboxes.create(image=ref) as sandbox:
            assert sandbox.info["image"] == "host"
    assert runtime.images.get(image["id"])["name"] == "host"


@pytest.mark.parametrize("ref", ["debian", "host:old", "host@2", "00000000-0000-4000-8000-000000000000", "a/b:c", ""])
def test_what_is_not_there_is_not_found(runtime, ref):
    for look in (lambda: runtime.images.resolve(ref or "x"), lambda: runtime.sandboxes.create(image=ref or "x")):
        with pytest.raises(NotFoundError) as missing:
            look()
        assert missing.value.code == "image_not_found"


def test_making_one_is_not_there_yet(node):
    refused = node.raw("POST", "/v1/images", {"recipe": {"base": "debian"}})
    assert (refused.status, refused.error["code"]) == (501, "unavailable")
