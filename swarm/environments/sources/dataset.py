"""A task file as an environment: options name its columns and choose a built-in grader."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from swarm.digest import digest_of
from swarm.environments.base import Environment, EnvironmentTask
from swarm.environments.graders.grading import GraderOptions, build_grader, time_limit_of
from swarm.environments.graders.replies import known_reply
from swarm.environments.source import Source, option_error
from swarm.environments.sources.columns import (
    SUFFIXES,
    TableEnvironment,
    TaskOptions,
    answer_column,
    digest_files,
    files_by_split,
)
from swarm.environments.sources.rows import joined, read_rows


class DatasetOptions(TaskOptions, GraderOptions):
    """Options of a task file, as in `tasks.jsonl?query=question&grader=number`."""

    grader: str = "exact"
    """Name of a built-in grader."""


class DatasetSource(Source):
    """Task files and folders of them, each by its path."""

    form = "a .jsonl or .parquet file"
    is_path = True

    def claims(self, name: str) -> bool:
        path = Path(name)
        return path.is_dir() or (path.is_file() and path.suffix in SUFFIXES)

    def open(self, name: str, options: Mapping[str, str]) -> Environment:
        try:
            parsed = DatasetOptions.model_validate(options)
        except ValidationError as error:
            raise option_error(error, name, DatasetOptions) from error
        return DatasetEnvironment(Path(name), parsed)

    def files(self, name: str) -> dict[str, Path]:
        path = Path(name)
        if path.is_file():
            return {path.name: path}
        return {str(each.relative_to(path)): each for paths in files_by_split(path).values() for each in paths}


class DatasetEnvironment(TableEnvironment):
    """An environment of questions with one right answer each."""

    def __init__(self, path: Path, options: DatasetOptions) -> None:
        """Read the task files.

        Raises EnvironmentInvalid for files or options that cannot be used.
        """
        self.description = f"Questions of {path.name}, graded by {options.grader}."
        self.time_limit_s = options.time_limit_s or time_limit_of(options.grader, options)
        self._options = options
        grader = build_grader(options.grader, options, partial(answer_column, options))
        files = files_by_split(path) if path.is_dir() else {None: [path]}
        rows = {split: joined([read_rows(each) for each in paths]) for split, paths in files.items()}
        contents = digest_files(each for paths in files.values() for each in paths)
        self.digest = digest_of([contents, options.model_dump(exclude={"time_limit_s"})])
        super().__init__(path.stem, options, rows, grader)
        answer_column(options, next(iter(rows.values()))[0])

    def solution(self, task: EnvironmentTask) -> str | None:
        return known_reply(self._options.grader, task.answer[answer_column(self._options, task.answer)])
