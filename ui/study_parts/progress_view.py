"""The progress of a running study: what each arm and seed is at, the time left, the leader so far, and the curves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import Finding, JsonObject, MetricPoint, RunStatus, RunSummary
from ui import elements, formats, queries
from ui.contents import FINAL, StudyContents, best_arm
from ui.curves.series import Series
from ui.curves.view import show_curves
from ui.tables.training_rows import REWARD, TRUE_GRADE

WAITS = "waits"
GOOD_POWER = 0.8
UNDER_WAY = (RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.EVALUATING)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One arm with one seed of the newest plan. `run` is its newest attempt; None before the first."""

    arm: str
    seed: int
    last_step: int
    run: RunSummary | None


def show_progress(contents: StudyContents) -> None:
    """Show the newest plan of the study as a grid of arms and seeds, and the curves of its runs."""
    plans = elements.store().list_plans(contents.study.id)
    if not plans:
        st.caption("The study is being planned. Nothing trains yet.")
        return
    plan = plans[-1].document
    runs = planned_runs(contents, plan)
    begun = tuple(item.run.id for item in runs if item.run is not None)
    points = elements.store().latest_points(begun, REWARD)
    show_time_left(contents, runs, points)
    show_power(plan)
    show_leader(contents)
    st.dataframe(
        grid_of(contents, runs, points),
        height=elements.table_height(len({item.arm for item in runs})),
        alt="Progress by arm and seed",
    )
    st.caption("A number alone: final score. With steps: the last training reward.")
    show_curves(series_of(runs), first=(TRUE_GRADE, REWARD))


def planned_runs(contents: StudyContents, plan: JsonObject) -> list[PlannedRun]:
    """Return one item for each arm and seed of a plan, in its order."""
    rungs: Mapping[str, int] = plan.get("rungs", {})
    ids = {arm.name: arm.id for arm in contents.experiments}
    newest: dict[tuple[str, int, int], RunSummary] = {}
    for run in sorted(contents.runs, key=lambda run: run.attempt):
        newest[run.experiment_id, run.seed, run.rung] = run
    items: list[PlannedRun] = []
    for arm in plan.get("arms", []):
        name, rung = arm["name"], rungs.get(arm["name"], 0)
        last = rung or int(arm.get("job", {}).get("total_steps") or 0)
        items += [
            PlannedRun(name, seed, last, newest.get((ids.get(name, ""), seed, rung))) for seed in plan.get("seeds", [])
        ]
    return items


def count_waiting(contents: StudyContents) -> int:
    """Return how many trainings of the newest plan, if it makes a claim, have not begun."""
    plans = elements.store().list_plans(contents.study.id)
    if not contents.is_live or not plans or plans[-1].document.get("rungs"):
        return 0
    return sum(item.run is None for item in planned_runs(contents, plans[-1].document))


def grid_of(contents: StudyContents, runs: list[PlannedRun], points: Mapping[str, MetricPoint]) -> pd.DataFrame:
    """Return one row per arm and one column per seed, each cell in words."""
    finals = {item.run_id: item.mean for item in contents.evaluations
              if (item.phase, item.split) == (FINAL, contents.search_split)}  # fmt: skip
    cells: dict[str, dict[str, str]] = {}
    for item in runs:
        run = item.run
        text = WAITS if run is None else describe_run(run, item.last_step, points.get(run.id), finals.get(run.id))
        cells.setdefault(formats.printable(item.arm), {})[f"seed {item.seed}"] = text
    return pd.DataFrame.from_dict(cells, orient="index").rename_axis("Arm")


def describe_run(run: RunSummary, last_step: int, point: MetricPoint | None, final: float | None) -> str:
    """Return where a run is, in a few characters."""
    if run.status is RunStatus.PLANNED:
        return WAITS
    if run.status is RunStatus.FINISHED:
        return formats.score(final) if final is not None else "finished"
    if run.status is RunStatus.RUNNING and point is not None:
        return f"{point.step}/{last_step or '∞'} · {formats.score(point.value)}"
    return run.status.value


