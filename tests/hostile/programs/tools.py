"""The agent that makes the ATTACKS of a program in turn, and says of each what it reached."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def tries(name, act):
    """Say that an act succeeded, or the error that kept it from that."""
    try:
        print("REACHED", name, act())
    except (OSError, ImportError, AttributeError, TypeError) as error:
        print(name, error)


def tries_call(name, call):
    """Say whether a system call succeeded, which returns a negative number otherwise."""
    print(name, "REACHED" if call() >= 0 else os.strerror(ctypes.get_errno()))


def agent(task, model, session):
    answer = None
    for attack in ATTACKS:
        print("tried", attack.__name__, flush=True)
        answer = attack(task, model, session)
    print("all tried", flush=True)
    return answer or "?"
