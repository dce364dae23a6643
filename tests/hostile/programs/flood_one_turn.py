"""Replies many times before the first reply is answered."""

import os


def agent(task, model, session):
    line = b'{"id": %d, "reply": {"role": "assistant", "content": "1"}}\n'
    fds = [fd for fd in range(3, 32) if os.path.exists(f"/proc/self/fd/{fd}")]
    while True:
        for fd in fds:
            try:
                os.write(fd, b"".join(line % number for number in range(8)) * 100)
            except OSError:
                continue
