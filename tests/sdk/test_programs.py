"""Programs that are never refused, idle or running: each is captured, and answers in the source and in the copy."""
import pathlib
import shutil
import subprocess
import threading
import time

import pytest
from support.outside import processes
from support.wait import said, until
from withruntime import RuntimeAPIError

SUPPORT = pathlib.Path(__file__).parent.parent / "support"
PIECE = 512 * 1024

# name: command, what is said to it after the fork, what it answers, how it is prepared
PROGRAMS = {
    "bash idle": ("exec bash", "echo $((40 + two))\n", "42\n", "two=2\n"),
    "python idle": ("exec python3 -iqu 2>/dev/null", "print(a + 2)\n", "42\n", "a = 40\n"),
    "node idle": ("exec node -i", "console.log('=' + (a + 2))\n", "=42\n", "var a = 40\n"),
    "sqlite idle": ("exec sqlite3 /workspace/s.db", "insert into t values (2); select sum(x) from t;\n", "42\n",
                    "pragma journal_mode=wal; create table t(x); insert into t values (40);\n"),
    "sqlite in a transaction": ("exec sqlite3 /workspace/s.db", "insert into t values (2); commit; select sum(x) from t;\n", "42\n",
                                "create table t(x); begin immediate; insert into t values (40);\n"),
    "git": ("cd /workspace && git init -q r && cd r && git config user.email t@localhost && git config user.name t && echo hello > f && "
            "git add f && git commit -qm m && exec git cat-file --batch", "HEAD:f\n", "hello\n", "HEAD\n"),
    "make": ("cd /workspace && printf 'all:\\n\\t@echo start; read a; read b; echo $$((a + b))\\n' > Makefile && exec make -s", "2\n", "42\n", "40\n"),
    "npm": ("mkdir -p /workspace/n && cd /workspace/n && echo '{\"scripts\":{\"go\":\"read a; read b; echo $((a + b))\"}}' > package.json && "
            "exec npm run --silent --offline go", "2\n", "42\n", "40\n"),
    # Each line in one write: two threads' prints would mix, as `print` writes the end of a line by itself under -u.
    "python threads": ("exec python3 -u -c \"import threading,queue,sys\nq=queue.Queue()\ndef w():\n  s=0\n  while True:\n    s+=q.get(); print(f'{s}\\n',end='')\n"
                       "[threading.Thread(target=w,daemon=True).start() for _ in range(1)]\n[threading.Thread(target=threading.Event().wait,daemon=True).start() "
                       "for _ in range(20)]\nfor l in sys.stdin: q.put(int(l)); print('put\\n',end='')\nq.join\"", "2\n", "42\n", "40\n"),
    "python asyncio": ("exec python3 -u -c \"import asyncio,sys\nasync def main():\n  loop=asyncio.get_running_loop(); r=asyncio.StreamReader()\n"
                       "  await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(r), sys.stdin)\n  s=0\n"
                       "  while (l := await r.readline()): s+=int(l); print(s)\nasyncio.run(main())\"", "2\n", "42\n", "40\n"),
    "python multiprocessing": ("exec python3 -u -c \"import multiprocessing as m,sys\nif 1:\n  p=m.get_context('fork').Pool(2)\n  s=0\n"
                               "  for l in sys.stdin: s=p.apply(int.__add__,(s,int(l))); print(s)\"", "2\n", "42\n", "40\n"),
    "node timers and workers": ("exec node -e 'const {Worker}=require(\"worker_threads\");const w=new Worker(\"const p=require(`worker_threads`).parentPort;"
                                "let s=0;p.on(`message`,n=>{s+=n;p.postMessage(s)})\",{eval:true});w.on(\"message\",n=>console.log(n));setInterval(()=>{},50);"
                                "let b=``;process.stdin.on(\"data\",d=>{b+=d;const l=b.split(`\\n`);b=l.pop();for(const x of l)w.postMessage(parseInt(x))})'", "2\n", "42\n", "40\n"),
    "node watching a folder": ("mkdir -p /workspace/d && exec node -e 'const fs=require(\"fs\");fs.watch(\"/workspace/d\",(e,n)=>console.log(\"seen \"+n));"
                               "process.stdin.on(\"data\",d=>fs.writeFileSync(\"/workspace/d/\"+String(d).trim(),\"x\"))'", "file42\n", "seen file42\n", "first\n"),
    "a pager on a fifo": ("cd /workspace && mkfifo p && (sleep 1000 > p & exec cat p | wc -c) & read a; read b; echo $((a + b))", "2\n", "42\n", "40\n"),
    "busy loop": ("exec python3 -uc \"import sys,threading\nn=0\ndef spin():\n  global n\n  while True: n+=1\nthreading.Thread(target=spin,daemon=True).start()\n"
                  "s=0\nfor l in sys.stdin: s+=int(l); print(s)\"", "2\n", "42\n", "40\n"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_never_refused(node, sandbox, name):
    """Captured twice: at once, with its start and its input in flight, and when it has come to rest."""
    command, question, answer, preparation = PROGRAMS[name]
    program = sandbox.spawn(command, stdin="pipe", timeout_ms=300_000)
    program.write(preparation)
    copies = [sandbox.fork()]
    rest(node, sandbox)
    copies.append(sandbox.fork())
    try:
        for machine in [*copies, sandbox]:
            there = machine.process(program.id)
            assert there.state == "running", there.info
            there.write(question)
            until(lambda: answer in said(there), seconds=30, what=f"{name} answers {answer!r}")
            assert machine.exec("echo fine").stdout == "fine\n"
    finally:
        program.kill("SIGKILL")
        for copy in copies:
            copy.delete()


def test_what_a_program_reads_of_itself_and_closes_is_waited_for(sandbox):
    """Half of the time it has its own maps open, as runtimes do while they start."""
    look = "with open('/proc/self/maps') as f: f.read(10); print('open', flush=True); time.sleep(0.05)\n  "
    reader = sandbox.spawn(["python3", "-c", f"import time\nwhile True:\n  {look}time.sleep(0.05)"])
    until(lambda: "open" in said(reader), seconds=30, what="it reads its maps")
    for _ in range(6):
        sandbox.snapshot()
    assert sandbox.process(reader.id).state == "running"


def test_cargo_in_the_middle_of_a_build(sandbox):
    """The machine's own cargo, waiting for a compiler that waits for us; source and copy finish their own builds."""
    install_cargo(sandbox)
    files = {"Cargo.toml": '[package]\nname = "w"\nversion = "0.1.0"\nedition = "2021"\n', "src/main.rs": "fn main() {}\n"}
    for name, content in files.items():
        sandbox.files.write(f"/workspace/w/{name}", content)
    sandbox.files.write("/workspace/rustc.sh", (SUPPORT / "rustc.sh").read_bytes(), mode=0o755)
    build = sandbox.spawn("cd /workspace/w && CARGO_HOME=/workspace/home RUSTC=/workspace/rustc.sh exec /workspace/cargo build --offline")
    until(lambda: sandbox.files.exists("/workspace/w/waiting"), seconds=30, what="cargo waits for its compiler")
    copy = sandbox.fork()
    try:
        for name, machine in (("copy", copy), ("source", sandbox)):
            machine.files.write("/workspace/w/go", name)
            ended = machine.process(build.id).wait()
            assert ended.exit_code == 0, ended.stderr
            assert machine.files.read_text("/workspace/w/target/debug/w") == name
    finally:
        copy.delete()


def install_cargo(sandbox) -> None:
    found = subprocess.run(["rustup", "which", "cargo"], capture_output=True, text=True, check=False).stdout.strip()
    content = pathlib.Path(found or shutil.which("cargo")).read_bytes()
    for start in range(0, len(content), PIECE):
        sandbox.exec("cat >> /workspace/cargo", stdin=content[start:start + PIECE], check=True)
    sandbox.exec("chmod 755 /workspace/cargo && /workspace/cargo --version", check=True)


def rest(node, sandbox) -> None:
    """Waits until the sandbox's programs use no processor time, or for three seconds when one never rests."""
    deadline, before = time.monotonic() + 3, None
    while time.monotonic() < deadline:
        now = {seen.pid: processor_time(seen.pid) for seen in processes(node, sandbox.id).values()}
        if now == before:
            return
        before = now
        threading.Event().wait(0.25)


def processor_time(pid: int) -> int:
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])
