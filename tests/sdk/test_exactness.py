"""Small programs that set one thing up, are copied, and say how it is: the same in the copy as in the source."""
import pytest
from support.wait import said, until
from withruntime import ConflictError

TAIL = "\nprint('ready', flush=True)\nimport sys\nsys.stdin.readline()\n"
# name: (what is set up, what is printed after the copy was made)
PROGRAMS = {
    "a signal handler on the main stack": (
        "import signal,os\nsignal.signal(signal.SIGUSR1, lambda *a: print('handled', end=' '))",
        "os.kill(os.getpid(), signal.SIGUSR1)\nprint('alive')", "handled alive"),
    "a record lock that another process wants": (
        "import fcntl,os\nf=open('/workspace/locked','w+'); g=open('/workspace/locked'); fcntl.lockf(f, fcntl.LOCK_EX, 10, 5)",
        "if os.fork()==0:\n  h=open('/workspace/locked','r+')\n  try: fcntl.lockf(h, fcntl.LOCK_EX|fcntl.LOCK_NB, 1, 7); print('lost')\n"
        "  except OSError: print('held')\n  os._exit(0)\nos.wait()", "held"),
    "a flock and an open-file-description lock": (
        "import fcntl,os,struct\nf=open('/workspace/fl','w'); fcntl.flock(f, fcntl.LOCK_EX)\no=open('/workspace/ofd','w'); "
        "fcntl.fcntl(o, 37, struct.pack('hhqqi4x', 1, 0, 0, 0, 0))",
        "for path,op in (('fl', lambda h: fcntl.flock(h, fcntl.LOCK_EX|fcntl.LOCK_NB)), ('ofd', lambda h: fcntl.fcntl(h, 37, struct.pack('hhqqi4x', 1, 0, 0, 0, 0)))):\n"
        "  try: op(open('/workspace/'+path,'r+')); print('lost', end=' ')\n  except OSError: print('held', end=' ')", "held held"),
    "an unnamed temporary file": (
        "import tempfile\nt=tempfile.TemporaryFile(); t.write(b'kept'); t.flush()", "t.seek(0)\nprint(t.read().decode())", "kept"),
    "a half-closed TCP connection with an unread answer": (
        "import socket,time\ns=socket.create_server(('127.0.0.1',7001)); c=socket.create_connection(('127.0.0.1',7001)); a,_=s.accept()\n"
        "c.send(b'ask'); c.shutdown(1); a.recv(9); a.send(b'answer'); a.close(); time.sleep(0.2)",
        "print(c.recv(9).decode(), c.recv(9))", "answer b''"),
    "bytes in flight on TCP both ways": (
        "import socket\ns=socket.create_server(('127.0.0.1',7002)); c=socket.create_connection(('127.0.0.1',7002)); a,_=s.accept()\n"
        "c.setsockopt(6,1,1); c.send(b'one'); a.send(b'x'*100000)\nimport time; time.sleep(0.1)",
        "n=0\nwhile n<100000: n+=len(c.recv(65536))\nprint(a.recv(9).decode(), n, c.getsockopt(6,1), a.getpeername()==c.getsockname())", "one 100000 1 True"),
    "an interrupted pause whose alarm came during the capture": (
        "import signal,os\nsignal.signal(signal.SIGALRM, lambda *a: None)",
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\nsignal.pause()\nprint('woken')", "woken"),
    "an interval timer": (
        "import signal\nn=[0]\ndef h(*a): n[0]+=1\nsignal.signal(signal.SIGALRM,h); signal.setitimer(signal.ITIMER_REAL,0.05,0.05)",
        "import time\nm=n[0]\nt=time.monotonic()\nwhile time.monotonic()<t+0.5: time.sleep(0.01)\nsignal.setitimer(signal.ITIMER_REAL,0)\nprint(n[0]>m+4)", "True"),
    "an eventfd, a timerfd and a signalfd in one epoll": (
        "import select,os,ctypes\nl=ctypes.CDLL(None)\ne=l.eventfd(3,0o4000)\nt=l.timerfd_create(1,0o4000)\n"
        "l.timerfd_settime(t,0,(ctypes.c_long*4)(0,50000000,0,50000000),None)\np=select.epoll(); p.register(e,1); p.register(t,1)",
        "import time; time.sleep(0.2)\nprint(sorted(f for f,_ in p.poll(1))==sorted([e,t]), int.from_bytes(os.read(e,8),'little'), int.from_bytes(os.read(t,8),'little')>1)", "True 3 True"),
    "shared anonymous memory between parent and child": (
        "import mmap,os,time\nm=mmap.mmap(-1,4096); m[0]=1\nc=os.fork()\nif c==0:\n  while True:\n    if m[1]: m[2]=m[1]+1\n    time.sleep(0.01)",
        "m[1]=7\nfor _ in range(300):\n  if m[2]: break\n  time.sleep(0.01)\nprint(m[0],m[2])\nos.kill(c,9)", "1 8"),
    "a memfd with seals": (
        "import os,fcntl\nf=os.memfd_create('x',2); os.write(f,b'sealed'); fcntl.fcntl(f,1033,2|4|8)",
        "os.lseek(f,0,0)\nprint(os.read(f,9).decode(), fcntl.fcntl(f,1034), os.readlink(f'/proc/self/fd/{f}'))", "sealed 14 /memfd:x (deleted)"),
    "a file mapped low whose name ends like the kernel's own": (
        "import ctypes,os\nf=os.open('/workspace/x [vdso]',os.O_RDWR|os.O_CREAT); os.write(f,b'm'*8192)\nl=ctypes.CDLL(None); l.mmap.restype=ctypes.c_void_p\n"
        "a=l.mmap(ctypes.c_void_p(0x10000000),ctypes.c_size_t(8192),7,0x12,f,ctypes.c_long(0))",
        "print(hex(a), set(ctypes.string_at(a,8192)))", "0x10000000 {109}"),
    "a zombie nobody has waited for": (
        "import os,time\nc=os.fork()\nif c==0: os._exit(7)\ntime.sleep(0.2)", "print(os.waitstatus_to_exitcode(os.waitpid(c,0)[1]))", "7"),
    "the next pid": (
        "import os\nfor _ in range(30):\n  c=os.fork()\n  if c==0: os._exit(0)\n  os.waitpid(c,0)",
        "d=os.fork()\nif d==0: os._exit(0)\nos.waitpid(d,0)\nprint(d>c)", "True"),
    "names, limits, umask, nice and the working directory": (
        "import os,resource\nos.makedirs('/workspace/deep',exist_ok=True); os.chdir('/workspace/deep'); os.umask(0o27); os.nice(5)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE,(500,600)); open('/proc/self/comm','w').write('renamed')",
        "print(os.getcwd(), oct(os.umask(0)), os.nice(0), resource.getrlimit(resource.RLIMIT_NOFILE), open('/proc/self/comm').read().strip())",
        "/workspace/deep 0o27 5 (500, 600) renamed"),
    "a deleted working directory": (
        "import os\nos.mkdir('/workspace/gone'); os.chdir('/workspace/gone'); os.rmdir('/workspace/gone')",
        "try: print(os.getcwd())\nexcept FileNotFoundError: print('gone', os.stat('.').st_nlink)", "gone 0"),
    "a directory's time beside a deleted file": (
        "import os\nos.makedirs('/workspace/dated',exist_ok=True); f=open('/workspace/dated/f','w+'); f.write('x'); f.flush(); os.unlink('/workspace/dated/f'); os.utime('/workspace/dated',(1e9,1e9))",
        "print(int(os.stat('/workspace/dated').st_mtime), f.seek(0), f.read())", "1000000000 0 x"),
    "inotify with watches of files and folders, some renamed and some in the image": (
        "import ctypes,os,struct,re\nl=ctypes.CDLL(None)\nfor d in ['w/deep','w2','old']: os.makedirs('/workspace/'+d)\nopen('/workspace/w/deep/f','w').close()\n"
        "f=l.inotify_init1(0o4000)\nadd=lambda p,m=0x3c2: l.inotify_add_watch(f,p.encode(),m)\n"
        "numbers=[add(p) for p in ['/workspace/w','/workspace/w/deep/f','/workspace/old','/usr/bin','/etc','/workspace/w2','/']]\n"
        "l.inotify_rm_watch(f,3); os.read(f,4096); os.rename('/workspace/w2','/workspace/renamed')\n"
        "def events():\n  b=os.read(f,9999)\n  while b:\n    w,m,_,n=struct.unpack('iIII',b[:16]); yield w,m,b[16:16+n].rstrip(b'\\0').decode(); b=b[16+n:]",
        "open('/workspace/w/deep/f','a').write('x'); os.mkdir('/workspace/w/new'); open('/workspace/renamed/z','w').close()\n"
        "print(numbers, list(events()), re.findall('wd:(\\w+)',open(f'/proc/self/fdinfo/{f}').read()), add('/workspace/w/deep'))",
        "[1, 2, 3, 4, 5, 6, 7] [(2, 2, ''), (1, 1073742080, 'new'), (6, 256, 'z')] ['7', '6', '5', '4', '2', '1'] 8"),
    "a program's own seccomp filter": (
        "import ctypes,os,struct\nl=ctypes.CDLL(None,use_errno=True)\ncode=struct.pack('HBBI'*4, 0x20,0,0,0, 0x15,0,1,63, 0x06,0,0,0x50000|99, 0x06,0,0,0x7fff0000)\n"
        "b=ctypes.create_string_buffer(code); prog=struct.pack('HxxxxxxQ',4,ctypes.addressof(b)); l.prctl(38,1,0,0,0); l.prctl(22,2,prog)",
        "r=l.uname(ctypes.create_string_buffer(400)); print(r, ctypes.get_errno())", "-1 99"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_is_the_same_in_source_and_copy(sandbox, name):
    setup, question, answer = PROGRAMS[name]
    sandbox.files.write("/workspace/program.py", setup + TAIL + question + "\n")
    program = sandbox.spawn("exec python3 -u /workspace/program.py", stdin="pipe")
    until(lambda: "ready" in said(program), what="it is set up")
    with sandbox.fork() as copy:
        for which, machine in (("copy", copy), ("source", sandbox)):
            there = machine.process(program.id)
            there.write("\n", eof=True)
            ended = there.wait()
            assert (ended.exit_code, ended.stdout.split("ready", 1)[1].split()) == (0, answer.split()), (which, ended.stdout, ended.stderr)
        copy.delete()


REFUSED = {
    "SysV semaphores": ("import ctypes\nctypes.CDLL(None).semget(77,1,0o1600)", "SysV semaphores"),
    "an inotify whose events nobody reads": (
        "import ctypes,os\nl=ctypes.CDLL(None); f=l.inotify_init(); l.inotify_add_watch(f,b'/workspace',0x100); os.mkdir('/workspace/x')", "events that nobody has read"),
    "an inotify of what the kernel shows": (
        "import ctypes\nl=ctypes.CDLL(None); l.inotify_add_watch(l.inotify_init(),b'/sys/kernel',0x100)", "on no disk of the sandbox"),
    "a message that carries a descriptor": (
        "import socket\na,b=socket.socketpair(); socket.send_fds(a,[b'x'],[0])", "descriptors are in flight"),
    "a membership of a multicast group": (
        "import socket\ns=socket.socket(2,2); s.setsockopt(0,35,socket.inet_aton('224.1.2.3')+socket.inet_aton('127.0.0.1'))", "multicast group"),
    "a descriptor that would send signals": (
        "import socket,fcntl,os\na,b=socket.socketpair(); fcntl.fcntl(a,8,os.getpid())", "signal-driven input"),
    "a socket whose file is gone": (
        "import socket,os\ns=socket.socket(1); s.bind('/workspace/s'); s.listen(); os.unlink('/workspace/s')", "file it was bound to is gone"),
    "a socket file that was replaced": (
        "import socket,os\ns=socket.socket(1); s.bind('/workspace/r'); s.listen(); os.unlink('/workspace/r'); open('/workspace/r','w').write('PRECIOUS')",
        "file it was bound to is gone or is another"),
    "a child adopted by a subreaper from another session": (
        "import ctypes,os,time\nctypes.CDLL(None).prctl(36,1)\nif os.fork()==0:\n  os.setsid()\n  if os.fork()==0: time.sleep(1000)\n  os._exit(0)\nos.wait(); time.sleep(0.2)",
        "never was in that session"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(sandbox, name):
    setup, words = REFUSED[name]
    sandbox.files.write("/workspace/program.py", setup + TAIL)
    program = sandbox.spawn("exec python3 -u /workspace/program.py", stdin="pipe")
    until(lambda: "ready" in said(program), what="it is set up")
    with pytest.raises(ConflictError) as refused:
        sandbox.fork()
    assert refused.value.code == "capture_refused" and words in refused.value.message and refused.value.hint, refused.value.message
    program.write("\n", eof=True)
    assert program.wait().exit_code == 0
