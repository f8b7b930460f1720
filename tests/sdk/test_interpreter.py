"""The interpreter through the SDK: state that stays, results, errors, time limits, and state that a fork takes along."""
import threading
import time

import pytest
from support.wait import until
from withruntime import InvalidRequestError, NotFoundError, ServiceUnavailableError


def test_state_stays_between_cells(sandbox):
    run = sandbox.interpreter.run
    first = run("x = 40\nprint('out')\nimport sys; print('err', file=sys.stderr)\nx + 2")
    assert (first["status"], first["stdout"], first["stderr"]) == ("ok", "out\n", "err\n")
    assert first["results"] == [{"main": True, "data": {"text/plain": "42"}, "refs": []}] and first["error"] is None
    assert (first["language"], first["contextId"], first["executionCount"], first["contextStarted"]) == ("python", "python", 1, True)
    second = run("def f(n):\n    return n * x\nf(2)")
    assert second["results"][0]["data"]["text/plain"] == "80" and second["contextStarted"] is False
    assert (second["executionCount"], second["lostBytes"], second["overflow"]) == (2, 0, [])
    assert run("y = 1")["results"] == []


def test_an_error_says_where(sandbox):
    failed = sandbox.interpreter.run("def deep():\n    raise ValueError('no ü')\nprint('before')\ndeep()")
    assert (failed["status"], failed["stdout"], failed["error"]["name"], failed["error"]["value"]) == ("error", "before\n", "ValueError", "no ü")
    trace = "\n".join(failed["error"]["traceback"])
    assert "line 2, in deep" in trace and "raise ValueError" in trace and "evaluate" not in trace
    for code, name in (("1 +", "SyntaxError"), ("input()", "EOFError"), ("raise SystemExit(3)", "SystemExit"), ("1/0", "ZeroDivisionError")):
        assert sandbox.interpreter.run(code)["error"]["name"] == name
    assert sandbox.interpreter.run("'alive'")["results"][0]["data"]["text/plain"] == "'alive'"


def test_rich_results_and_children(sandbox):
    code = ("class R:\n    def _repr_html_(self): return '<b>r</b>'\n    def _repr_png_(self): return b'png'\n"
            "display(1)\nimport subprocess; subprocess.run(['echo', 'from a child'])\nR()")
    ran = sandbox.interpreter.run(code)
    assert ran["stdout"] == "from a child\n"
    shown, main = ran["results"]
    assert (shown["main"], shown["data"]) == (False, {"text/plain": "1"})
    assert main["main"] and main["data"]["text/html"] == "<b>r</b>" and main["data"]["image/png"] == "cG5n"
    assert sandbox.interpreter.run("import asyncio\nawait asyncio.sleep(0.01)\nawait asyncio.sleep(0, 'waited')")["results"][0]["data"]["text/plain"] == "'waited'"


def test_javascript(sandbox):
    def run(code):
        return sandbox.interpreter.run(code, language="javascript")
    assert run("class A { v() { return 1 } }")["status"] == "ok"
    assert run("const x = 40; console.log('out'); console.error('err'); x + 2")["results"][0]["data"]["text/plain"] == "42"
    again = run("const x = 1;\nlet y = await Promise.resolve(x + 1);\nclass A { v() { return 3 } };\n({ y, a: new A().v() })")
    assert again["status"] == "ok", again
    assert again["results"][0]["data"]["application/json"] == {"y": 2, "a": 3}
    failed = run("function f() { throw new TypeError('no') }\nf()")
    assert (failed["status"], failed["error"]["name"], failed["error"]["value"]) == ("error", "TypeError", "no")
    assert run("1 +")["error"]["name"] == "SyntaxError"
    assert run("require('path').basename('/a/b')")["results"][0]["data"]["text/plain"] == "'b'"


def test_bash(sandbox):
    def run(code):
        return sandbox.interpreter.run(code, language="bash")
    assert run("cd /tmp; X=1; f() { echo $X; }; export Y=2")["status"] == "ok"
    ran = run("pwd; f; echo $Y; echo err >&2")
    assert (ran["stdout"], ran["stderr"]) == ("/tmp\n1\n2\n", "err\n")
    failed = run("false")
    assert (failed["status"], failed["error"]["name"], failed["error"]["value"]) == ("error", "ExitStatus", "1")
    assert run("read line; echo \"[$line]\"")["stdout"] == "[]\n", "the driver's lines are not the cell's"
    assert run("exec 2>/dev/null; echo gone >&2")["stderr"] == ""
    assert run("exec >kept; echo into-the-file")["stdout"] == "" and sandbox.exec("cat /tmp/kept").stdout == "into-the-file\n"
    assert run("exit 0")["status"] == "ok"
    assert run("echo $X")["contextStarted"] is True


def test_events_stream_as_they_happen(sandbox):
    seen, at = [], {}
    def note(text):
        seen.append(text)
        # A line may come in pieces.
        at.update((word, time.monotonic()) for word in ("one", "two") if word in "".join(seen) and word not in at)
    execution = sandbox.interpreter.run("import time\nprint('one', flush=True)\ntime.sleep(0.5)\nprint('two')\n7", on_stdout=note,
                                        on_result=lambda result: seen.append(result["data"]["text/plain"]))
    assert "".join(seen) == "one\ntwo\n7" and at["two"] - at["one"] > 0.2
    assert execution["stdout"] == "one\ntwo\n"
    errors = []
    sandbox.interpreter.run("1/0", on_error=errors.append)
    assert errors[0]["name"] == "ZeroDivisionError"


