"""Files of a study, found from the paths in the database and read only inside the study's own folder.

A path that leads out of `<home>/studies/<study id>`, by dots or by links, counts as absent.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

TAIL_BYTES = 64 * 1024
MAX_BYTES = 32 * 1024 * 1024


def locate(home: Path, study_id: str, stored: str) -> Path | None:
    """Return the file that `stored` names, if it is a plain file in the study's folder.

    Only the part after the study's id counts, so a folder that was moved or copied with its database still works.
    """
    parts = Path(stored).parts
    if study_id not in parts:
        return None
    folder = (home / "studies" / study_id).resolve()
    try:
        found = folder.joinpath(*parts[parts.index(study_id) + 1 :]).resolve()
        if not found.is_relative_to(folder) or not stat.S_ISREG(found.lstat().st_mode):
            return None
    except (OSError, ValueError):
        # The text is no valid path: it has a null byte, a name too long or a loop of links.
        return None
    return found


def tail(path: Path, limit: int = TAIL_BYTES) -> tuple[str, bool]:
    """Return the last `limit` bytes as text, and whether something was left out. Raises OSError.

    The text starts at the beginning of a line.
    """
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - limit))
        text = file.read(limit).decode("utf-8", errors="replace")
    if length <= limit:
        return text, False
    return text.partition("\n")[2] or text, True


def written_at(path: Path) -> int:
    """Return when a file was last written, in nanoseconds since the epoch; 0 if it is gone."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def is_offered(path: Path) -> bool:
    """Return whether a file can be read and is small enough for a browser."""
    try:
        return os.access(path, os.R_OK) and path.stat().st_size <= MAX_BYTES
    except OSError:
        return False


def content(path: Path) -> bytes:
    """Return the whole file, or nothing if it is gone or grew too large."""
    try:
        return path.read_bytes() if path.stat().st_size <= MAX_BYTES else b""
    except OSError:
        return b""
