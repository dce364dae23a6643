"""A file or a directory that is on disk on return.

Place in the flow: whoever renames what must outlive a loss of power calls this for the directory afterwards. Knows
nothing of what is written.
"""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Have the system write down what it holds of the file, or of the names in the directory. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
