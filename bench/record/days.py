"""Fourteen simulated days: one study through all nodes of the loop, each of its rounds measured.

Place in the flow: __init__.py runs it. What a real study does in the background (booting, scoring) is not counted to
the rounds. The last thirtieth is played by a second session on the same study, whose first round ends the resume.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.record.meter import StatementMeter, metered
from bench.record.simulation import LongStudy, Size
from bench.results import Result
from experiments_db import open_store

DAY_S = 86_400.0
DAYS = 14
FULL, SMALL = Size(), Size(arms=5, seeds=2)
MEMORY_DISK = Path("/dev/shm")
"""Where the database lies if there is one: a round is then what it computes, without the disk of this machine."""


@dataclass(slots=True)
class Rounds:
    """The costs of each round of the loop: wall and processor seconds, statements and database steps."""

    meter: StatementMeter
    wall_s: list[float] = field(default_factory=list[float])
    cpu_s: list[float] = field(default_factory=list[float])
    statements: list[int] = field(default_factory=list[int])
    steps: list[int] = field(default_factory=list[int])
    _begun: tuple[float, float, int, int] | None = None
    _in_background: tuple[float, float, int, int] = (0.0, 0.0, 0, 0)

    def _now(self) -> tuple[float, float, int, int]:
        return time.perf_counter(), time.process_time(), self.meter.statements, self.meter.steps

    def work(self, task: Callable[[], Any]) -> Any:
        """Carry out what a round leaves to the background."""
        before = self._now()
        try:
            return task()
        finally:
            spent = [now - then for now, then in zip(self._now(), before, strict=True)]
            total = [sum(pair) for pair in zip(self._in_background, spent, strict=True)]
            self._in_background = (total[0], total[1], int(total[2]), int(total[3]))

    def next(self) -> None:
        """Begin a round, and record the one before it."""
        now = self._now()
        if self._begun is not None:
            spent = [a - b - c for a, b, c in zip(now, self._begun, self._in_background, strict=True)]
            self.wall_s.append(spent[0])
            self.cpu_s.append(spent[1])
            self.statements.append(int(spent[2]))
            self.steps.append(int(spent[3]))
        self._begun, self._in_background = now, (0.0, 0.0, 0, 0)


def measure_days(*, is_full: bool) -> list[Result]:
    size = FULL if is_full else SMALL
    rounds_of_loop = size.rounds_of_loop
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None, prefix="record-") as folder:
        memory: list[int] = []
        with metered() as meter:
            rounds = Rounds(meter)

            def on_poll(number: int) -> bool:
                rounds.next()
                if number in (rounds_of_loop // 10, rounds_of_loop * 29 // 30):
                    gc.collect()
                    memory.append(psutil.Process().memory_info().rss)
                return number != rounds_of_loop * 29 // 30

            study = LongStudy(Path(folder), size, on_poll, rounds.work, seconds_per_poll=DAYS * DAY_S / rounds_of_loop)
            study.begin()
            with open_store(study.database, clock=study.clock) as store:
                study.carry_on(store)
            resume_s = _finish(study)
        with open_store(study.database, read_only=True) as store:
            runs = len(store.list_runs(study_id=study.study_id))
            newest = store.list_events(study.study_id, newest_first=True, limit=1)
        case = f"{DAYS} simulated days: {runs:,} runs, {newest[0].id:,} events"
        size_mb = study.database.stat().st_size / 1e6
    return [
        *_figures(case, rounds),
        Result("record", case, "memory, growth after the first tenth", memory[1] / memory[0] - 1, "share"),
        Result("record", case, "resume to the end of the first round", resume_s, "s"),
        Result("record", case, "database", size_mb, "MB"),
    ]


def _finish(study: LongStudy) -> float:
    """Return the seconds from opening the store to the beginning of the second round of a new session.

    That session then ends the study.
    """
    started, polls = time.perf_counter(), 0
    resumed = 0.0

    def on_poll(_: int) -> bool:
        nonlocal polls, resumed
        polls += 1
        if polls == 2:
            resumed = time.perf_counter() - started
        return True

    study.on_poll = on_poll
    with open_store(study.database, clock=study.clock) as store:
        study.carry_on(store)
    return resumed


def _figures(case: str, rounds: Rounds) -> list[Result]:
    tenth = max(1, len(rounds.wall_s) // 10)
    found: list[Result] = []
    for what, part in (("first tenth", slice(0, tenth)), ("last tenth", slice(-tenth, None))):
        cpu_ms, wall_ms = ([1000 * value for value in values[part]] for values in (rounds.cpu_s, rounds.wall_s))
        figures = {
            "processor, median": (statistics.median(cpu_ms), "ms"),
            "processor, 99 of 100 below": (sorted(cpu_ms)[len(cpu_ms) * 99 // 100], "ms"),
            "wall, median": (statistics.median(wall_ms), "ms"),
            "statements, median": (statistics.median(rounds.statements[part]), "statements"),
            "steps of the database, median": (statistics.median(rounds.steps[part]), "steps"),
        }
        found += [Result("record", case, f"a round, {what}: {name}", *value) for name, value in figures.items()]
    return found
