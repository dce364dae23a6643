"""Attacks on files: answers and secrets that could be read, and places that could be written or filled."""

import glob
import importlib
import os
import sys

import swarm.program.hosted.host
import swarm.types

SPLIT = "val" + "idation"


def compute_held_out_tasks(task, model, session):
    """Make the held-out tasks of the package, with their answers, under names that no look at the text finds."""
    for name, use in (
        ("swarm.tasks", lambda it: next(iter(it.TASK_FAMILIES["calc"].stream(SPLIT)))),
        ("swarm.tasks.families", lambda it: it.TASK_FAMILIES),
        ("swarm.environments", lambda it: next(iter(it.load_environment("calc").tasks(SPLIT)))),
        ("swarm.environments.sources.bundled", lambda it: it.__file__),
        ("swarm.environments.registry", lambda it: it.__file__),
        ("reasoning_gym", lambda it: it.create_dataset("chain_sum", seed=0, size=1)[0]),
        ("reasoning_gym.factory", lambda it: it.DATASETS),
        ("verifiers", lambda it: it.__file__ + ""),
    ):
        tries(name, lambda name=name, use=use: use(importlib.import_module(name)))


def search_the_files_for_answers(task, model, session):
    """Look for the question, and for anything of the package that makes tasks, in every file that can be read."""
    mark = FACTS["answer_mark"].encode()
    names = {"tasks.jsonl", "grade.py", "registry.py", "families.py", "folder.py", "ledger.db", "research.db"}
    for root, folders, files in os.walk("/"):
        # Installed packages are those of everybody; only what is new here could hold an answer.
        folders[:] = [name for name in folders if name not in {"proc", "usr", "lib", "site-packages"}]
        for name in files:
            path = os.path.join(root, name)
            if name in names and "swarm" in root and "client" not in root:
                print("REACHED", path)
            if not os.path.isfile(path):
                continue
            try:
                with open(path, "rb") as file:
                    content = file.read(2**20)
            except OSError:
                continue
            if path != __file__ and mark in content:
                print("REACHED", path)


def read_secrets(task, model, session):
    """Look for secrets in environments of processes and in the usual files."""
    seen = [str(dict(os.environ))]
    for path in (*glob.glob("/proc/*/environ"), *glob.glob("/proc/*/cmdline"), *glob.glob("/proc/*/task/*/environ")):
        try:
            with open(path, "rb") as file:
                seen.append(file.read().decode(errors="replace"))
        except OSError:
            continue
    if any(FACTS["secret"] in text or "TOKEN" in text or "API_KEY" in text for text in seen):
        print("REACHED", seen)
    for place in "/etc/shadow", "/etc/passwd", "/var", "/home/*/.ssh", "/root/.ssh/*", "/run/secrets/*", "/sys/class":
        for path in glob.glob(place):
            if not os.path.isdir(path) or os.listdir(path):
                print("REACHED", path)


def rewrite_files(task, model, session):
    """Write into its own file, the package, the interpreter and their caches: a later process would run it."""
    package = os.path.dirname(swarm.types.__file__)
    for place in (
        __file__,
        swarm.types.__file__,
        swarm.program.hosted.host.__file__,
        os.path.join(package, "__pycache__", "types.cpython-311.pyc"),
        os.path.join(package, "tasks", "families.py"),
        os.path.join(sys.prefix, "bin", "python"),
        os.path.join(sys.prefix, "lib", "site-packages", "x.pth"),
        *glob.glob(os.path.join(sys.prefix, "lib", "python3*", "site-packages", "*.pth")),
        os.path.join(sys.base_prefix, "lib", "x"),
        "/usr/bin/env",
        "/etc/ld.so.preload",
        "/run/swarm/link/server.sock",
        FACTS["canary"],
    ):
        for mode in ("w", "a", "r+"):
            tries(place, lambda place=place, mode=mode: open(place, mode).write("raise SystemExit\n"))
        tries(place, lambda place=place: os.unlink(place))
        tries(place, lambda place=place: os.rename(place, "/tmp/x"))
        tries(place, lambda place=place: os.chmod(place, 0o777))


def leave_links(task, model, session):
    """Leave links to files of the host where the host could follow them."""
    folder = os.path.dirname(FACTS["canary"])
    for name, target in {"result.json": FACTS["canary"], "x": FACTS["canary"], "folder": folder}.items():
        os.symlink(target, name)
    tries("write through a link", lambda: open("x", "w").write("REACHED"))
    tries("replace the program", lambda: os.replace("x", "program.py"))


def fill_the_folders(task, model, session):
    """Fill each folder that can be written, with files that have no name any more as well."""
    for folder in (".", "/tmp", "/dev/shm", os.path.expanduser("~"), "/run", "/dev", "/"):
        kept = []
        tries(folder, lambda folder=folder, kept=kept: fill(folder, kept))
        for file in kept:
            file.close()


def fill(folder, kept):
    for number in range(100):
        kept.append(open(os.path.join(folder, f"part-{number}"), "wb", buffering=0))
        os.unlink(kept[-1].name)
        for _ in range(64):
            kept[-1].write(b"x" * 2**20)


def fill_the_log(task, model, session):
    for _ in range(400):
        sys.stderr.write("x" * 2**16 + "\n")
    sys.stderr.flush()
