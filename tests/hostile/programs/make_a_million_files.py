"""Uses up the inodes of the machine."""

import os


def agent(task, model, session):
    for number in range(10**6):
        os.mkdir(f"{'/tmp' if number % 2 else '/dev/shm'}/{number}")
    print("REACHED")
    return "?"
