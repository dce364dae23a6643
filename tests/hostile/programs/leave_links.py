"""Leaves links to files of the host where the host could follow them."""

import contextlib
import os


def agent(task, model, session):
    folder = os.path.dirname(FACTS["canary"])
    for name, target in {"result.json": FACTS["canary"], "x": FACTS["canary"], "folder": folder}.items():
        with contextlib.suppress(FileExistsError):
            os.symlink(target, name)
    try:
        with open("x", "w") as file:
            file.write("REACHED")
        print("REACHED")
    except OSError as error:
        print(error)
    try:
        os.replace("x", "program.py")
        print("REACHED")
    except OSError as error:
        print(error)
    print("tried")
    return "?"
