"""The public program "guarded command": commands with a working directory, short and streamed, in a throw-away sandbox."""
from support.zoo import Zoo


def test_a_guarded_command_sees_what_earlier_ones_made(runtime):
    with runtime.sandboxes.create() as sandbox:
        zoo = Zoo.start(sandbox)
        assert sandbox.exec("git init -q /workspace/made && touch /workspace/made/a").exit_code == 0
        listed = sandbox.exec("ls", cwd="/workspace/made")
        assert (listed.exit_code, listed.stdout) == (0, "a\n")
        seen: list[str] = []
        built = sandbox.exec("for i in 1 2 3; do echo line $i; done; git status --short", cwd="/workspace/made",
                             timeout_ms=300_000, on_stdout=seen.append)
        assert built.exit_code == 0
        assert built.stdout == "".join(seen) == "line 1\nline 2\nline 3\n?? a\n"
        zoo.verify(sandbox)
        sandbox_id = sandbox.id
    found = [other.id for other in runtime.sandboxes.list(include_stopped=True)]
    assert sandbox_id not in found, "the end of the block deletes it"


def test_a_guard_forks_before_the_command_and_throws_the_copy_away(sandbox, zoo: Zoo):
    copy = sandbox.fork()
    with copy:
        ran = copy.exec("rm -rf /workspace/zoo; sudo -n rm -rf /etc/passwd; echo done")
        assert (ran.exit_code, ran.stdout) == (0, "done\n")
    zoo.verify(sandbox)
    assert sandbox.exec("id -un").stdout == "runtime\n"
