"""Writes nonsense where its driver reads."""

import os


def agent(task, model, session):
    fds = [fd for fd in range(3, 32) if is_pipe(fd)]
    while True:
        for fd in fds:
            os.write(fd, b"nonsense\n" * 1000)


def is_pipe(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:") and os.write(fd, b"\n") == 1
    except OSError:
        return False
