"""The directory of studies, their servers and their logs, and its option in printed commands."""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_HOME = Path("runs")
DATABASE = "research.db"
"""The file in a home with its studies, unless another database is named."""


def home_option(home: Path) -> str:
    """Return the option that names this home in a command; empty for the default one."""
    return "" if home == DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