def seconds_left(runs: list[PlannedRun], points: Mapping[str, MetricPoint], now: float) -> float | None:
    """Return how long the runs of the plan will take from now on; None while nothing has been timed.

    A run takes as long as the median of those that are finished, which a pause in one does not change, or as its own
    steps so far say.
    """
    took = [item.run.duration_s for item in runs if item.run is not None and item.run.status is RunStatus.FINISHED]
    timed = [seconds for seconds in took if seconds is not None]
    waiting = [item for item in runs if item.run is None or not item.run.status.is_over]
    under_way = [item for item in waiting if item.run is not None and item.run.status in UNDER_WAY]
    whole = {id(item): seconds for item in under_way if (seconds := _whole_duration(item, points, now)) is not None}
    if not timed and not whole:
        return None
    typical = median(timed or whole.values())
    rest = sum(max(0.0, whole.get(id(item), typical) - _spent(item, now)) for item in waiting)
    return rest / max(1, len(under_way))


def _spent(item: PlannedRun, now: float) -> float:
    return 0.0 if item.run is None or item.run.started_at is None else max(0.0, now - item.run.started_at)


def _whole_duration(item: PlannedRun, points: Mapping[str, MetricPoint], now: float) -> float | None:
    """Return how long a run takes in all if its other steps are as fast as those so far; None before the first."""
    point = points.get(item.run.id) if item.run is not None else None
    if point is None or point.step < 1 or not item.last_step:
        return None
    return _spent(item, now) / point.step * item.last_step


def show_time_left(contents: StudyContents, runs: list[PlannedRun], points: Mapping[str, MetricPoint]) -> None:
    over = sum(item.run is not None and item.run.status.is_over for item in runs)
    words = f"{over} of {formats.count(len(runs), 'training')} of this plan"
    left = seconds_left(runs, points, time.time())
    if left is not None and over < len(runs) and queries.work_on(elements.database(), contents.study).is_at_work:
        words += f", about {formats.duration(left)} left"
    st.progress(over / len(runs) if runs else 0.0, text=words)


def show_power(plan: JsonObject) -> None:
    size: dict[str, Any] | None = plan.get("sample_size")
    if size and size["power"] < GOOD_POWER and size.get("wanted", 0) > size["seeds"]:
        target = "a difference of the size that the study looks for is found"
        if size.get("margin") is not None:
            target = f"an arm as good as the baseline is called equal within {size['margin']:g}"
        st.warning(
            f"With {formats.count(size['seeds'], 'seed')} for each arm, {target} with probability "
            f"{size['power']:.2f}; {size['wanted']} seeds are needed for {GOOD_POWER:g}.",
            icon=":material/warning:",
        )


def show_leader(contents: StudyContents) -> None:
    """Show the best arm so far, and how the interval of its difference has changed from analysis to analysis."""
    best = best_arm(contents)
    if best is None or best.arm.is_baseline:
        return
    findings = [item for item in contents.findings if item.experiment_id == best.arm.id and item.effect is not None]
    if findings:
        told = "; before: ".join(_interval(item) for item in reversed(findings[-3:]))
        st.markdown(f"Leader {formats.name(best.arm.name)}, against the baseline: {told}")


def _interval(finding: Finding) -> str:
    seeds = formats.count(len(finding.details.get("seeds", finding.run_ids)), "seed")
    effect, low, high = (formats.change(value) for value in (finding.effect, finding.ci_low, finding.ci_high))
    return f"{effect} ({low} to {high}, {seeds})"


def series_of(runs: list[PlannedRun]) -> list[Series]:
    """Return a series for each arm that has begun; its line is the mean of its seeds."""
    members: dict[str, list[RunSummary]] = {}
    for item in runs:
        if item.run is not None:
            members.setdefault(item.arm, []).append(item.run)
    return [
        Series(formats.printable(arm), tuple(elements.member_of(run) for run in its_runs))
        for arm, its_runs in members.items()
    ]
