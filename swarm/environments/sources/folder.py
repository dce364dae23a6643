"""A user's folder as an environment: environment.toml, tasks.jsonl or tasks.py, and a grader."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from swarm.environments.base import Environment, EnvironmentTask, Grade, Transcript
from swarm.environments.graders.grading import GraderOptions, build_grader, refuse_options, time_limit_of
from swarm.environments.graders.replies import known_reply
from swarm.environments.source import Source, option_error
from swarm.environments.sources.columns import (
    Grader,
    Row,
    TableEnvironment,
    TaskOptions,
    answer_column,
    digest_files,
)
from swarm.environments.sources.rows import Rows, read_rows
from swarm.environments.user_code import Hook, describe_exit, find_hooks, place_of
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.tasks.base import Split
from swarm.types import Message

UserGrader = Callable[[dict[str, Any], list[Message]], object]

GRADE = Hook("grade", ("task", "transcript"))
TASKS = Hook("tasks", ("split", "seed"), may_yield=True)
AGENT_FILE = "agent.py"
IGNORED_FOLDERS = frozenset({"__pycache__", ".git", ".venv"})
RUNS = "runs"
"""Folder with the state of commands that run inside this folder. It changes with every step."""


class FolderSource(Source):
    """Folders with an environment.toml, each by its path."""

    form = "a folder with an environment.toml"
    is_path = True

    def claims(self, name: str) -> bool:
        return (Path(name) / "environment.toml").is_file()

    def open(self, name: str, options: Mapping[str, str]) -> Environment:
        if options:
            raise EnvironmentInvalid(
                f"set the options of {Path(name)} in its environment.toml", param=next(iter(options))
            )
        return FolderEnvironment(Path(name))

    def interpreter(self, name: str) -> str | None:
        """Return the interpreter that the folder asks for, or None if it asks for none.

        Raises EnvironmentInvalid if environment.toml cannot be read, or if the interpreter cannot be run.
        """
        path = _interpreter(Path(name), _read_options(Path(name) / "environment.toml"))
        if path is not None and not os.access(path, os.X_OK):
            raise EnvironmentInvalid(
                f"{Path(name)}: its interpreter {path} cannot be run: correct the option python", param="python"
            )
        return path

    def agent(self, name: str) -> Path | None:
        agent = Path(name) / AGENT_FILE
        return agent if agent.is_file() else None

    def files(self, name: str) -> dict[str, Path]:
        return {str(each.relative_to(name)): each for each in folder_files(Path(name))}


class FolderOptions(TaskOptions, GraderOptions):
    """The options in an environment.toml."""

    name: str | None = None
    """Name of the environment. Default: the name of the folder."""
    description: str = ""
    """One sentence for people."""
    grader: str | None = None
    """Name of a built-in grader, instead of a grade.py."""
    python: str | None = None
    """Interpreter that runs the folder's code, as a path from the folder. Default: the one that opens the folder."""


class FolderEnvironment(TableEnvironment):
    """The environment of a folder, whose Python is imported in the process that opens the environment.

    tasks.py    def tasks(split: str, seed: int) -> an iterable of mappings, each a row as in tasks.jsonl
    agent.py    a program (swarm.program), the default if the user names none
    grade.py    def grade(task: dict, transcript: list[dict]) -> a number, a boolean, or
                {"score": number, "success": boolean, "details": mapping}
    """

    def __init__(self, directory: Path) -> None:
        """Read the folder.

        Raises EnvironmentInvalid for a folder that is not complete, and EnvironmentFailure if its code fails.
        """
        options = _read_options(directory / "environment.toml")
        wanted = _interpreter(directory, options)
        if wanted not in (None, os.path.abspath(sys.executable)):
            raise EnvironmentInvalid(
                f"{directory} needs its own interpreter, {wanted}: open it with"
                " swarm.environments.server.open_environment"
            )
        self.name = options.name or directory.resolve().name
        self.description = options.description
        self.time_limit_s = options.time_limit_s or time_limit_of(options.grader, options)
        self._options = options
        grader = self._find_grader(directory, options)
        self.digest = digest_files(folder_files(directory))
        super().__init__(self.name, options, _read_tasks(directory), grader)

    def solution(self, task: EnvironmentTask) -> str | None:
        """Return a reply that the grader finds right, or None if none is known.

        With a grade.py, one is known only if environment.toml names the answer's column.
        """
        if self._options.grader is not None:
            return known_reply(self._options.grader, task.answer[answer_column(self._options, task.answer)])
        found = None if self._options.answer is None else task.answer.get(self._options.answer)
        return None if found is None else str(found)

    def _find_grader(self, directory: Path, options: FolderOptions) -> Grader:
        path = directory / "grade.py"
        if path.exists() and options.grader:
            raise EnvironmentInvalid(
                f"{directory}: there is both a grade.py and a grader in environment.toml: keep one"
            )
        if path.exists():
            refuse_options(None, options)
            return _user_grader(self.name, path, _function(path, GRADE))
        if options.grader is None:
            raise EnvironmentInvalid(
                f"{directory} has no grader: write a grade.py, or name a grader in environment.toml"
            )
        return build_grader(options.grader, options, partial(answer_column, options))


