"""The cost of long records: a round of the loop after a thousand runs, and the reading of ten thousand.

Place in the flow: one of the benchmarks. `days.py` plays a study of 14 simulated days through the real loop, `pages.py`
reads a large record as the commands and the explorer do. With `--seconds` below 300 both are a tenth as large; the case
names say how large they were. At full size they take half an hour and 2 GB of disk.
"""

from __future__ import annotations

from bench.record.days import measure_days
from bench.record.pages import measure_pages
from bench.results import Result

__all__ = ["run"]

FULL_SIZE_S = 300


def run(seconds: float) -> list[Result]:
    is_full = seconds >= FULL_SIZE_S
    return [*measure_days(is_full=is_full), *measure_pages(is_full=is_full)]
