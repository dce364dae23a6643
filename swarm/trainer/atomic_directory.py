"""A directory on disk: complete or not there at all.

Place in the flow: both trainers write their checkpoints through this. A directory is written beside its place, flushed
to disk, and renamed. Knows nothing of what is in it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from swarm.processes.flush import flush


@contextmanager
def written_atomically(directory: Path) -> Generator[Path]:
    """An empty directory to fill, which then takes the place of `directory`. Raises OSError.

    On an exception what was there stays. Killed at any point, `directory` is either the old one, the new one or,
    between two renames, absent with the old one beside it as `.<name>.replaced`.
    """
    draft = directory.parent / f".{directory.name}.draft"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        yield draft
        for path in (*draft.rglob("*"), draft):
            flush(path)
        _put_in_place(draft, directory)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def fingerprint(path: Path) -> dict[str, int | str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _put_in_place(draft: Path, directory: Path) -> None:
    replaced = directory.parent / f".{directory.name}.replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if directory.exists():
        directory.rename(replaced)
    try:
        draft.rename(directory)
    except OSError:
        if replaced.exists():
            replaced.rename(directory)
        raise
    flush(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)
