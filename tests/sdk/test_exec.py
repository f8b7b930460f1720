"""Commands: both forms of the call, their output, their end, and what goes wrong with them."""
import base64
import hashlib
import json
import threading
import time

import pytest
from support.outside import processes
from support.wait import until
from withruntime import CommandError

MIB = 1024 * 1024


def test_both_forms_answer_the_same(sandbox):
    command = "echo out; echo err >&2; exit 7"
    short = sandbox.exec(command)
    streamed = sandbox.exec(command, timeout_ms=120_000)
    for result in (short, streamed):
        assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (7, "out\n", "err\n", False)
        assert not result.stdout_truncated and not result.stderr_truncated
        assert result.process_id and result.duration_ms is not None


def test_words_environment_input_and_place(sandbox):
    assert sandbox.exec(["printf", "%s|", "a b", "$HOME", "*"]).stdout == "a b|$HOME|*|"
    assert sandbox.exec("echo $A-$B", env={"A": "1", "B": "two words"}).stdout == "1-two words\n"
    assert sandbox.exec("cat", stdin="from outside").stdout == "from outside"
    assert sandbox.exec("wc -c", stdin=bytes(range(256)) * 1024).stdout.strip() == str(256 * 1024)
    assert sandbox.exec("pwd").stdout == "/workspace\n"
    assert sandbox.exec("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.exec("id -u", user="root").stdout == "0\n"


def test_env_of_the_sandbox_reaches_every_command(runtime):
    with runtime.sandboxes.create(env={"FROM": "sandbox", "KEPT": "yes"}) as sandbox:
        assert sandbox.exec("echo $FROM $KEPT", env={"FROM": "command"}).stdout == "command yes\n"
        with sandbox.fork() as copy:
            assert copy.exec("echo $FROM").stdout == "sandbox\n"


@pytest.mark.parametrize(("command", "code", "said"), [
    (["no-such-program"], 127, "no-such-program"),
    (["/etc"], 126, "/etc"),
    (["/etc/hostname"], 126, "/etc/hostname"),
    ("no-such-program", 127, "not found"),
    ("kill -9 $$", -9, ""),
    ("kill -TERM $$", -15, ""),
])
def test_what_cannot_run_has_the_shells_code(sandbox, command, code, said):
    for timeout_ms in (None, 120_000):
        result = sandbox.exec(command, timeout_ms=timeout_ms)
        assert result.exit_code == code and said in result.stderr


def test_a_missing_working_directory_is_the_commands_failure(sandbox):
    result = sandbox.exec("echo never", cwd="/workspace/nowhere")
    assert result.exit_code not in (0, None) and "/workspace/nowhere" in result.stderr and result.stdout == ""


def test_a_time_limit_ends_the_command_and_all_it_started(node, sandbox):
    began = time.monotonic()
    result = sandbox.exec("echo started; sleep 1001 & sleep 1001; echo never", timeout_ms=500)
    assert result.timed_out and result.exit_code in (-9, None) and result.stdout == "started\n"
    assert time.monotonic() - began < 10
    until(lambda: not any(seen.name == "sleep" for seen in processes(node, sandbox.id).values()), what="all sleeps end")


def test_what_a_command_left_behind_ends_with_it(node, sandbox):
    began = time.monotonic()
    result = sandbox.exec("nohup sleep 1002 >/dev/null 2>&1 & setsid sleep 1002 & echo done")
    assert (result.exit_code, result.stdout) == (0, "done\n") and time.monotonic() - began < 10
    until(lambda: not any(seen.name == "sleep" for seen in processes(node, sandbox.id).values()), what="all sleeps end")


def test_input_left_open_does_not_hold_the_command(sandbox):
    process = sandbox.spawn("echo done; exit 4", stdin="pipe")
    assert process.wait().stdout == "done\n" and process.exit_code == 4


def test_one_byte_binary_and_split_characters(sandbox):
    assert sandbox.exec("printf x").stdout == "x"
    binary = sandbox.spawn("head -c 300000 /dev/zero | tr '\\0' '\\377'; printf '\\000\\001'", output_encoding="base64")
    got = b"".join(event["data"] for event in binary.output_bytes() if event["type"] == "stdout")
    assert got == b"\xff" * 300_000 + b"\x00\x01"
    program = "import sys,time\nfor b in '€ùñ😀'.encode()*200: sys.stdout.buffer.write(bytes([b])); sys.stdout.buffer.flush()"
    split = sandbox.exec(["python3", "-c", program], timeout_ms=120_000)
    assert split.stdout == "€ùñ😀" * 200 and not split.stdout_truncated


def test_offsets_count_every_byte_of_both_streams(node, sandbox):
    body = {"command": "for i in $(seq 200); do printf 'é%s' $i; printf 'ü' >&2; done", "stream": True}
    answer = node.raw("POST", f"/v1/sandboxes/{sandbox.id}:exec", body, headers={"Accept": "application/x-ndjson"})
    events = [json.loads(line) for line in answer.body.splitlines() if line.strip()]
    assert events[0]["type"] == "start" and events[-1]["type"] == "exit"
    place = 0
    for event in events[1:-1]:
        assert event["type"] in ("stdout", "stderr") and event["offset"] == place
        place += len(event["data"].encode())
    assert (events[-1]["exitCode"], events[-1]["state"], events[-1]["timedOut"]) == (0, "exited", False)


def test_a_hundred_megabytes_stream_through_whole(sandbox):
    total = 0
    for event in sandbox.exec_stream("head -c 100000000 /dev/zero | tr '\\0' 'a'", timeout_ms=300_000):
        assert event["type"] != "truncated"
        if event["type"] == "stdout":
            total += len(event["data"])
    assert total == 100_000_000


def test_the_short_form_is_bounded_and_says_so(sandbox):
    result = sandbox.exec("head -c 1000000 /dev/zero | tr '\\0' 'a'; echo small >&2")
    assert result.exit_code == 0 and result.stdout_truncated and not result.stderr_truncated
    assert set(result.stdout) == {"a"} and 64 * 1024 - 4 <= len(result.stdout) <= 64 * 1024
    assert result.stderr == "small\n"


def test_output_nobody_reads_is_bounded_and_counted(sandbox):
    process = sandbox.spawn(f"head -c {4 * MIB} /dev/zero | tr '\\0' 'b'; echo end")
    until(lambda: process.refresh()["state"] == "exited", seconds=30)
    events = list(process.output())
    dropped = sum(event["droppedBytes"] for event in events if event["type"] == "truncated")
    kept = sum(len(event["data"]) for event in events if event["type"] == "stdout")
    assert dropped > 0 and dropped + kept == 4 * MIB + 4
    assert process.info["outputBytes"] == 4 * MIB + 4


def test_a_client_that_hangs_up_does_not_end_the_command(sandbox):
    events = sandbox.exec_stream("echo $$; sleep 0.3; echo alive > /workspace/after", timeout_ms=120_000)
    for event in events:
        if event["type"] == "stdout":
            break
    events.close()
    until(lambda: sandbox.files.exists("/workspace/after"), what="the command went on")


def test_a_stream_ends_with_an_error_when_its_sandbox_is_deleted(runtime):
    sandbox = runtime.sandboxes.create()
    ended: list[object] = []

    def follow() -> None:
        try:
            ended.append(sandbox.exec("echo up; sleep 1003", timeout_ms=600_000, on_stdout=lambda _: up.set()))
        except Exception as error:  # noqa: BLE001 - whatever it is, it must come
            ended.append(error)
    up = threading.Event()
    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    assert up.wait(20)
    sandbox.delete()
    reader.join(60)
    assert not reader.is_alive(), "the stream hangs"
    assert isinstance(ended[0], Exception) or ended[0].exit_code != 0


def until_newline(pieces) -> str:
    line = ""
    while not line.endswith("\n"):
        line += next(pieces)
    return line


def test_a_stdio_server_talks_both_ways(sandbox):
    process = sandbox.spawn(["python3", "-u", "-c", "import sys\nfor line in sys.stdin: print(line.strip()[::-1])"], stdin="pipe")
    # An unbuffered print writes its text and its newline apart.
    said = (event["data"] for event in process.output() if event["type"] == "stdout")
    answers = iter(lambda: until_newline(said), "")
    for word in ("abc", "hello", "€uro"):
        process.write(word + "\n")
        assert next(answers) == word[::-1] + "\n"
    process.write("", eof=True)
    assert process.wait().exit_code == 0


def test_input_of_a_megabyte_arrives_whole_and_once(sandbox):
    process = sandbox.spawn("sleep 0.2; sha256sum; ", stdin="pipe")
    data = bytes(number % 253 for number in range(2 * MIB))
    process.write(data, eof=True)
    import hashlib
    assert process.wait().stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_signals_and_lists(sandbox):
    process = sandbox.spawn("trap 'echo got it; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
    until(lambda: process.refresh()["outputBytes"] > 0)
    listed = {entry["id"]: entry for entry in sandbox.processes()}
    assert listed[process.id]["state"] == "running" and "trap" in listed[process.id]["command"]
    process.kill("SIGUSR1")
    result = process.wait()
    assert (result.exit_code, result.stdout) == (9, "ready\ngot it\n")
    assert sandbox.process(process.id).state == "exited"
    stubborn = sandbox.spawn("exec sleep 1004")
    stubborn.kill("SIGKILL")
    assert stubborn.wait().exit_code in (-9, None) and stubborn.state == "killed"


def test_check_raises_with_the_output(sandbox):
    with pytest.raises(CommandError) as failed:
        sandbox.exec("echo why >&2; exit 2", check=True)
    assert failed.value.exit_code == 2 and "why" in failed.value.stderr


def test_base64_input_of_the_raw_call(node, sandbox):
    body = {"command": "cat", "stdinBase64": base64.b64encode(b"raw").decode()}
    assert node.raw("POST", f"/v1/sandboxes/{sandbox.id}:exec", body).json["stdout"] == "raw"


def test_input_that_comes_twice_counts_once(node, sandbox):
    started = node.raw("POST", f"/v1/sandboxes/{sandbox.id}/processes", {"command": "sha256sum", "stdinMode": "pipe"}).json
    data = bytes(range(256)) * 1200  # Several pieces on the way to the process.
    path = f"/v1/sandboxes/{sandbox.id}/processes/{started['id']}:write"
    for offset in (0, 0, len(data)):
        body = {"base64": base64.b64encode(data).decode(), "offset": offset}
        assert node.raw("POST", path, body).json["offset"] == max(len(data), offset + len(data))
    node.raw("POST", path, {"base64": "", "offset": 2 * len(data), "eof": True})
    ended = sandbox.process(started["id"]).wait()
    assert ended.stdout.split()[0] == hashlib.sha256(data + data).hexdigest()
