"""What clients assume about the inside of a sandbox, and what the inside must not be able to do."""
import os

import pytest
from support.outside import guest_pid, namespaces, processes


def test_the_environment_clients_assume(sandbox):
    seen = sandbox.exec("id -un; id -u; echo $HOME; pwd; echo $LANG; echo ${PATH%%:*}; sudo -n -E id -u; hostname >/dev/null && echo named")
    assert seen.stdout.splitlines() == ["runtime", "1000", "/workspace", "/workspace", "C.UTF-8", "/workspace/.local/bin", "0", "named"]


@pytest.mark.parametrize("program", ["bash", "sh", "env", "tar", "gzip", "base64", "mktemp", "git", "python3", "node", "sudo"])
def test_programs_are_there(sandbox, program):
    assert sandbox.exec(f"command -v {program}").exit_code == 0


@pytest.mark.parametrize("command", ["ps aux", "df /", "mount", "free", "nproc", "top -bn1", "ls -l /proc/self/fd", "date", "mktemp"])
def test_everyday_tools_work(sandbox, command):
    ran = sandbox.exec(command)
    assert (ran.exit_code, ran.stderr) == (0, "")


def test_systemctl_says_that_there_is_none(sandbox):
    ran = sandbox.exec("systemctl start nginx")
    assert ran.exit_code == 1 and "systemd" in ran.stderr


@pytest.mark.parametrize("attempt", [
    "mount -t tmpfs none /mnt", "mount --bind /etc /mnt", "umount /proc", "unshare --mount true", "unshare --user true", "unshare --pid --fork true",
    "mknod /tmp/sda b 8 0", "echo 1 > /proc/sys/kernel/panic", "echo b > /proc/sysrq-trigger", "echo x > /sys/power/state",
    "date -s 2001-01-01", "swapon /etc/passwd", "chroot /proc/1/root true && cat /proc/1/root/.branchbox/x",
    "insmod /etc/passwd", "dmesg", "cat /proc/kcore", "cat /proc/kallsyms | grep -v '^0000000000000000' | grep .",
    "ip link add dummy0 type dummy", "nsenter -t 1 -n true && false",
    "setpriv --reuid 0 --bounding-set +sys_admin grep -q '^CapBnd.*[2367abef].....$' /proc/self/status",
])
def test_root_inside_cannot(sandbox, attempt):
    assert sandbox.exec(attempt, user="root").exit_code != 0


@pytest.mark.parametrize("call", [("userfaultfd", 323), ("io_uring_setup", 425), ("bpf", 321), ("perf_event_open", 298), ("keyctl", 250),
                                  ("fanotify_init", 300), ("memfd_secret", 447), ("landlock_create_ruleset", 444), ("kexec_load", 246),
                                  ("open_by_handle_at", 304), ("fsopen", 430), ("move_mount", 429), ("io_setup", 206)])
def test_calls_that_cannot_be_captured_fail_as_if_absent(sandbox, call):
    name, number = call
    program = ("import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\n"
               f"r = libc.syscall({number}, 0, 0, 0, 0, 0, 0)\nprint(r, errno.errorcode.get(ctypes.get_errno()))")
    assert sandbox.exec(["python3", "-c", program], user="root").stdout.strip() in ("-1 ENOSYS", "-1 EPERM"), name


def test_secrets_of_the_host_are_not_inside(sandbox):
    for path in ("/etc/ssh", "/root/.ssh", "/root/.bashrc", "/home/*/.ssh", "/var/lib/docker", "/etc/ssl/private"):
        assert sandbox.exec(f"cat {path} {path}/* 2>/dev/null | head -c 1 | wc -c", user="root").stdout.strip() == "0", path
    # The accounts are there, without anybody's password: locked, as for a user nobody can log in as.
    passwords = sandbox.exec("cut -d: -f2 /etc/shadow /etc/gshadow | sort -u", user="root").stdout.split()
    assert set(passwords) <= {"*", "!", "!*", "!!"}, passwords
    assert sandbox.exec("ls -A /root /home", user="root").stdout.split() in (["/home:", "/root:"], [])


def test_ids_on_the_host_are_its_own(node, sandbox, runtime):
    sandbox.spawn("exec sleep 1000")
    with runtime.sandboxes.create() as other:
        other.spawn("exec sleep 1000")
        ranges = [{seen.host_uid // 65_536 for seen in processes(node, box.id).values()} for box in (sandbox, other)]
        assert len(ranges[0]) == len(ranges[1]) == 1 and ranges[0] != ranges[1] and 0 not in ranges[0] | ranges[1]
        mine, theirs = (namespaces(guest_pid(node, box.id)) for box in (sandbox, other))
        host = namespaces("self")
        assert all(len({mine[kind], theirs[kind], host[kind]}) == 3 for kind in mine)


def test_no_descriptor_of_the_host_leaks_in(node, sandbox):
    listed = sandbox.exec("ls -l /proc/self/fd").stdout
    assert "/dev/" not in listed.replace("/dev/null", "") and str(node.state_dir) not in listed
    sandbox.spawn("exec sleep 1000")
    for seen in processes(node, sandbox.id).values():
        if seen.inner_pid == 1:
            continue
        for number in os.listdir(f"/proc/{seen.pid}/fd"):
            try:
                target = os.readlink(f"/proc/{seen.pid}/fd/{number}")
            except FileNotFoundError:
                continue  # it was closed while we looked
            assert str(node.state_dir) not in target, f"{seen.name} holds {target}"


def test_a_fork_bomb_stays_inside(runtime, sandbox):
    with runtime.sandboxes.create(memory_mib=512) as bomb:
        bomb.exec("f() { f | f & }; f; sleep 2", timeout_ms=5_000)
        assert sandbox.exec("echo fine").stdout == "fine\n"
        assert bomb.exec("echo fine too").stdout == "fine too\n"
