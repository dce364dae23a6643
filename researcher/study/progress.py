"""The progress of a study at work, as a person sees it: a live table on a terminal, else one line per event.

Place in the flow: the CLI runs a `Follower` beside the work, and shows snapshots for status and watch. All of it is
read from the database. This module knows nothing of graphs, servers or planners.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from datetime import datetime
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from experiments_db import Event, ExperimentStore, RunStatus, Severity, StoreError, StudyStatus, StudyWork
from researcher.record.failure_reason import in_one_line
from researcher.study.overview import SnapshotReader, StudySnapshot, describe_silence, describe_wait, format_duration
from researcher.study.requests import work_of
from researcher.study.runs_drawn import describe_leader, draw_arms, draw_curves

REFRESH_S = 1.0
PLAIN_EVERY_S = 15.0
"""Seconds between two lines about the runs in progress, in output that is not a terminal."""

SILENT_LOOKS = 3
SHOWN_EVENTS = 8
_STYLES = {Severity.INFO: "", Severity.WARNING: "yellow", Severity.ERROR: "red"}
_STUDY_STYLES = {StudyStatus.FAILED: "red", StudyStatus.PAUSED: "yellow", StudyStatus.STOPPED: "yellow"}


def render(snapshot: StudySnapshot, events: tuple[Event, ...] = ()) -> RenderableType:
    """Return a study: its arms by seeds, the curves of the runs in training, the leader, and the last events."""
    study = snapshot.study
    until = study.finished_at or snapshot.now
    head = Text(f"{study.id}  {study.status}  {format_duration(until - study.created_at)}\n", style="bold")
    head.append(study.topic, style="italic")
    if study.status_reason:
        head.append(f"\n{in_one_line(study.status_reason)}", style=_STUDY_STYLES.get(study.status, ""))
    if silence := describe_silence(snapshot.work, snapshot.now):
        head.append(f"\n{silence}", style="red")
    if wait := describe_wait(snapshot.question):
        head.append(f"\nthe study {wait}", style="yellow")
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
        parts += [Text(), draw_curves(training)]
    parts += [Text(), *(Text(_format_event(event), style=_STYLES[event.severity]) for event in events)]
    return Group(*parts)


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
        self._reader = SnapshotReader(store, study_id)
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
            snapshot = self._reader.read()
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
            live.update(render(self._reader.read(), tuple(self._recent)), refresh=True)
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
