"""Task files, and their rows as tasks: the columns of question and answer, and the three splits."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import operator
import threading
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, compress, repeat
from pathlib import Path
from random import Random
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from swarm.digest import digest_of
from swarm.environments.base import Environment, EnvironmentTask, Grade, Session, SingleTurnSession, Transcript
from swarm.environments.sources.rows import Row, Rows
from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import Split, split_of
from swarm.types import Task

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


KEPT_ORDERS = 4
"""The orders of splits that stay in memory, so that a split is not shuffled for every look at it."""
MASK = 2**24 - 1
"""The place of a row's mark, by its hash. Only a row that finds a mark there can repeat an earlier one."""


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
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()[:24]


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
            _refuse_overlap(name, task.task.main_query, first.setdefault(identity, split), split)
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
    """An environment of single-turn tasks from rows, whose subclass reads the rows.

    In memory are the split of each row and the last orders of a split. A task is made when it is asked for.
    """

    def __init__(self, name: str, options: TaskOptions, rows: Mapping[Split | None, Rows], grader: Grader) -> None:
        """Assign the rows to splits, each with its whole row as the answer for the grader.

        Rows under None go to the split that their column names, or else the hash of their question. Raises
        EnvironmentInvalid as `SplitTasks` does, for a missing column, and for a question that has two answers.
        """
        self.name = name
        self.max_tokens = options.max_tokens
        self.system = options.system
        if options.split is not None and any(split is not None for split in rows):
            raise EnvironmentInvalid(
                f"{name}: option split has no effect: the names of the files, or tasks.py, give the split of each task;"
                " leave it out",
                param="split",
            )
        self._table = TaskTable(name, options, rows)
        self._grader = grader

    def tasks(self, split: Split, seed: int = 0) -> Iterator[EnvironmentTask]:
        return self._table.tasks(split, seed)

    def open(self, task: EnvironmentTask) -> Session:
        return SingleTurnSession(task.task.main_query, self.system)

    def grade(self, task: EnvironmentTask, transcript: Transcript) -> Grade:
        return self._grader(task, transcript)


class TaskTable:
    """Rows of one or several sources as tasks in splits, of which only places and splits are in memory."""

    def __init__(self, name: str, options: TaskOptions, rows: Mapping[Split | None, Rows]) -> None:
        """Raise EnvironmentInvalid as `TableEnvironment` does."""
        self._name = name
        self._options = options
        self._sources = list(rows.items())
        self._begins = [0, *accumulate(len(of_split) for of_split in rows.values())]
        self._orders: OrderedDict[tuple[Split, int], array[int]] = OrderedDict()
        self._lock = threading.Lock()
        splits, keys, suspects = self._place()
        counts = Counter(filter(suspects.__contains__, keys))
        self._drop_repeated(splits, keys, {key for key, count in counts.items() if count > 1})
        self._by_split = {
            split: array("Q", compress(range(len(splits)), map(operator.is_, splits, repeat(split)))) for split in Split
        }
        total = sum(map(len, self._by_split.values()))
        for split, places in self._by_split.items():
            if not places:
                raise EnvironmentInvalid(f"{name}: none of its {total} tasks is in the split {split}: add some")

    def tasks(self, split: Split, seed: int) -> Iterator[EnvironmentTask]:
        """Yield the tasks of a split in the order that the seed decides."""
        return map(self._task_at, self._order(split, seed))

    def _order(self, split: Split, seed: int) -> array[int]:
        with self._lock:
            if (split, seed) not in self._orders:
                places = list(self._by_split[split])
                Random(f"{self._name}/{split}/{seed}").shuffle(places)
                self._orders[split, seed] = array("Q", places)
                while len(self._orders) > KEPT_ORDERS:
                    self._orders.popitem(last=False)
            return self._orders[split, seed]

    def _task_at(self, place: int) -> EnvironmentTask:
        row, number, _ = self._row_at(place)
        return _task_of(self._name, self._options, row, number)

    def _row_at(self, place: int) -> tuple[Row, int, Split | None]:
        """Return a row, its number in its source, and the split of that source."""
        source = bisect_right(self._begins, place) - 1
        number = place - self._begins[source]
        split, rows = self._sources[source]
        return rows[number], number + 1, split

    def _place(self) -> tuple[list[Split | None], array[int], set[int]]:
        """Return the split of each row, a hash of what makes its task another one, and hashes that may be there twice.

        The loop is run through for each of millions of rows.
        """
        options = self._options
        sources = {split for split, _ in self._sources if split is not None}
        splits, keys = list[Split | None](), array("q")
        add_split, add_key = splits.append, keys.append
        marks, suspects = bytearray(MASK + 1), set[int]()
        for named, rows in self._sources:
            column, before = "", frozenset[str]()
            is_plain = named is None and options.split is None and not options.public
            for number, row in enumerate(rows, 1):
                if column not in row or not before.isdisjoint(row):
                    column, before = _query_column(options, row)
                query = row[column]
                if is_plain and isinstance(query, str) and query and not query.isspace():
                    key = hash(query)
                    add_split(split_of(query))
                else:
                    query, identity = _identity(self._name, options, row, number)
                    key = hash(identity)
                    split = named or _split_of(options, row, number) or split_of(query)
                    if named is Split.TRAIN and (by_hash := split_of(query)) not in sources:
                        # Where only some splits have sources, the others take a part of the train tasks, by hash.
                        split = by_hash
                    add_split(split)
                add_key(key)
                if marks[place := key & MASK]:
                    suspects.add(key)
                else:
                    marks[place] = 1
        return splits, keys, suspects

    def _drop_repeated(self, splits: list[Split | None], keys: array[int], repeated: set[int]) -> None:
        """Drop rows that repeat an earlier one. Raise EnvironmentInvalid for one with other values or another split."""
        first: dict[str, int] = {}
        for at in compress(range(len(keys)), map(repeated.__contains__, keys)) if repeated else ():
            row, number, _ = self._row_at(at)
            query, identity = _identity(self._name, self._options, row, number)
            other = first.setdefault(identity, at)
            if other == at:
                continue
            if self._row_at(other)[0] != row:
                raise EnvironmentInvalid(
                    f"{self._name}, row {number}: it repeats the question {query[:60]!r} with other values: remove one"
                    " of the rows"
                )
            one, two = splits[other], splits[at]
            if one is not None and two is not None:
                _refuse_overlap(self._name, query, one, two)
            splits[at] = None


def _refuse_overlap(name: str, query: str, one: Split, other: Split) -> None:
    if one is not other:
        both = " and ".join(each for each in Split if each in (one, other))
        raise EnvironmentInvalid(
            f"{name}: the splits {both} overlap: both have the question {query[:60]!r}; remove it from one"
        )


def _identity(name: str, options: TaskOptions, row: Row, number: int) -> tuple[str, str]:
    """Return the question of a row and the id of its task. Raise EnvironmentInvalid for a row that is no task."""
    task = _task_of(name, options, row, number).task
    return task.main_query, task.task_id


def _query_column(options: TaskOptions, row: Row) -> tuple[str, frozenset[str]]:
    """Return the column of the question in a row, and the columns that would go before it in another one."""
    found = _column(options.query, QUERY_COLUMNS, "query", row)
    is_usual = options.query is None and found in QUERY_COLUMNS
    return found, frozenset(QUERY_COLUMNS[: QUERY_COLUMNS.index(found)] if is_usual else ())


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
