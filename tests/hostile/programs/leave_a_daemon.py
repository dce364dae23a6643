"""Starts a process that leaves its session and outlives the call."""

import os
import time


def agent(task, model, session):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for fd in (0, 1, 2):
                os.close(fd)
            os.execv("/bin/sh", ["/bin/sh", "-c", "sleep 600", FACTS["mark"]])
        os._exit(0)
    time.sleep(0.2)
    print("tried")
    return "?"
