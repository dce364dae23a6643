"""What a person sees of a study at work: a live table on a terminal, one line per event elsewhere.

Place in the flow: the CLI runs a `Follower` beside the work and shows snapshots for status and watch. All of it is read
from the database. This module knows nothing of graphs, servers or brains.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from datetime import datetime
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from experiments_db import (
    Event,
    ExperimentStatus,
    ExperimentStore,
    RunStatus,
    Severity,
    StoreError,
    Study,
    StudyStatus,
)
from researcher.evaluator import BASE, FINAL
from researcher.execution.early_stopping import REWARD
from researcher.execution.failure_reason import in_one_line
from researcher.execution.runs import TrialState, list_all_trials
from researcher.study.budget import BudgetLine, budget_lines
from researcher.study.log import plan_from_json

REFRESH_S = 1.0
PLAIN_EVERY_S = 15.0
"""How often a log gets a line on the runs under way: often enough to see life, rarely enough to read later."""

SHOWN_EVENTS = 8
SHOWN_RUNS = 30
_STYLES = {Severity.INFO: "", Severity.WARNING: "yellow", Severity.ERROR: "red"}
_STATUS_STYLES = {RunStatus.FINISHED: "green", RunStatus.FAILED: "red", RunStatus.STOPPED: "yellow"}


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as shown: step, last train reward and the evaluator's scores; None where there is none yet."""

    run_id: str
    arm: str
    seed: int
    attempt: int
    status: str
    step: int
    steps: int | None
    train_reward: float | None
    base: float | None
    final: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`done` of the `planned` trials (an arm with a seed, whatever the attempts) are over: with a score, or given up.

    `seconds_left` is what the plans so far still need, from how long runs took; None until the first has finished.
    """

    study: Study
    runs: tuple[RunView, ...]
    now: float
    done: int
    planned: int
    seconds_left: float | None
    budget: tuple[BudgetLine, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "study": asdict(self.study),
            "runs": [asdict(run) for run in self.runs],
            "runs_done": self.done,
            "runs_planned": self.planned,
            "seconds_left": self.seconds_left,
            "budget": {line.name: {"spent": line.spent, "limit": line.limit} for line in self.budget},
        }

    @property
    def progress(self) -> str:
        """For people, such as "3 of 12 runs done, about 4 min left"; empty while nothing is planned."""
        if not self.planned:
            return ""
        left = "" if self.seconds_left is None else f", about {_format_duration(self.seconds_left)} left"
        return f"{self.done} of {self.planned} runs done{left}"


def take_snapshot(store: ExperimentStore, study_id: str) -> Snapshot:
    """The study as the database has it now."""
    now = time.time()
    arms = {item.id: item.name for item in store.list_experiments(study_id)}
    scores = {(item.run_id, item.phase): item.mean for item in store.list_evaluations(study_id=study_id)}
    views: list[RunView] = []
    for run in store.list_runs(study_id=study_id):
        point = store.latest_metrics(run.id).get(REWARD)
        steps = run.job.get("total_steps")
        views.append(
            RunView(
                run_id=run.id,
                arm=arms[run.experiment_id],
                seed=run.seed,
                attempt=run.attempt,
                status=run.status.value,
                step=point.step if point else 0,
                steps=steps if isinstance(steps, int) else None,
                train_reward=point.value if point else None,
                base=scores.get((run.id, BASE)),
                final=scores.get((run.id, FINAL)),
                seconds=max(0.0, (run.finished_at or now) - run.started_at) if run.started_at else None,
            )
        )
    done, planned, left = _measure_progress(store, study_id, now)
    study = store.get_study(study_id)
    is_open = study.status in (StudyStatus.RUNNING, StudyStatus.PAUSED)
    budget = budget_lines(study.settings, store.sum_budget(study_id))
    return Snapshot(study, tuple(views), now, done, planned, left if is_open else None, budget)


def _measure_progress(store: ExperimentStore, study_id: str, now: float) -> tuple[int, int, float | None]:
    """Trials done, trials planned, and seconds left. An arm that could not be run is no longer planned."""
    experiments = {item.name: item for item in store.list_experiments(study_id)}
    plans = [plan_from_json(stored.document) for stored in store.list_plans(study_id)]
    claimed = {(trial.experiment.name, trial.seed): trial for trial in list_all_trials(store, study_id)}
    wanted = {
        (arm.name, seed)
        for plan in plans
        for arm in plan.arms
        for seed in plan.seeds
        if arm.name not in experiments or experiments[arm.name].status is not ExperimentStatus.INVALID
    } | claimed.keys()
    over = (TrialState.FINISHED, TrialState.GIVEN_UP)
    done = [key for key in wanted if key in claimed and claimed[key].state in over]
    runs = [run for trial in claimed.values() for run in trial.runs]
    ended = [run for run in runs if run.status is RunStatus.FINISHED]
    # The clock may have been put back since.
    took = [max(0.0, run.finished_at - run.created_at) for run in ended if run.finished_at]
    if not took:
        return len(done), len(wanted), None
    active = [now - run.created_at for run in runs if not run.status.is_over and run.status is not RunStatus.PLANNED]
    waiting = max(0, len(wanted) - len(done) - len(active))
    work = waiting * fmean(took) + sum(max(0.0, fmean(took) - elapsed) for elapsed in active)
    return len(done), len(wanted), work / max(1, len(active))


def render(snapshot: Snapshot, events: tuple[Event, ...] = ()) -> RenderableType:
    """A study as a table of its newest runs, with the last events below."""
    study = snapshot.study
    until = study.finished_at or snapshot.now
    title = Text(f"{study.id}  {study.status}  {until - study.created_at:.0f} s\n", style="bold")
    title.append(study.topic, style="italic")
    if snapshot.progress:
        title.append(f"\n{snapshot.progress}")
    if snapshot.budget:
        title.append(f"\nspent: {', '.join(line.in_words for line in snapshot.budget)}")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in ("arm", "seed", "status", "step", "train reward", "held-out before", "after"):
        table.add_column(column, justify="left" if column in ("arm", "status") else "right", no_wrap=column != "arm")
    hidden = len(snapshot.runs) - SHOWN_RUNS
    for run in snapshot.runs[-SHOWN_RUNS:]:
        table.add_row(
            run.arm if run.attempt == 1 else f"{run.arm} (attempt {run.attempt})",
            str(run.seed),
            Text(run.status, style=_STATUS_STYLES.get(RunStatus(run.status), "")),
            f"{run.step}/{run.steps or '?'}",
            *(_format_score(value) for value in (run.train_reward, run.base, run.final)),
        )
    lines = [Text(_format_event(event), style=_STYLES[event.severity]) for event in events]
    above = [Text(f"({hidden} earlier runs not shown)", style="dim")] if hidden > 0 else []
    return Group(table, *above, Text(), *lines)


class Follower:
    """Shows a study while a block runs: live if `console` is a terminal, else one line per new event."""

    def __init__(self, store: ExperimentStore, study_id: str, console: Console) -> None:
        self._store = store
        self._study_id = study_id
        self._console = console
        self._recent: deque[Event] = deque(maxlen=SHOWN_EVENTS)
        newest = store.list_events(study_id, newest_first=True, limit=1)
        self._last_id = newest[0].id if newest else 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            # Shown with the next round, like events.
            return
        if snapshot.progress:
            self._print(f"{_clock(time.time())}  {snapshot.progress}")
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
            # Shown with the next refresh; the work itself reports what is wrong with the database.
            return []
        if events:
            self._last_id = events[-1].id
        return events


def _format_event(event: Event) -> str:
    return f"{_clock(event.created_at)}  {in_one_line(event.message)}"


def _clock(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%H:%M:%S}"


def _format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _format_score(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
