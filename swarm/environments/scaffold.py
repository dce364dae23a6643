"""A template of an environment folder: a small task that passes every check."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from swarm.errors import EnvironmentInvalid

TOML = """\
name = "{name}"
description = "Say which of two words is the longer one."
query = "question"
answer = "answer"
max_tokens = 16
"""

GRADE = '''\
"""Grade one attempt: `task` is a row of tasks.jsonl, and `transcript` lists the messages of the attempt."""


def grade(task: dict, transcript: list[dict]) -> float:
    reply = (transcript[-1].get("content") or "").strip()
    return 1.0 if reply == task["answer"] else 0.0
'''

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
ROWS = 300


def write_scaffold(directory: Path) -> list[Path]:
    """Write the template into a new folder and return its files.

    Raises EnvironmentInvalid if the folder is not empty or cannot be written.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise EnvironmentInvalid(f"{directory} exists and is not empty: name a new folder")
    contents = {
        "environment.toml": TOML.format(name=directory.resolve().name),
        "tasks.jsonl": "".join(json.dumps(row) + "\n" for row in _rows()),
        "grade.py": GRADE,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (directory / name).write_text(content, encoding="utf-8")
    except OSError as error:
        raise EnvironmentInvalid(f"{directory} cannot be written: {error.strerror}") from error
    return [directory / name for name in contents]


def _rows() -> list[dict[str, str]]:
    rng, rows = Random(0), dict[str, dict[str, str]]()
    while len(rows) < ROWS:
        words = ["".join(rng.choices(LETTERS, k=length)) for length in rng.sample(range(2, 6), 2)]
        question = f"Longer: {words[0]} {words[1]}"
        rows[question] = {"question": question, "answer": max(words, key=len)}
    return list(rows.values())
