"""Takes memory in many processes, so that none of them has too much by itself."""

import os
import time


def agent(task, model, session):
    for _ in range(200):
        if os.fork() == 0:
            taken = [bytearray(os.urandom(1024) * 16384) for _ in range(16)]
            time.sleep(600)
            print("REACHED", len(taken))
    time.sleep(600)
    return "?"
