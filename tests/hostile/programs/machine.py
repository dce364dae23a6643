"""Attacks on the machine: on its namespaces, its memory and its processes."""

import mmap
import os
import shutil
import signal
import subprocess
import time

WATCH = 2
NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "process": 0x20000000, "network": 0x40000000, "ipc": 0x08000000}


def hide_memory(task, model, session):
    """Take memory where the resident set of the processes does not show it."""
    tries_call("memfd_create", lambda: libc.memfd_create(b"x", 0))
    tries_call("shmget", lambda: libc.shmget(0, 64 * 2**20, 0o1600))
    tries_call("msgget", lambda: libc.msgget(0, 0o1600))
    with open("/dev/shm/mapped", "wb+") as file:
        file.truncate(2**20)
        mapped = mmap.mmap(file.fileno(), 2**20)
        mapped.close()


def enter_namespaces(task, model, session):
    """Become root of namespaces of its own, and mount and unmount there."""
    for name, flag in NAMESPACES.items():
        tries_call(name, lambda flag=flag: libc.unshare(flag))
    tries_call("mount", lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    tries_call("umount", lambda: libc.umount2(b"/tmp", 2))
    tries_call("chroot", lambda: libc.chroot(b"/tmp"))
    tries_call("pivot_root", lambda: libc.syscall(155, b"/tmp", b"/tmp"))
    tries_call("setuid", lambda: libc.setuid(0) if os.getuid() else -1)
    try:
        tries_call("setns", lambda: libc.setns(os.open("/proc/1/ns/pid", os.O_RDONLY), 0))
    except OSError as error:
        print("setns", error)
    more = {"unshare": ["-r", "id"], "bwrap": ["--unshare-user", "--ro-bind", "/", "/", "id"]}
    for tool in ("unshare", "bwrap", "sudo", "su", "nsenter"):
        if path := shutil.which(tool):
            words = [path, *more.get(tool, ["id"])]
            done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=10)
            print(tool, "REACHED" if "uid=0" in done.stdout and os.getuid() else done.stderr.strip())


def meddle_with_processes(task, model, session):
    """Look at, signal, trace and rewrite the processes around it; its own watch is among them."""
    others = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    print(sorted(others), os.getppid())
    if FACTS["pid"] in others and FACTS["pid"] > 1000:
        print("REACHED", FACTS["pid"])
    for victim in (WATCH, -WATCH, -1, FACTS["pid"]):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            tries(f"signal {number} to {victim}", lambda victim=victim, number=number: os.kill(victim, number))
    tries_call("ptrace", lambda: libc.ptrace(16, WATCH, None, None))
    tries_call("seize", lambda: libc.ptrace(0x4206, WATCH, None, None))
    tries_call("affinity", lambda: libc.sched_setaffinity(WATCH, 8, b"\0" * 8))
    tries_call("nice", lambda: libc.setpriority(0, WATCH, 19))
    tries_call("limit", lambda: libc.prlimit(WATCH, 7, b"\0" * 16, None))
    tries_call("tgkill", lambda: libc.syscall(234, WATCH, WATCH, 19))
    tries_call("tkill", lambda: libc.syscall(200, WATCH, 19))
    tries_call("pidfd", lambda: libc.syscall(434, WATCH, 0))
    for path in (f"/proc/{WATCH}/mem", "/proc/1/mem"):
        tries(path, lambda path=path: open(path, "r+b", buffering=0).write(b"1"))


def leave_a_daemon(task, model, session):
    """Start a process that leaves its session and outlives the call."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in (0, 1, 2):
                os.close(fd)
            os.execv("/bin/sh", ["/bin/sh", "-c", "sleep 600", FACTS["mark"]])
        os._exit(0)
    time.sleep(0.2)
