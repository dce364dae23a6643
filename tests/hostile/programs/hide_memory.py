"""Takes memory where the resident set of its processes does not show it."""

import ctypes
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)


def agent(task, model, session):
    for name, call in (
        ("memfd_create", lambda: libc.memfd_create(b"x", 0)),
        ("shmget", lambda: libc.shmget(0, 64 * 2**20, 0o1600)),
        ("msgget", lambda: libc.msgget(0, 0o1600)),
    ):
        print(name, "REACHED" if call() >= 0 else os.strerror(ctypes.get_errno()))
    with open("/dev/shm/mapped", "wb+") as file:
        file.truncate(2**20)
        mapped = mmap.mmap(file.fileno(), 2**20)
        mapped.close()
    print("tried")
    return "?"
