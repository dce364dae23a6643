"""The directory that holds studies, their servers and their logs, and how it is named in commands that are shown.

Place in the flow: the commands take it as an option, study/requests.py writes it into hints. It loads nothing else.
"""

from __future__ import annotations

import shlex
from pathlib import Path

DEFAULT_HOME = Path("runs")
DATABASE = "research.db"
"""The file below a home that its studies are in, unless another database is named."""


def home_option(home: Path) -> str:
    """What a command for this home has to say of it; empty for the default one."""
    return "" if home == DEFAULT_HOME else f" --home {shlex.quote(str(home))}"
