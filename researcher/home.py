"""The directory of studies, their servers and their logs, and its option in printed commands."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_HOME = Path("runs")
STUDIES = "studies"
"""The folder in a home with one folder for each study."""
DATABASE = "research.db"
"""The file in a home with its studies, unless another database is named."""


def place_below(home: Path, study_id: str, stored: str) -> Path | None:
    """Return where a stored path of a study lies below this home, wherever the study was carried out.

    None for a path outside of the study's folder.
    """
    parts = Path(stored).parts
    if ".." in parts:
        return None
    starts = [index for index in range(1, len(parts)) if parts[index - 1 : index + 1] == (STUDIES, study_id)]
    return home.joinpath(STUDIES, *parts[starts[-1] :]) if starts else None


def home_option(home: Path) -> str:
    """Return the option that names this home in a command; empty for the default one."""
    return "" if home == DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