def _user_grader(name: str, path: Path, function: UserGrader) -> Grader:
    def grade(task: EnvironmentTask, transcript: Transcript) -> Grade:
        try:
            result = function(dict(task.answer), [dict(message) for message in transcript])
        except EnvironmentInvalid:
            raise
        except SystemExit as error:
            raise EnvironmentFailure(f"{describe_exit(error, path)} on task {task.task.task_id}") from error
        except Exception as error:
            # The user's code may raise anything: a failed grader is reported and never counts as a grade.
            raise EnvironmentFailure(
                f"the grader of {name} failed on task {task.task.task_id}: {type(error).__name__}: {error}"
                f" ({place_of(error, path)})"
            ) from error
        return _as_grade(name, result)

    return grade


def _interpreter(directory: Path, options: FolderOptions) -> str | None:
    return None if options.python is None else os.path.abspath(directory / Path(options.python).expanduser())


def _read_options(path: Path) -> FolderOptions:
    try:
        return FolderOptions.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise EnvironmentInvalid(f"{path}: cannot be read: {error}") from error
    except ValidationError as error:
        raise option_error(error, str(path), FolderOptions) from error


def _read_tasks(directory: Path) -> Mapping[Split | None, Rows]:
    program, files = directory / "tasks.py", [directory / "tasks.jsonl", directory / "tasks.parquet"]
    found = [path for path in [program, *files] if path.exists()]
    if len(found) != 1:
        raise EnvironmentInvalid(
            f"{directory}: there must be exactly one of tasks.jsonl, tasks.parquet and tasks.py, but there "
            f"{'is none' if not found else 'are ' + ', '.join(path.name for path in found)}"
        )
    if found[0] != program:
        return {None: read_rows(found[0])}
    make = _function(program, TASKS)
    return {split: _called(program, make, split) for split in Split}


def _called(path: Path, make: Callable[[str, int], Iterable[Row]], split: Split) -> list[Row]:
    try:
        rows: list[Any] = [*make(split.value, 0)]
    except SystemExit as error:
        raise EnvironmentFailure(describe_exit(error, path)) from error
    except Exception as error:
        raise EnvironmentFailure(f"{path}: tasks({split.value!r}, 0) raised {type(error).__name__}: {error}") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise EnvironmentInvalid(f"{path}: task {number} of {split} is not a dict")
    return rows


def _function(path: Path, hook: Hook) -> Callable[..., Any]:
    if hook.name not in (found := find_hooks(path, [hook])):
        raise EnvironmentInvalid(f"{path}: there is no function {hook.name} in it: define it")
    return found[hook.name]


def folder_files(directory: Path) -> list[Path]:
    """Return the files that the digest of the environment covers."""
    return sorted(
        path
        for path in directory.rglob("*")
        # The agent does not change the tasks: a score names the program beside the environment.
        if path.is_file()
        and path != directory / AGENT_FILE
        and path.relative_to(directory).parts[0] != RUNS
        and not IGNORED_FOLDERS & set(path.relative_to(directory).parts)
    )


def _as_grade(name: str, result: Any) -> Grade:
    """Return the grade that a grade.py returned.

    Raises EnvironmentFailure for a value that is not a grade.
    """
    if isinstance(result, bool | int | float):
        return Grade(float(result), float(result) >= 1)
    document = cast(dict[str, Any], result) if isinstance(result, dict) else {}
    score = document.get("score")
    if isinstance(score, bool | int | float) and document.keys() <= {"score", "success", "details"}:
        is_success = document.get("success", float(score) >= 1)
        return Grade(float(score), bool(is_success), dict(document.get("details") or {}))
    shown = str(cast(object, result))[:60]
    raise EnvironmentFailure(
        f"the grader of {name} returned {shown!r}: return a number, a boolean, or a mapping with a score, and "
        "optionally with success and details"
    )