def test_a_time_limit_stops_the_cell_and_keeps_the_state(sandbox):
    run = sandbox.interpreter.run
    run("kept = 1")
    assert run("while True: pass", timeout_ms=500)["status"] == "timeout"
    assert run("kept")["results"][0]["data"]["text/plain"] == "1"
    stubborn = "import time\nwhile True:\n    try:\n        while True: time.sleep(0.01)\n    except KeyboardInterrupt:\n        pass"
    assert run(stubborn, timeout_ms=500)["status"] == "timeout"
    fresh = run("'kept' in globals()")
    assert fresh["contextStarted"] is True and fresh["results"][0]["data"]["text/plain"] == "False"


def test_an_interrupt_stops_the_cell_and_keeps_the_state(sandbox):
    run, contexts = sandbox.interpreter.run, sandbox.interpreter.contexts
    run("kept = 1")
    assert contexts.interrupt("python") is False
    ended = {}
    runner = threading.Thread(target=lambda: ended.update(run("import time; time.sleep(1000)", timeout_ms=0)))
    runner.start()
    until(lambda: contexts.interrupt("python"))
    runner.join(30)
    assert ended["status"] == "interrupted" and ended["error"]["name"] == "KeyboardInterrupt"
    assert run("kept")["results"][0]["data"]["text/plain"] == "1"


def test_contexts_are_apart(sandbox):
    contexts, run = sandbox.interpreter.contexts, sandbox.interpreter.run
    made = contexts.create(id="mine", language="python", cwd="/tmp", env={"WHO": "me"})
    assert (made["id"], made["language"], made["cwd"]) == ("mine", "python", "/tmp")
    assert run("import os; x = 1; (os.getcwd(), os.environ['WHO'])", context="mine")["results"][0]["data"]["text/plain"] == "('/tmp', 'me')"
    assert run("'x' in globals()")["results"][0]["data"]["text/plain"] == "False"
    assert {context["id"] for context in contexts.list()} == {"mine", "python"}
    contexts.restart("mine")
    assert run("'x' in globals()", context="mine")["results"][0]["data"]["text/plain"] == "False"
    assert contexts.remove("mine") is True and contexts.remove("mine") is False
    with pytest.raises(NotFoundError):
        run("1", context="mine")
    with pytest.raises(ServiceUnavailableError) as refused:
        run("1", language="cobol")
    assert refused.value.status == 501 and "python" in refused.value.hint
    with pytest.raises(InvalidRequestError):
        contexts.create(id="Not Good")


def test_cells_of_one_context_wait_for_each_other(sandbox):
    run = sandbox.interpreter.run
    run("order = []")
    runners = [threading.Thread(target=run, args=(f"import time; order.append(('in', {n})); time.sleep(0.05); order.append(('out', {n}))",)) for n in range(5)]
    for runner in runners:
        runner.start()
    for runner in runners:
        runner.join(60)
    pairs = run("[(a[1], b[1], a[0], b[0]) for a, b in zip(order[::2], order[1::2])]")["results"][0]["data"]["text/plain"]
    assert all(first == second and (a, b) == ("in", "out") for first, second, a, b in eval(pairs))


def test_large_output_is_bounded_and_said(sandbox):
    ran = sandbox.interpreter.run("print('x' * 3_000_000)")
    assert ran["status"] == "ok" and ran["overflow"] == ["stdout"] and ran["lostBytes"] > 0
    assert len(ran["stdout"]) + ran["lostBytes"] == 3_000_001
    assert sandbox.interpreter.run("'y' * 5_000_000")["overflow"] == ["results"]
    long = "'" + "z" * 300_000 + "'\nlen(_)"
    assert sandbox.interpreter.run("_ = " + long)["results"][0]["data"]["text/plain"] == "300000"


def test_a_fork_takes_the_state_along(node, sandbox):
    run = sandbox.interpreter.run
    run("x = [1]")
    run("y = [1]", language="javascript")
    with sandbox.fork() as copy:
        assert copy.interpreter.run("x.append(2); x")["results"][0]["data"]["text/plain"] == "[1, 2]"
        assert copy.interpreter.run("y.push(2); y", language="javascript")["results"][0]["data"]["text/plain"] == "[ 1, 2 ]"
        assert run("x.append(3); x")["results"][0]["data"]["text/plain"] == "[1, 3]"
        with copy.fork() as second:
            assert second.interpreter.run("x")["results"][0]["data"]["text/plain"] == "[1, 2]"
    sandbox.pause()
    assert run("x")["results"][0]["data"]["text/plain"] == "[1, 3]"
    snapshot = sandbox.snapshot()
    node.crash()
    node.start()
    again = node.client.sandboxes.get(sandbox.id)
    assert again.interpreter.run("x")["results"][0]["data"]["text/plain"] == "[1, 3]"
    with node.client.sandboxes.create(snapshot=snapshot["id"]) as restored:
        assert restored.interpreter.run("x")["contextStarted"] is False
    node.client.snapshots.delete(snapshot["id"])
    again.delete()
