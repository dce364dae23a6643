"""Fills the log."""

import sys


def agent(task, model, session):
    print("tried", flush=True)
    for _ in range(400):
        sys.stderr.write("x" * 2**16 + "\n")
    sys.stderr.flush()
    return "?"
