"""Forks: many at once, of forks, again and again; the source never notices, the copies never meet."""
import re

from support.outside import assert_independent, assert_steady, guest_pid, namespaces, processes, steady
from support.zoo import Zoo


def test_sixteen_at_once(node, sandbox, zoo: Zoo):
    before = steady(node, sandbox.id)
    copies = sandbox.fork(16, name="wide")
    try:
        assert [copy.info["name"] for copy in copies] == [f"wide-{number}" for number in range(1, 17)]
        assert_independent(node, sandbox.id, [copy.id for copy in copies])
        for number, copy in enumerate(copies, start=1):
            twin = zoo.copy()
            twin.give(copy, 100 + number, f"copy {number}")
            twin.verify(copy)
            assert_steady(node, copy.id, before)
        zoo.give(sandbox, 1, "source")
        zoo.verify(sandbox)
    finally:
        for copy in copies:
            copy.delete()


def test_a_fork_of_a_fork_of_a_fork(node, sandbox, zoo: Zoo):
    line, twins = [sandbox], [zoo]
    try:
        for generation in range(1, 4):
            child, twin = line[-1].fork(), twins[-1].copy()
            line.append(child)
            twins.append(twin)
            twin.give(child, generation, f"generation {generation}")
        for machine, twin in zip(line, twins, strict=True):
            twin.verify(machine)
        snapshot = line[-1].snapshot()
        back, twin = node.client.sandboxes.create(snapshot=snapshot["id"]), twins[-1].copy()
        line.append(back)
        twin.give(back, 50, "from the last one's snapshot")
        twin.verify(back)
        node.client.snapshots.delete(snapshot["id"])
        assert_independent(node, sandbox.id, [machine.id for machine in line[1:]])
    finally:
        for machine in line[1:]:
            machine.delete()


def test_ten_rounds_leave_the_source_as_it_was(node, sandbox, zoo: Zoo):
    before = steady(node, sandbox.id)
    for number in range(10):
        copy, twin = sandbox.fork(), zoo.copy()
        zoo.give(sandbox, 1, "round")
        twin.give(copy, 2, f"lost {number}")
        copy.delete()
    zoo.verify(sandbox)
    assert_steady(node, sandbox.id, before)


def test_the_answer_carries_its_own_measured_times(node, sandbox):
    answer = node.raw("POST", f"/v1/sandboxes/{sandbox.id}:fork", {"count": 2, "labels": {"a": "b"}})
    assert answer.status in (200, 201), answer.body
    made = answer.json
    try:
        assert len(made["sandboxes"]) == 2 and made["snapshot"] is None
        assert all(info["labels"] == {"a": "b"} and info["name"] is None for info in made["sandboxes"])
        timings = made["timings"]
        assert 0 < timings["pauseUs"] <= timings["captureUs"] <= timings["serverUs"]
    finally:
        for info in made["sandboxes"]:
            node.client.sandboxes.delete(info["id"])


def test_keep_snapshot_keeps_it_and_its_absence_leaves_none(node, sandbox):
    node.client.sandboxes.delete(sandbox.fork().id)
    assert node.client.snapshots.list(sandbox_id=sandbox.id).to_list() == []
    answer = node.raw("POST", f"/v1/sandboxes/{sandbox.id}:fork", {"keepSnapshot": True}).json
    node.client.sandboxes.delete(answer["sandboxes"][0]["id"])
    kept = node.client.snapshots.list(sandbox_id=sandbox.id).to_list()
    assert [snapshot["id"] for snapshot in kept] == [answer["snapshot"]["id"]]
    node.client.snapshots.delete(kept[0]["id"])


def test_a_command_goes_on_in_both_and_its_output_stays_whole(sandbox):
    counting = sandbox.spawn("i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo $i; sleep 0.02; done")
    copy = sandbox.fork()
    try:
        whole = "".join(f"{number}\n" for number in range(1, 101))
        there = copy.process(counting.id)
        assert (there.wait().stdout, there.exit_code) == (whole, 0)
        assert (counting.wait().stdout, counting.exit_code) == (whole, 0)
    finally:
        copy.delete()


def test_a_copy_takes_input_of_its_own(sandbox):
    reader = sandbox.spawn("while read -r line; do echo \"got $line\"; done; echo end", stdin="pipe")
    reader.write("before\n")
    copy = sandbox.fork()
    try:
        there = copy.process(reader.id)
        there.write("copy\n", eof=True)
        reader.write("source\n", eof=True)
        assert there.wait().stdout == "got before\ngot copy\nend\n"
        assert reader.wait().stdout == "got before\ngot source\nend\n"
    finally:
        copy.delete()


def wait_for_line(process):
    """Until it has printed its first line: before, a copy would print its own."""
    for event in process.output(timeout_seconds=20):
        if event["type"] == "stdout" and "\n" in event["data"]:
            return


def test_two_copies_never_produce_the_same_random_bytes(sandbox):
    program = "import sys,uuid,secrets\nfor _ in sys.stdin: print(uuid.uuid4(), secrets.token_hex(8), open('/proc/sys/kernel/random/uuid').read(), end='', flush=True)"
    sandbox.files.write("/workspace/random_numbers.py", program)
    drawing = sandbox.spawn("exec python3 /workspace/random_numbers.py", stdin="pipe")
    drawing.write("\n")
    wait_for_line(drawing)
    copies = sandbox.fork(2)
    try:
        drawn = []
        for machine in [sandbox, *copies]:
            process = machine.process(drawing.id)
            process.write("\n", eof=True)
            drawn.append(process.wait().stdout.splitlines())
        assert all(len(lines) == 2 and lines[0] == drawn[0][0] for lines in drawn)
        fresh = [word for lines in drawn for word in lines[1].split()]
        assert len(set(fresh)) == len(fresh) == 9
    finally:
        for copy in copies:
            copy.delete()


def test_a_program_can_learn_that_it_was_forked(sandbox):
    read = "cat /run/branchbox/generation"
    mine = sandbox.exec(read).stdout
    copy = sandbox.fork()
    try:
        theirs = copy.exec(read).stdout
        assert mine and theirs and mine != theirs
        assert sandbox.exec(read).stdout == mine
    finally:
        copy.delete()


def test_proc_self_is_right_in_a_copy(node, sandbox):
    sandbox.files.write("/workspace/look.py", "import os,sys\nhere=open('/workspace/look.py')\n"
                        "for _ in sys.stdin: print(os.readlink('/proc/self/exe'), os.getpid(), os.getppid(), "
                        "os.readlink(f'/proc/self/fd/{here.fileno()}'), os.readlink('/proc/self/ns/pid'), os.getcwd(), flush=True)")
    looking = sandbox.spawn("exec python3 /workspace/look.py", stdin="pipe")
    looking.write("\n")
    wait_for_line(looking)
    copy = sandbox.fork()
    try:
        there = copy.process(looking.id)
        there.write("\n", eof=True)
        first, second = (line.split() for line in there.wait().stdout.splitlines())
        assert first[:4] + first[5:] == second[:4] + second[5:]
        assert re.search("python3", second[0]) and second[3] == "/workspace/look.py"
        assert second[4] == namespaces(guest_pid(node, copy.id))["pid"] != first[4]
    finally:
        copy.delete()
        looking.kill("SIGKILL")
