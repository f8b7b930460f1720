"""The adapter for Deep Agents: each method of its backend protocol, and an agent whose model is a list of what to say."""
import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolCall
from withruntime.deepagents import RuntimeSandbox


@pytest.fixture
def backend(sandbox):
    return RuntimeSandbox(sandbox)


def test_a_command_has_its_output_and_its_code(backend, sandbox):
    ran = backend.execute("echo out; echo err >&2; exit 3")
    assert (ran.output, ran.exit_code, ran.truncated) == ("out\nerr\n", 3, False)
    assert backend.id == sandbox.id


def test_a_command_that_runs_too_long_is_ended_and_says_so(backend):
    ran = backend.execute("echo before; sleep 1000", timeout=1)
    assert ran.output.startswith("before\n") and "ran past 1 seconds" in ran.output
    assert ran.exit_code == -9


def test_a_limit_keeps_the_end_of_the_output(sandbox):
    ran = RuntimeSandbox(sandbox, max_output_chars=4).execute("seq 100")
    assert (ran.output, ran.truncated) == ("100\n"[-4:], True)


def test_files_are_written_read_edited_and_found(backend):
    assert backend.write("/workspace/src/a.py", "one = 1\ntwo = 2\nthree = 3\n").error is None
    assert backend.read("/workspace/src/a.py", offset=1, limit=1).file_data["content"].strip() == "two = 2"
    edited = backend.edit("/workspace/src/a.py", "two = 2", "two = 22")
    assert (edited.error, edited.occurrences) == (None, 1)
    assert backend.edit("/workspace/src/a.py", "absent", "x").error is not None
    assert [entry["path"] for entry in backend.ls("/workspace/src").entries] == ["/workspace/src/a.py"]
    [match] = backend.grep("22", path="/workspace").matches
    assert (match["path"], match["line"], match["text"]) == ("/workspace/src/a.py", 2, "two = 22")
    assert [entry["path"] for entry in backend.glob("**/*.py", path="/workspace").matches] == ["/workspace/src/a.py"]
    assert backend.delete("/workspace/src/a.py").error is None
    assert backend.read("/workspace/src/a.py").error is not None


def test_files_move_in_and_out_wherever_they_are(backend):
    content = bytes(range(256)) * 8192                 # 2 MiB: in pieces
    paths = ["/workspace/in/a.bin", "/tmp/deep/b.bin"]
    assert [put.error for put in backend.upload_files([(path, content) for path in paths])] == [None, None]
    assert [got.content == content for got in backend.download_files(paths)] == [True, True]
    missing, folder, relative = backend.download_files(["/workspace/none", "/tmp", "x"])
    assert (missing.error, folder.error, relative.error) == ("file_not_found", "is_directory", "invalid_path")
    [denied] = backend.upload_files([("/etc/x", b"x")])
    assert denied.error == "permission_denied"


class Scripted(GenericFakeChatModel):
    """Says its messages one after another, whatever tools it is offered."""

    def bind_tools(self, tools, **_):
        return self


def calls(name, **arguments):
    return AIMessage(content="", tool_calls=[ToolCall(name=name, args=arguments, id=f"call-{name}")])


def test_an_agent_works_in_the_sandbox(backend, sandbox):
    model = Scripted(messages=iter([
        calls("write_file", file_path="/workspace/x.py", content="print(6 * 7)\n"),
        calls("edit_file", file_path="/workspace/x.py", old_string="7", new_string="8"),
        calls("execute", command="python3 /workspace/x.py"),
        AIMessage(content="done"),
    ]))
    said = create_deep_agent(model=model, backend=backend).invoke({"messages": [{"role": "user", "content": "Go."}]})
    answers = [message.text for message in said["messages"] if message.type == "tool"]
    assert answers[-1].startswith("48\n") and said["messages"][-1].text == "done"
    assert sandbox.files.read("/workspace/x.py") == b"print(6 * 8)\n"


def test_the_agents_workspace_can_be_forked(backend, sandbox):
    backend.write("/workspace/a.txt", "one")
    with sandbox.fork() as copy:
        RuntimeSandbox(copy).edit("/workspace/a.txt", "one", "two")
        assert sandbox.files.read("/workspace/a.txt") == b"one"
        assert copy.files.read("/workspace/a.txt") == b"two"
