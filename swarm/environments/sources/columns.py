"""Task files, and their rows as tasks: the columns of question and answer, and the three splits."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from swarm.digest import digest_of
from swarm.environments.base import Environment, EnvironmentTask, Grade, Session, SingleTurnSession, Transcript
from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import Split, split_of
from swarm.types import Task

Row = Mapping[str, Any]
Grader = Callable[[EnvironmentTask, Transcript], Grade]

SUFFIXES = (".jsonl", ".parquet")
SPLIT_NAMES: Mapping[str, Split] = {
    "train": Split.TRAIN,
    "validation": Split.VALIDATION,
    "valid": Split.VALIDATION,
    "val": Split.VALIDATION,
    "dev": Split.VALIDATION,
    "test": Split.TEST,
}


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file.

    Raises EnvironmentInvalid for a file that cannot be read, with the number of the wrong line if there is one.
    """
    try:
        rows = _read_parquet(path) if path.suffix == ".parquet" else _read_jsonl(path)
    except OSError as error:
        raise EnvironmentInvalid(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows:
        raise EnvironmentInvalid(f"{path}: there is no task in it")
    return rows


def files_by_split(directory: Path) -> dict[Split, list[Path]]:
    """Return the files below a folder by the split with which their names begin.

    Data sets of Hugging Face are named so: `data/train-00000-of-00001.parquet`. Raises EnvironmentInvalid if no file
    belongs to the split train.
    """
    found: dict[Split, list[Path]] = {}
    for path in sorted(each for suffix in SUFFIXES for each in directory.rglob(f"*{suffix}")):
        words = path.stem.replace("-", " ").replace("_", " ").replace(".", " ").split()
        split = SPLIT_NAMES.get(words[0].lower()) if words else None
        if split is not None:
            found.setdefault(split, []).append(path)
    if Split.TRAIN not in found:
        raise EnvironmentInvalid(
            f"{directory} is not an environment: add an environment.toml, or a train*.jsonl or train*.parquet below it"
        )
    return found


def digest_files(paths: Iterable[Path]) -> str:
    """Return one digest of the contents of files, in the order given."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:24]


def _read_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise EnvironmentInvalid(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(row, dict):
            raise EnvironmentInvalid(f"{path}, line {number}: not a JSON object")
        rows.append(cast(Row, row))
    return rows


def _read_parquet(path: Path) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise EnvironmentInvalid(
            f"{path}: reading Parquet needs pyarrow: pip install 'swarm-researcher[environments]'"
        ) from None
    library: Any = pyarrow
    reader: Any = parquet
    try:
        return cast(list[Row], reader.read_table(path).to_pylist())
    except library.ArrowInvalid as error:
        raise EnvironmentInvalid(f"{path}: not a Parquet file: {error}") from None


QUERY_COLUMNS = ("query", "question", "prompt", "problem", "input", "instruction")
ANSWER_COLUMNS = ("answer", "solution", "target", "output", "label", "response")


def _as_names(value: object) -> object:
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


class TaskOptions(BaseModel):
    """Options that say how rows become tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    query: str | None = None
    """Column with the question for the agent. Default: the first that exists of query, question, prompt, problem,
    input, instruction."""
    answer: str | None = None
    """Column with the right answer, which programs do not see. Default: the first that exists of answer, solution,
    target, output, label, response."""
    public: Annotated[tuple[str, ...], BeforeValidator(_as_names)] = ()
    """Further columns that programs may see, in the task's metadata."""
    split: str | None = None
    """Column with train, validation or test. Default: the split in a file's name, else the hash of the question: 80 %
    train, 10 % validation, 10 % test."""
    system: str | None = None
    """System prompt of every attempt."""
    max_tokens: int = Field(default=256, ge=1)
    """Tokens that are enough for an answer."""
    time_limit_s: float | None = Field(default=None, gt=0, le=86_400)
    """Seconds that one grade may take; an attempt whose grade takes longer fails. Default: 60; for python_tests 600;
    for judge the time that all its calls may take."""


class Placed(NamedTuple):
    """A task and what decides its split: the split that it is given, if any, else the hash of `hashed`.

    Tasks with the same `identity` are in one split.
    """

    task: EnvironmentTask
    own: Split | None
    hashed: str
    identity: str


class SplitTasks:
    """Tasks in three splits that share none, in an order that the seed decides."""

    def __init__(self, name: str, placed: Iterable[Placed], sources: Collection[Split] = ()) -> None:
        """Assign tasks to splits. Where only some have `sources`, the others take a part of the train tasks, by hash.

        Raises EnvironmentInvalid for an empty split, and for a task that is in two splits.
        """
        self._name = name
        self._by_split: dict[Split, dict[str, EnvironmentTask]] = {split: {} for split in Split}
        first: dict[str, Split] = {}
        for task, own, hashed, identity in placed:
            by_hash = split_of(hashed)
            is_part = own is Split.TRAIN and bool(sources) and by_hash not in sources
            split = by_hash if own is None or is_part else own
            if (other := first.setdefault(identity, split)) is not split:
                both, question = " and ".join(each for each in Split if each in (other, split)), task.task.main_query
                raise EnvironmentInvalid(
                    f"{name}: the splits {both} overlap: both have the question {question[:60]!r}; remove it from one"
                )
            self._by_split[split].setdefault(task.task.task_id, task)
        total = sum(map(len, self._by_split.values()))
        for split, tasks in self._by_split.items():
            if not tasks:
                raise EnvironmentInvalid(f"{name}: none of its {total} tasks is in the split {split}: add some")

    def tasks(self, split: Split, seed: int) -> Iterator[EnvironmentTask]:
        order = list(self._by_split[split].values())
        Random(f"{self._name}/{split}/{seed}").shuffle(order)
        return iter(order)


class TableEnvironment(Environment):
    """An environment of single-turn tasks from rows, whose subclass reads the rows."""

    def __init__(
        self, name: str, options: TaskOptions, rows: Mapping[Split | None, Sequence[Row]], grader: Grader
    ) -> None:
        """Assign the rows to splits, each with its whole row as the answer for the grader.

        Rows under None go to the split that their column names, or else the hash of their question. Raises
        EnvironmentInvalid as `SplitTasks` does, for a missing column, and for a question that has two answers.
        """
        self.name = name
        self.max_tokens = options.max_tokens
        self.system = options.system
        named = [split for split in rows if split is not None]
        if named and options.split is not None:
            raise EnvironmentInvalid(
                f"{name}: option split has no effect: the names of the files, or tasks.py, give the split of each task;"
                " leave it out",
                param="split",
            )
        self._tasks = SplitTasks(name, _placed(name, options, rows), named)
        self._grader = grader

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        return self._tasks.tasks(split, seed)

    def open(self, task: EnvironmentTask) -> Session:
        return SingleTurnSession(task.task.main_query, self.system)

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        return self._grader(task, transcript)


def _placed(name: str, options: TaskOptions, rows: Mapping[Split | None, Sequence[Row]]) -> Iterator[Placed]:
    known: dict[str, Row] = {}
    for named, of_split in rows.items():
        for number, row in enumerate(of_split, 1):
            task = _task_of(name, options, row, number)
            query, task_id = task.task.main_query, task.task.task_id
            if known.setdefault(task_id, row) != row:
                raise EnvironmentInvalid(
                    f"{name}, row {number}: it repeats the question {query[:60]!r} with other values: remove one of the"
                    " rows"
                )
            yield Placed(task, named or _split_of(options, row, number), query, task_id)


def _task_of(name: str, options: TaskOptions, row: Row, number: int) -> EnvironmentTask:
    query = row.get(_column(options.query, QUERY_COLUMNS, "query", row))
    if not isinstance(query, str) or not query.strip():
        raise EnvironmentInvalid(f"{name}, row {number}: its question is {str(query)[:40]!r}, which is not a text")
    missing = [column for column in options.public if column not in row]
    if missing:
        raise EnvironmentInvalid(f"{name}, row {number}: there is no column {missing[0]!r}", param="public")
    public = {column: row[column] for column in options.public}
    task_id = f"{name}/{digest_of([query, public])}"
    return EnvironmentTask(Task(query, task_id, public, data_source=name), dict(row))


def answer_column(options: TaskOptions, row: Row) -> str:
    """Return the name of the answer's column.

    Raises EnvironmentInvalid if the row has none.
    """
    return _column(options.answer, ANSWER_COLUMNS, "answer", row)


def _column(chosen: str | None, usual: Sequence[str], what: str, row: Row) -> str:
    found = next((column for column in ([chosen] if chosen else usual) if column in row), None)
    if found is None:
        raise EnvironmentInvalid(
            f"no column for the {what} was found: set {what}=COLUMN, where the columns are {', '.join(row) or 'none'}",
            param=what,
        )
    return found


def _split_of(options: TaskOptions, row: Row, number: int) -> Split | None:
    if options.split is None:
        return None
    value: Any = row.get(options.split)
    split = SPLIT_NAMES.get(value.lower()) if isinstance(value, str) else None
    if split is None:
        raise EnvironmentInvalid(
            f"row {number}: column {options.split} is {str(value)[:40]!r}: use train, validation or test", param="split"
        )
    return split
