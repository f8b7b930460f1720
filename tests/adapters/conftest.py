"""What the adapters read to find a node: the variables that a user sets."""
import pytest


@pytest.fixture(scope="module")
def pointed(node):
    """The environment of this process points the SDK at the node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNTIME_API_URL", node.url)
        patch.setenv("RUNTIME_API_KEY", node.key)
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield node
