"""What the adapters read to find a node: the variables that a user sets."""
import os

import pytest

# The frameworks look things up and tell about themselves at every start; nothing of that is wanted here.
os.environ.update({"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1",
                   "LANGSMITH_TRACING": "false"})


@pytest.fixture(scope="module")
def pointed(node):
    """The environment of this process points the SDK at the node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNTIME_API_URL", node.url)
        patch.setenv("RUNTIME_API_KEY", node.key)
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        yield node
