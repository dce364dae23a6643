"""Fills each folder that can be written, with files that have no name any more as well."""

import os


def agent(task, model, session):
    for folder in (".", "/tmp", "/dev/shm", os.path.expanduser("~"), "/run", "/dev", "/"):
        kept = []
        try:
            for number in range(100):
                file = open(os.path.join(folder, f"part-{number}"), "wb", buffering=0)
                kept.append(file)
                os.unlink(file.name)
                for _ in range(64):
                    file.write(b"x" * 2**20)
            print("REACHED", folder)
        except OSError as error:
            print(folder, error.strerror)
        for file in kept:
            file.close()
    print("tried")
    return "?"
