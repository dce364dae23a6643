"""Directories that are on disk either complete or not at all.

Place in the flow: both trainers write their checkpoints through this module. It writes a directory beside its final
place, flushes it to disk, and renames it. It knows nothing of the contents.
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
    """Yield an empty directory to fill, which then replaces `directory`. Raise OSError.

    After an exception the old directory is unchanged. If the process is killed, `directory` is either the old one or
    the new one. Between two renames it is absent, and the old one lies beside it as `.<name>.replaced`.
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
    """Return the size and SHA-256 of a file."""
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
