"""The adapter for Inspect AI: its own conformance checks, and an evaluation whose model is Inspect's scripted one."""
import asyncio
import inspect

import pytest
from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, accuracy, includes, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, bash_session, python, text_editor
from inspect_ai.util import OutputLimitExceededError, SandboxEnvironmentLimits, SandboxEnvironmentSpec
from inspect_ai.util import sandbox as in_sandbox
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv
from withruntime.inspect_ai import RuntimeSandboxEnvironmentConfig

KIND = registry_find_sandboxenv("runtime")

# Checks that the file system refuses something: root, who is Inspect's default here, is refused nothing.
OF_A_USER = ["test_read_file_not_allowed", "test_write_text_file_without_permissions",
             "test_write_binary_file_without_permissions"]
CHECKS = [name for name, check in vars(self_check).items()
          if name.startswith("test_") and inspect.iscoroutinefunction(check) and name not in OF_A_USER]


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def environment(pointed, loop):
    """A sandbox as Inspect makes one for a sample."""
    yield from started(loop, None)


@pytest.fixture(scope="module")
def environment_of_a_user(pointed, loop):
    """The same, where commands run as the sandbox's own user."""
    yield from started(loop, RuntimeSandboxEnvironmentConfig(user=None))


def started(loop, config):
    made = loop.run(KIND.sample_init("checks", config, {}))
    yield made["default"]
    loop.run(KIND.sample_cleanup("checks", config, made, False))


@pytest.mark.parametrize("name", CHECKS)
def test_conforms(name, environment, loop):
    loop.run(getattr(self_check, name)(environment))


@pytest.mark.parametrize("name", OF_A_USER)
def test_conforms_as_a_user(name, environment_of_a_user, loop):
    loop.run(getattr(self_check, name)(environment_of_a_user))


def test_output_past_the_limit_is_an_error_that_holds_what_fits(environment, loop):
    most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    with pytest.raises(OutputLimitExceededError) as caught:
        loop.run(environment.exec(["sh", "-c", f"head -c {most + 1} /dev/zero | tr '\\0' x"]))
    assert caught.value.truncated_output == "x" * most


def test_connection_names_the_sandbox(environment, loop):
    assert loop.run(environment.connection()).container == environment.sandbox.id


def evaluate_calls(tmp_path, calls, *, tools, sandbox="runtime", score=includes()):
    """The log of an evaluation of one sample whose model makes these calls and then says what the last answered."""
    def answer(messages, *_):
        said = sum(message.role == "assistant" for message in messages)
        output = (ModelOutput.for_tool_call("mockllm/model", *calls[said]) if said < len(calls)
                  else ModelOutput.from_content("mockllm/model", messages[-1].text))
        # Counted here: Inspect would count with a table of tokens that it fetches.
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output
    sample = Sample(input="Do it.", target="42", files={"given.txt": "given\n"}, setup="echo set > set.txt")
    task = Task(dataset=[sample], solver=[use_tools(tools), generate()], scorer=score, sandbox=sandbox)
    [log] = evaluate(task, model=get_model("mockllm/model", custom_outputs=answer), log_dir=str(tmp_path),
                     display="none")
    return log


def evaluated(tmp_path, calls, **what):
    """What the calls answered, and the score."""
    log = evaluate_calls(tmp_path, calls, **what)
    assert log.status == "success", log.error
    [sample] = log.samples
    answers = [message for message in sample.messages if message.role == "tool"]
    assert [message.error for message in answers] == [None] * len(calls)
    return [message.text for message in answers], log.results.scores[0].metrics["accuracy"].value


def test_an_evaluation_runs_its_tools_in_a_sandbox(pointed, tmp_path):
    answers, right = evaluated(tmp_path, [
        ("bash", {"command": "cat given.txt set.txt; id -un"}),
        ("text_editor", {"command": "create", "path": "/workspace/x.py", "file_text": "print(6 * 7)\n"}),
        ("python", {"code": "exec(open('/workspace/x.py').read())"}),
    ], tools=[bash(), text_editor(), python()])
    assert (answers[0], answers[-1], right) == ("given\nset\nroot\n", "42\n", 1)
    made = pointed.client.sandboxes.list(labels={"created_by": "inspect-ai", "inspect_task": "task"}, include_stopped=True)
    assert {one.state for one in made.to_list()} == {"stopped"}


@scorer(metrics=[accuracy()])
def the_file_says():
    async def score(state, target):
        return Score(value=await in_sandbox().read_file("answer.txt") == target.text)
    return score


def test_a_scorer_reads_the_sandbox(pointed, tmp_path):
    config = RuntimeSandboxEnvironmentConfig(workdir="/tmp/work", env={"ANSWER": "42"}, memory_mib=512)
    _, right = evaluated(tmp_path, [("bash", {"command": 'printf "$ANSWER" > answer.txt'})], tools=[bash()],
                   sandbox=SandboxEnvironmentSpec("runtime", config), score=the_file_says())
    assert right == 1


def test_tools_that_need_a_server_of_inspects_own_fail(pointed, tmp_path):
    """Inspect starts that server by a command, and what a command leaves behind ends with it."""
    call = ("bash_session", {"action": "type_submit", "input": "true"})
    log = evaluate_calls(tmp_path, [call], tools=[bash_session()])
    assert log.status == "error" and "BashSession" in log.error.message
