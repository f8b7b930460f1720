"""The adapter for Harbor: one environment by hand, and a whole trial with Harbor's own oracle for an agent."""
import asyncio
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from support.guide import GUIDE
from withruntime import ServiceUnavailableError

pytestmark = [pytest.mark.needs("Python 3.12"), pytest.mark.usefixtures("pointed")]

TASK = {
    "task.toml": 'schema_version = "1.4"\n[verifier]\ntimeout_sec = 120.0\n[agent]\ntimeout_sec = 120.0\n'
                 '[environment]\nworkdir = "/app"\nmemory_mb = 512\n[environment.env]\nGIVEN = "value"\n',
    "instruction.md": "Write the answer to /app/answer.txt.\n",
    "environment/Dockerfile": "FROM debian\nWORKDIR /app\n",
    "solution/solve.sh": "#!/bin/bash\necho $((6*7)) $GIVEN > /app/answer.txt\n",
    "tests/test.sh": "#!/bin/bash\n[ \"$(cat /app/answer.txt)\" = '42 value' ] && echo 1 > /logs/verifier/reward.txt "
                     "|| echo 0 > /logs/verifier/reward.txt\n",
}


@pytest.fixture
def task(tmp_path):
    for name, text in TASK.items():
        path = tmp_path / "answer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "answer"


def in_environment(task, tmp_path, work, policy=None, **fields):
    """Runs ``work(environment)`` in a started environment, which is stopped afterwards."""
    from harbor.models.task.config import EnvironmentConfig
    from harbor.models.trial.paths import TrialPaths
    from withruntime.harbor import RuntimeEnvironment

    async def run():
        paths = TrialPaths(tmp_path / "trial")
        paths.mkdir()
        environment = RuntimeEnvironment(
            environment_dir=task / "environment", environment_name="answer", session_id="answer-1", trial_paths=paths,
            task_env_config=EnvironmentConfig(**fields), image="host",
            network_policy=policy)
        await environment.start(force_build=False)
        try:
            return await work(environment)
        finally:
            await environment.stop(delete=True)
    return asyncio.run(run())


def test_commands_run_as_root_or_as_whom_one_says(task, tmp_path):
    async def work(environment):
        ran = await environment.exec("echo out; echo err >&2; pwd; id -un; exit 3", env={"A": "b"})
        assert (ran.stdout, ran.stderr, ran.return_code) == ("out\n/app\nroot\n", "err\n", 3)
        assert (await environment.exec('echo $A; id -u; pwd', cwd="/tmp", env={"A": "b"}, user=1000)).stdout == "b\n1000\n/tmp\n"
        with pytest.raises(RuntimeError, match="timed out after 1 seconds"):
            await environment.exec("sleep 1000", timeout_sec=1)
        assert len((await environment.exec("head -c 3000000 /dev/zero | tr '\\0' x")).stdout) == 3_000_000
    in_environment(task, tmp_path, work)


def test_files_and_folders_move_both_ways_as_root(task, tmp_path):
    async def work(environment):
        (tmp_path / "in/deep").mkdir(parents=True)
        (tmp_path / "in/deep/a.bin").write_bytes(bytes(range(256)) * 8192)
        (tmp_path / "in/run.sh").write_text("#!/bin/sh\necho ran\n")
        (tmp_path / "in/run.sh").chmod(0o755)
        await environment.upload_file(tmp_path / "in/run.sh", "/root/made/run.sh")
        assert (await environment.exec("/root/made/run.sh")).stdout == "ran\n"
        await environment.upload_dir(tmp_path / "in", "/opt/in")
        assert await environment.is_dir("/opt/in/deep") and await environment.is_file("/opt/in/deep/a.bin")
        await environment.download_dir("/opt/in", tmp_path / "out")
        await environment.download_file("/opt/in/run.sh", tmp_path / "one/run.sh")
        assert (tmp_path / "out/deep/a.bin").read_bytes() == (tmp_path / "in/deep/a.bin").read_bytes()
        assert (tmp_path / "one/run.sh").read_text() == (tmp_path / "in/run.sh").read_text()
    in_environment(task, tmp_path, work)


def test_a_task_has_no_network_and_asking_for_one_is_refused(task, tmp_path):
    from harbor.models.task.config import NetworkPolicy
    none, some = NetworkPolicy(network_mode="no-network"), NetworkPolicy(network_mode="allowlist", allowed_hosts=["a.example"])

    async def work(environment):
        assert (await environment.exec("ls /sys/class/net")).stdout == "lo\n"
        await environment.set_network_policy(none)
        with pytest.raises(ServiceUnavailableError, match="no gateway"):
            await environment.set_network_policy(some)
    in_environment(task, tmp_path, work)
    in_environment(task, tmp_path, work, policy=none)
    with pytest.raises(ServiceUnavailableError, match="no gateway"):
        in_environment(task, tmp_path, work, policy=some)


def test_a_trial_is_solved_and_graded(task, tmp_path, node):
    from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
    from harbor.trial.trial import Trial

    async def run():
        trial = await Trial.create(TrialConfig(
            task=TaskConfig(path=task), trials_dir=tmp_path / "trials", agent=AgentConfig(name="oracle"),
            environment=EnvironmentConfig(import_path="withruntime.harbor:RuntimeEnvironment", kwargs={"image": "host"})))
        return await trial.run()
    result = asyncio.run(run())
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 1}
    assert {one.state for one in node.client.sandboxes.list(labels={"created_by": "harbor"}, include_stopped=True).to_list()} == {"stopped"}


def test_the_guides_command_runs_the_trial(task, tmp_path, node):
    command = re.search(r"^\$ harbor (.*)$", GUIDE.read_text(), flags=re.MULTILINE)[1]
    harbor = pathlib.Path(sys.executable).with_name("harbor")
    ran = subprocess.run([harbor, *shlex.split(command)], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
                         text=True, timeout=200, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    [result] = tmp_path.glob("jobs/*/result.json")
    [outcome] = json.loads(result.read_text())["stats"]["evals"].values()
    assert outcome["metrics"] == [{"mean": 1.0}]
