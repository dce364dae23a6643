"""The rows of task files. A row of a large file is read when it is asked for, so that the file may have millions."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, cast

from swarm.errors import EnvironmentFailure, EnvironmentInvalid

Row = Mapping[str, Any]
Rows = Sequence[Row]
KEPT_BYTES = 16 * 2**20
"""The size up to which a file is kept in memory, so that later changes of it have no effect."""


def read_rows(path: Path) -> Rows:
    """Return the rows of a file.

    Raises EnvironmentInvalid for a file that cannot be read, with the number of the wrong line if there is one.
    """
    try:
        rows: Rows = _read_parquet(path) if path.suffix == ".parquet" else JsonlRows(path)
    except OSError as error:
        raise EnvironmentInvalid(f"{path}: cannot be read: {error.strerror or error}") from error
    if not rows:
        raise EnvironmentInvalid(f"{path}: there is no task in it")
    return rows


def joined(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several files, in their order, as one sequence."""
    return parts[0] if len(parts) == 1 else JoinedRows(parts)


class JoinedRows(Sequence[Row]):
    """The rows of several files as one sequence."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts
        self._begins = [0, *accumulate(map(len, parts))]

    def __len__(self) -> int:
        return self._begins[-1]

    def __iter__(self) -> Iterator[Row]:
        return chain.from_iterable(self._parts)

    def __getitem__(self, at: Any) -> Any:
        number = int(at)
        part = bisect_right(self._begins, number) - 1
        return self._parts[part][number - self._begins[part]]


class JsonlRows(Sequence[Row]):
    """The rows of a file with one JSON object per line. In memory are the places of its lines, and a small file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = _state_of(path)
        self._content = path.read_bytes() if self._state[0] <= KEPT_BYTES else None
        self._begins: array[int] = array("Q")
        begin = 0
        for line in self._lines():
            if not line.isspace():
                self._begins.append(begin)
            begin += len(line)
        self._end = begin

    def __len__(self) -> int:
        return len(self._begins)

    def __iter__(self) -> Iterator[Row]:
        for number, line in enumerate(self._lines(), 1):
            if not line.isspace():
                yield self._parsed(line, number)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[index] for index in range(*at.indices(len(self)))]
        number = int(at) if at >= 0 else len(self) + int(at)
        begin = self._begins[number]
        end = self._begins[number + 1] if number + 1 < len(self) else self._end
        found = self._read(begin, end)
        line = found.split(b"\n", 1)[0] if self._content is None else found.splitlines()[0]
        return self._parsed(line, number + 1)

    def _read(self, begin: int, end: int) -> bytes:
        if self._content is not None:
            return self._content[begin:end]
        try:
            with self._path.open("rb") as file:
                if _state_of(self._path) == self._state:
                    return os.pread(file.fileno(), end - begin, begin)
        except OSError as error:
            raise EnvironmentFailure(f"{self._path}: cannot be read any more: {error.strerror or error}") from error
        raise EnvironmentFailure(f"{self._path} was changed while it was in use: begin again")

    def _lines(self) -> Iterator[bytes]:
        if self._content is not None:
            yield from self._content.splitlines(keepends=True)
            return
        with self._path.open("rb") as file:
            yield from file

    def _parsed(self, line: bytes, number: int) -> Row:
        try:
            text = line.decode()
            row, end = _scan(text, 0)
            if len(text) - end > 1 and text[end:].strip():
                row = json.loads(line)
        except (StopIteration, ValueError, RecursionError):
            row = self._slowly(line, number)
        if not isinstance(row, dict):
            raise EnvironmentInvalid(f"{self._path}, line {number}: not a JSON object")
        return cast(Row, row)

    def _slowly(self, line: bytes, number: int) -> object:
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise EnvironmentInvalid(f"{self._path}, line {number}: not valid JSON: {error}") from None


_scan = cast(Callable[[str, int], tuple[object, int]], cast(Any, json.JSONDecoder()).scan_once)
"""A value at a place of a text, and the place where it ends: `json.loads` without its search for blanks."""


def _state_of(path: Path) -> tuple[int, int, int]:
    state = path.stat()
    return state.st_size, state.st_mtime_ns, state.st_ino


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
