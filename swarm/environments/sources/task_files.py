"""The rows of a task file: JSON lines, Parquet, or a folder with such files for each split."""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from swarm.errors import EnvironmentInvalid
from swarm.tasks.base import Split

Row = Mapping[str, Any]

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
