"""The public program "try in a copy": a step runs in a fork, and the fork replaces the source only when it passed."""
from support.outside import assert_independent, assert_steady, processes, steady
from support.zoo import Zoo

REPO = "/workspace/repo"
LIMIT_MS = 600_000


def prepare(source) -> None:
    made = source.exec(f"mkdir -p {REPO} && cd {REPO} && git init -q . && echo one > README.md && git add -A && "
                       "git -c user.name=t -c user.email=t@localhost commit -qm first && git status --porcelain")
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", "")


def try_in_copy(source, step: str, verify: str):
    """As the public program does it, call by call; returns the sandbox to go on with and whether the step was kept."""
    rules = source.network.get()
    copy = source.fork(labels={"role": "trial-step"})
    copy.network.off()
    stepped = copy.exec(step, cwd=REPO, timeout_ms=LIMIT_MS)
    passed = stepped.exit_code == 0 and copy.exec(verify, cwd=REPO, timeout_ms=LIMIT_MS).exit_code == 0
    if not passed:
        copy.delete()
        return source, False
    copy.network.set(internet=rules["internet"], allow=rules["allow"], deny=rules["deny"],
                     connect=rules["connect"] or None)
    source.delete()
    return copy, True


def test_a_bad_step_is_never_seen_by_the_source(node, sandbox, zoo: Zoo):
    prepare(sandbox)
    before = steady(node, sandbox.id)
    kept, passed = try_in_copy(sandbox, "rm -rf ./* .git && kill -9 $(pgrep -u runtime node) ; true", "test -f README.md")
    assert (kept, passed) == (sandbox, False)
    assert sandbox.exec("cat README.md && git status --porcelain", cwd=REPO).stdout == "one\n"
    zoo.verify(sandbox)
    assert_steady(node, sandbox.id, before)


def test_a_failing_step_stops_before_its_check(sandbox):
    prepare(sandbox)
    kept, passed = try_in_copy(sandbox, "echo half > half.txt; exit 3", "true")
    assert (kept, passed) == (sandbox, False)
    assert sandbox.files.exists(f"{REPO}/half.txt") is False


def test_a_good_step_goes_on_in_the_copy(node, runtime):
    source = runtime.sandboxes.create(labels={"role": "main"})
    zoo = Zoo.start(source)
    prepare(source)
    kept, passed = try_in_copy(source, "echo two >> README.md", "grep -q two README.md")
    try:
        assert passed and kept.id != source.id
        assert kept.exec("cat README.md", cwd=REPO).stdout == "one\ntwo\n"
        zoo.verify(kept)
        assert kept.info["labels"] == {"role": "trial-step"}
        rules = kept.network.get()
        assert (rules["internet"], rules["allow"], rules["deny"], rules["connect"]) == (False, [], [], [])
    finally:
        kept.delete()


def test_copy_and_source_are_two_machines(node, sandbox, zoo: Zoo):
    copy = sandbox.fork()
    try:
        assert_independent(node, sandbox.id, [copy.id])
        assert_steady(node, copy.id, steady(node, sandbox.id))
        twin = zoo.copy()
        zoo.give(sandbox, 10, "source")
        twin.give(copy, 200, "copy")
        zoo.verify(sandbox)
        twin.verify(copy)
        assert sandbox.exec("touch /workspace/mine").exit_code == 0
        assert not copy.files.exists("/workspace/mine")
    finally:
        copy.delete()
    zoo.verify(sandbox)
