"""Looks for the question, and for anything of the package that makes tasks, in every file that can be read."""

import os

MARK = FACTS["answer_mark"].encode()
NAMES = {"tasks.jsonl", "grade.py", "registry.py", "calc.py", "single.py", "multi_turn.py", "ledger.db", "research.db"}


def agent(task, model, session):
    for root, folders, files in os.walk("/"):
        # Installed packages are those of everybody; only what is new here could hold an answer.
        skipped = {"proc", "usr", "lib", "site-packages"}
        folders[:] = [name for name in folders if name not in skipped]
        for name in files:
            path = os.path.join(root, name)
            if name in NAMES and "swarm" in root and "client" not in root:
                print("REACHED", path)
            if not os.path.isfile(path):
                continue
            try:
                with open(path, "rb") as file:
                    content = file.read(2**20)
            except OSError:
                continue
            if path != __file__ and MARK in content:
                print("REACHED", path)
    print("tried")
    return "?"
