"""The programs in docs/guides/clients.md, and running one as a reader would."""
import os
import pathlib
import re
import subprocess
import sys

GUIDE = pathlib.Path(__file__).parents[2] / "docs/guides/clients.md"


def programs(*parts: str) -> dict[str, str]:
    """The Python programs below these headings of the guide, by their own heading."""
    found = {}
    for part in re.split(r"^## ", GUIDE.read_text(), flags=re.MULTILINE)[1:]:
        if part.splitlines()[0] in parts:
            for section in re.split(r"^### ", part, flags=re.MULTILINE)[1:]:
                for program in re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL):
                    found[section.splitlines()[0]] = program
    return found


def run(program: str, node, folder) -> None:
    """Runs it in a process of its own and compares what it prints with its comments."""
    wanted = re.findall(r"^ *print\(.*\)  # (.*)$", program, flags=re.MULTILINE)
    env = {**os.environ, "RUNTIME_API_URL": node.url, "RUNTIME_API_KEY": node.key, "NO_PROXY": "127.0.0.1"}
    ran = subprocess.run([sys.executable, "-c", program], env=env, cwd=folder, stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, timeout=200, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert [line for line in ran.stdout.splitlines() if line] == wanted and wanted
