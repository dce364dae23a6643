"""The cost of the explorer on a large database: processor seconds of its server, its memory, and what it sends.

Place in the flow: one of the benchmarks. `database.py` fills a database, `pages.py` opens the pages on it in a headless
Chromium. With `--seconds` below 300 the database is a hundredth as large; the case name says how large it was.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench.explorer.database import FULL, SMALL, fill
from bench.explorer.pages import measure
from bench.results import Result

__all__ = ["run"]

FULL_SIZE_S = 300


def run(seconds: float) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="explorer-") as folder:
        size = FULL if seconds >= FULL_SIZE_S else SMALL
        filled = fill(Path(folder) / "research.db", size)
        return measure(filled, case=f"{size.studies} studies, {size.runs:,} runs, {size.points:,} points")
