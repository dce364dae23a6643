"""Folders of the user's: tasks and grader are found, and what is wrong with them is told in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swarm.environments import Grade, load_environment
from swarm.environments.scaffold import write_scaffold
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.tasks import Split

TASKS_PY = """
def tasks(split, seed):
    start = {"train": 0, "validation": 100, "test": 200}[split]
    return [{"question": f"double {n}", "wanted": 2 * n} for n in range(start, start + 20)]
"""


def folder(tmp_path: Path, **files: str) -> str:
    write_scaffold(tmp_path / "own")
    for name, content in files.items():
        path = tmp_path / "own" / name.replace("_", ".")
        path.unlink(missing_ok=True)
        if content:
            path.write_text(content)
    return str(tmp_path / "own")


def grade_of(environment: Any, reply: str) -> Grade:
    task = next(environment.tasks(Split.TRAIN))
    return environment.grade(task, [*environment.open(task).messages, {"role": "assistant", "content": reply}])


def test_the_scaffold_is_an_environment(tmp_path: Path) -> None:
    environment = load_environment(folder(tmp_path))
    task = next(environment.tasks(Split.TRAIN))
    assert environment.name == "own" and task.task.main_query.startswith("Longer: ")
    assert "answer" not in task.task.metadata
    assert grade_of(environment, str(environment.solution(task))) == Grade(1.0, True)
    assert grade_of(environment, "?") == Grade(0.0, False)


def test_tasks_may_come_from_a_program(tmp_path: Path) -> None:
    name = folder(
        tmp_path,
        tasks_jsonl="",
        tasks_py=TASKS_PY,
        environment_toml='answer = "wanted"\ngrader = "number"',
        grade_py="",
    )
    environment = load_environment(name)
    assert [len(list(environment.tasks(split))) for split in Split] == [20, 20, 20]
    task = next(environment.tasks(Split.TEST))
    assert int(task.task.main_query.split()[1]) >= 200
    assert environment.grade(task, [{"role": "assistant", "content": f"{task.answer['wanted']}"}]).is_success


def test_a_grader_may_say_more_than_a_number(tmp_path: Path) -> None:
    grade = "def grade(task, transcript): return {'score': 0.5, 'success': True, 'details': {'why': 'half'}}"
    environment = load_environment(folder(tmp_path, grade_py=grade))
    assert grade_of(environment, "x") == Grade(0.5, True, {"why": "half"})


def test_a_system_prompt_opens_every_attempt(tmp_path: Path) -> None:
    toml = 'system = "Answer with one word."'
    environment = load_environment(folder(tmp_path, environment_toml=toml))
    opening = environment.open(next(environment.tasks(Split.TRAIN))).messages
    assert opening[0] == {"role": "system", "content": "Answer with one word."}


def test_the_digest_changes_with_any_file_but_caches(tmp_path: Path) -> None:
    name = folder(tmp_path)
    before = load_environment(name).digest
    (tmp_path / "own" / "__pycache__").mkdir(exist_ok=True)
    (tmp_path / "own" / "__pycache__" / "x.pyc").write_text("x")
    assert load_environment(name).digest == before
    (tmp_path / "own" / "notes.txt").write_text("x")
    assert load_environment(name).digest != before


INCOMPLETE = [
    ({"grade_py": ""}, EnvironmentInvalid, "write a grade.py, or name a grader"),
    ({"tasks_jsonl": ""}, EnvironmentInvalid, "there must be exactly one of tasks.jsonl, .* but there is none"),
    ({"tasks_py": TASKS_PY}, EnvironmentInvalid, "but there are tasks.py, tasks.jsonl"),
    ({"environment_toml": "grader = 'exact'"}, EnvironmentInvalid, "a grade.py and a grader .*: keep one"),
    ({"environment_toml": "name = "}, EnvironmentInvalid, "environment.toml: cannot be read"),
    ({"environment_toml": "colour = 1"}, EnvironmentInvalid, "environment.toml: there is no option colour"),
    ({"grade_py": "def judge(): ..."}, EnvironmentInvalid, "there is no function grade in it"),
    ({"grade_py": "import nothing_of_this_name"}, EnvironmentInvalid, "importing it raised ModuleNotFoundError"),
    ({"tasks_jsonl": "", "tasks_py": "def tasks(split, seed): return 1 / 0"}, EnvironmentFailure, "ZeroDivisionError"),
    ({"tasks_jsonl": "", "tasks_py": "def tasks(split, seed): return ['x']"}, EnvironmentInvalid, "is not a dict"),
    ({"tasks_jsonl": json.dumps({"question": "a"})}, EnvironmentInvalid, "there is no task in the split"),
]


@pytest.mark.parametrize(("files", "kind", "message"), INCOMPLETE)
def test_folders_that_cannot_be_used_are_refused_in_one_line(
    tmp_path: Path, files: dict[str, str], kind: type[EnvironmentInvalid], message: str
) -> None:
    with pytest.raises(kind, match=message) as refused:
        load_environment(folder(tmp_path, **files))
    assert "\n" not in refused.value.message


GRADERS = [
    ("raise KeyError('length')", "failed on task own/.*: KeyError: 'length'"),
    ("return float('nan')", "the score nan: it must be a finite number"),
    ("return None", "returned 'None': return a number"),
    ("return {'points': 3}", "return a number, a boolean, or a mapping with a score"),
]


@pytest.mark.parametrize(("body", "message"), GRADERS)
def test_what_is_no_grade_is_a_failure_and_never_a_reward(tmp_path: Path, body: str, message: str) -> None:
    environment = load_environment(folder(tmp_path, grade_py=f"def grade(task, transcript): {body}"))
    with pytest.raises(EnvironmentFailure, match=message):
        grade_of(environment, "x")


def test_a_folder_with_files_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    with pytest.raises(EnvironmentInvalid, match="exists and is not empty"):
        write_scaffold(tmp_path / "own")
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["notes.txt"]
