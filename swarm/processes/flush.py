"""The flush of a file or a directory to disk."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Write the content of a file, or the names in a directory, to disk before returning.

    Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
