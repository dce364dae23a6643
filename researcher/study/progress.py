"""The progress of a study at work: a live table on a terminal, else one line per event."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from statistics import fmean
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments_db import Event, ExperimentStore, RunStatus, Severity, StoreError, StudyStatus, StudyWork
from researcher.record.failure_reason import in_one_line
from researcher.study.overview import (
    RunView,
    StudySnapshot,
    describe_silence,
    describe_wait,
    take_snapshot,
)
from researcher.study.requests import work_of

REFRESH_S = 1.0
PLAIN_EVERY_S = 15.0
"""Seconds between two lines about the runs in progress, in output that is not a terminal."""

SILENT_LOOKS = 3
SHOWN_EVENTS = 8
_STYLES = {Severity.INFO: "", Severity.WARNING: "yellow", Severity.ERROR: "red"}
_STUDY_STYLES = {StudyStatus.FAILED: "red", StudyStatus.PAUSED: "yellow", StudyStatus.STOPPED: "yellow"}


def render(snapshot: StudySnapshot, events: tuple[Event, ...] = ()) -> RenderableType:
    """Return a study: its arms by seeds, the runs in training, the leader, and the last events."""
    study = snapshot.study
    head = Text(f"{study.id}  {study.status}\n", style="bold")
    head.append(study.topic, style="italic")
    if study.status_reason:
        head.append(f"\n{in_one_line(study.status_reason)}", style=_STUDY_STYLES.get(study.status, ""))
    if silence := describe_silence(snapshot.work, snapshot.now):
        head.append(f"\n{silence}", style="red")
    if wait := describe_wait(snapshot.question):
        head.append(f"\nthe study {wait}", style="yellow")
    for line in _describe_charter(snapshot):
        head.append(f"\n{line}")
    if snapshot.progress:
        head.append(f"\n{snapshot.progress}")
    if leader := describe_leader(snapshot):
        head.append(f"\n{leader}")
    if snapshot.budget:
        head.append(f"\nspent: {', '.join(line.in_words for line in snapshot.budget)}", style="dim")
    parts: list[RenderableType] = [head]
    if snapshot.runs or snapshot.trials:
        parts += [Text(), draw_arms(snapshot.runs, snapshot.trials)]
    if training := [run for run in snapshot.runs if run.status == RunStatus.RUNNING]:
        parts += [Text(), draw_training(training)]
    parts += [Text(), *(Text(_format_event(event), style=_STYLES[event.severity]) for event in events)]
    return Group(*parts)


def _describe_charter(snapshot: StudySnapshot) -> Iterator[str]:
    if snapshot.margin is not None:
        yield f"equal means: they differ by less than {snapshot.margin:g}"
    if snapshot.scope:
        yield f"arms may differ in: {snapshot.scope}"


def await_end(store: ExperimentStore, study_id: str) -> StudyWork:
    """Wait until no process works on a study, and return its state of work.

    A process that failed to write for a while begins the study anew, so silence counts only once it lasts.
    """
    silent = 0
    while True:
        work = work_of(store, store.get_study(study_id))
        silent = silent + 1 if work.silent_since is not None else 0
        if not work.is_at_work and silent in (0, SILENT_LOOKS):
            return work
        time.sleep(REFRESH_S)


class Follower:
    """A display of a study while a block runs: live if `console` is a terminal, else one line per new event."""

    def __init__(self, store: ExperimentStore, study_id: str, console: Console) -> None:
        self._store = store
        self._study_id = study_id
        self._console = console
        self._recent: deque[Event] = deque(maxlen=SHOWN_EVENTS)
        newest = store.list_events(study_id, newest_first=True, limit=1)
        self._last_id = newest[0].id if newest else 0
        self._wait = self._leader = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        if not self._console.is_terminal:
            self._follow_plainly()
            return
        with Live(console=self._console, refresh_per_second=4, transient=False) as live:
            while not self._ended.wait(REFRESH_S):
                self._draw(live)
            self._draw(live)

    def _follow_plainly(self) -> None:
        shown_at = time.monotonic()
        while not self._ended.wait(REFRESH_S):
            self._print_new()
            if time.monotonic() - shown_at >= PLAIN_EVERY_S:
                shown_at = time.monotonic()
                self._print_runs()
        self._print_new()

    def _print_runs(self) -> None:
        try:
            snapshot = take_snapshot(self._store, self._study_id)
        except StoreError:
            # The runs are shown in the next round, like events.
            return
        wait = describe_wait(snapshot.question)
        if wait and wait != self._wait:
            self._print(f"{_clock(time.time())}  the study {wait}")
        self._wait = wait
        if snapshot.progress and not wait:
            self._print(f"{_clock(time.time())}  {snapshot.progress}")
        leader = describe_leader(snapshot)
        if leader and leader != self._leader:
            self._print(f"{_clock(time.time())}  {leader}")
        self._leader = leader
        for run in snapshot.runs:
            if run.status == RunStatus.RUNNING and run.train_reward is not None:
                line = f"{run.arm} seed {run.seed}: step {run.step}/{run.steps}, train reward {run.train_reward:.3f}"
                self._print(f"{_clock(time.time())}  {line}")

    def _print_new(self) -> None:
        for event in self._new_events():
            self._print(_format_event(event))

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _draw(self, live: Live) -> None:
        self._recent.extend(self._new_events())
        try:
            live.update(render(take_snapshot(self._store, self._study_id), tuple(self._recent)), refresh=True)
        except StoreError as error:
            live.update(Text(f"the database cannot be read just now: {error}", style="red"))

    def _new_events(self) -> list[Event]:
        try:
            events = self._store.list_events(self._study_id, after_id=self._last_id)
        except StoreError:
            # Events are shown at the next refresh. The work itself reports errors of the database.
            return []
        if events:
            self._last_id = events[-1].id
        return events


def _format_event(event: Event) -> str:
    return f"{_clock(event.created_at)}  {in_one_line(event.message)}"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}"


MOST_ARMS = 15
MOST_SEEDS = 5
"""The seeds up to which each has a column of its own; more of them are drawn as one sign each."""
MOST_RUNS = 8
_RUN_STYLES = {RunStatus.FINISHED: "green", RunStatus.FAILED: "red", RunStatus.STOPPED: "yellow"}
_SIGNS = {RunStatus.FINISHED: "●", RunStatus.FAILED: "x", RunStatus.STOPPED: "-", RunStatus.PLANNED: "·"}
UNDER_WAY = "◐"


def describe_leader(snapshot: StudySnapshot) -> str:
    """Return which arm has the best mean so far, in words; empty without scores."""
    if snapshot.leader is None:
        return ""
    arm, mean, runs = snapshot.leader
    of_runs = f"{runs} run{'' if runs == 1 else 's'}"
    if snapshot.study.status.is_end:
        return f"leader: {arm}, held-out mean {mean:.3f} of {of_runs}"
    return f"leader so far: {arm}, held-out mean {mean:.3f} of {of_runs} (no verdict yet)"


def draw_arms(runs: Sequence[RunView], planned: Sequence[tuple[str, int]] = ()) -> Table:
    """Return a table with one row for each arm: how each seed stands, and the means before and after training.

    `planned` are arms with seeds that may not have begun.
    """
    newest: dict[tuple[str, int], RunView] = {}
    for run in runs:
        newest[run.arm, run.seed] = run
    arms = list(dict.fromkeys((*(arm for arm, _ in planned), *(run.arm for run in runs))))
    seeds = sorted({*(seed for _, seed in planned), *(run.seed for run in runs)})
    waiting = set(planned)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("arm", overflow="fold", min_width=8)
    names = [f"seed {seed}" for seed in seeds] if len(seeds) <= MOST_SEEDS else [f"seeds {seeds[0]} to {seeds[-1]}"]
    for name in names:
        table.add_column(name, no_wrap=True, justify="right" if len(names) > 1 else "left")
    is_scored_twice = any(run.with_plain_agent is not None for run in runs)
    for name in ("before", "after", *(["with the plain agent"] if is_scored_twice else [])):
        table.add_column(name, no_wrap=True, justify="right")
    for arm in arms[:MOST_ARMS]:
        of_arm = [newest[arm, seed] for seed in seeds if (arm, seed) in newest]
        cells = [_cell(newest.get((arm, seed)), is_waiting=(arm, seed) in waiting) for seed in seeds]
        if len(seeds) > MOST_SEEDS:
            cells = [Text().join(_sign(newest.get((arm, seed))) for seed in seeds)]
        means = [[run.base for run in of_arm], [run.final for run in of_arm]]
        if is_scored_twice:
            means.append([run.with_plain_agent for run in of_arm])
        table.add_row(Text(arm), *cells, *(_mean(values) for values in means))
    if len(arms) > MOST_ARMS:
        table.add_row(Text(f"({len(arms) - MOST_ARMS} more arms not shown)", style="dim"))
    return table


def draw_training(training: Sequence[RunView]) -> Table:
    """Return the runs in training, one line each: step, seconds per step and last train reward."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("in training")
    for name in ("seed", "step", "s/step", "train reward"):
        table.add_column(name, no_wrap=True, justify="right")
    for run in training[:MOST_RUNS]:
        table.add_row(
            Text(run.arm if run.attempt == 1 else f"{run.arm} (attempt {run.attempt})"),
            str(run.seed),
            f"{run.step}/{run.steps or '?'}",
            "" if run.seconds is None or not run.step else f"{run.seconds / run.step:.2g}",
            "no step yet" if run.train_reward is None else f"{run.train_reward:.3f}",
        )
    if len(training) > MOST_RUNS:
        table.add_row(Text(f"({len(training) - MOST_RUNS} more runs not shown)", style="dim"))
    return table


def _cell(run: RunView | None, *, is_waiting: bool) -> Text:
    """Return how one seed stands: its score, its step, or what became of it."""
    if run is None:
        return Text("waits" if is_waiting else "–", style="dim")
    status = RunStatus(run.status)
    said = run.status
    if run.final is not None:
        said = f"{run.final:.3f}"
    elif status is RunStatus.RUNNING:
        said = f"{run.step}/{run.steps or '?'}"
    return Text(said, style=_RUN_STYLES.get(status, ""))


def _sign(run: RunView | None) -> Text:
    if run is None:
        return Text("·", style="dim")
    status = RunStatus(run.status)
    return Text(_SIGNS.get(status, UNDER_WAY), style=_RUN_STYLES.get(status, ""))


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.3f}" if known else ""
