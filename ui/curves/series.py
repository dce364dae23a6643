"""The series of a chart: which runs each of them stands for, and the values to draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special

CONFIDENCE = 0.95
MOST_GRID_POINTS = 400
"""Of a mean over runs whose points lie at different x values."""


Numbers = NDArray[np.float64]


class Axis(StrEnum):
    STEPS = "steps"
    TIME = "time"
    TOKENS = "tokens"
    EPISODES = "episodes"


COUNTED: Mapping[Axis, str] = {Axis.TOKENS: "rollout/trained_tokens", Axis.EPISODES: "rollout/episodes"}
"""The metric whose sum over the steps is the x value."""


@dataclass(frozen=True, slots=True)
class Member:
    """A run or a training of a series. `began` is in seconds since the epoch.

    `ended_early` says why it ended before its last step; it is empty for one that goes on or is complete.
    """

    id: str
    began: float
    ended_early: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a single run, or the mean of several. `label` is unique in the chart."""

    label: str
    members: tuple[Member, ...]


def place(points: pd.DataFrame, axis: Axis, series: Sequence[Series], counts: pd.DataFrame) -> pd.DataFrame:
    """Add the columns `x` and `series` to points as `curves_frame` gives them.

    x is a step, the seconds since the run began, or the sum of a count up to the step. `counts` has the points of that
    count, from the first step on; it is not used for steps and time.
    """
    labels = {member.id: each.label for each in series for member in each.members}
    run_ids: list[str] = points["run_id"].tolist()
    placed = points.assign(series=[labels[run_id] for run_id in run_ids])
    if axis is Axis.STEPS:
        return placed.assign(x=placed["step"].astype(float))
    if axis is Axis.TIME:
        began = {member.id: member.began for each in series for member in each.members}
        elapsed = numbers_of(placed, "recorded_at") - np.array([began[run_id] for run_id in run_ids])
        return placed.assign(x=np.maximum(elapsed, 0.0))
    x = np.full(len(placed), np.nan)
    ends = _last_steps(placed)
    for run_id in dict.fromkeys(run_ids):
        counted = pd.DataFrame(counts[(counts["run_id"] == run_id) & (counts["name"] == COUNTED[axis])])
        if not counted.empty:
            rows = np.array([each == run_id for each in run_ids])
            x[rows] = _count_up_to(ends[rows], counted.sort_values(by="step"))
    return placed.assign(x=x).dropna(subset=["x"])


def _count_up_to(steps: Numbers, counted: pd.DataFrame) -> Numbers:
    """Return the sum of a count up to each of these steps. `counted` has its points by step."""
    last = _last_steps(counted)
    totals = np.cumsum(np.nan_to_num(numbers_of(counted, "value")) * numbers_of(counted, "steps"))
    # Before the first step nothing was counted.
    first = numbers_of(counted, "step")[0] - 1
    return np.interp(steps, np.insert(last, 0, first), np.insert(totals, 0, 0.0))


def _last_steps(points: pd.DataFrame) -> Numbers:
    return numbers_of(points, "step") + numbers_of(points, "steps") - 1


def numbers_of(frame: pd.DataFrame, column: str) -> Numbers:
    """Return a column as numbers, with NaN for what is missing."""
    return frame[column].to_numpy(dtype=float)


def steps_between(placed: pd.DataFrame, low: float, high: float) -> tuple[int, int]:
    """Return the first and the last step whose x lies between these two; the nearest step if there is none."""
    x, first, last = numbers_of(placed, "x"), numbers_of(placed, "step"), _last_steps(placed)
    inside = (x >= low) & (x <= high)
    if not inside.any():
        inside = np.arange(len(x)) == np.argmin(np.abs(x - low))
    return int(first[inside].min()), int(last[inside].max())


def combine(placed: pd.DataFrame, series: Sequence[Series], weight: float) -> pd.DataFrame:
    """Return what is drawn of one metric: the columns series, x, value, raw, low, high, runs.

    `value` is smoothed along x with `weight` in [0, 1), the weight of the past. A series of several runs has their mean
    and its confidence interval from `low` to `high`; a series of one run has its unsmoothed value as `raw`.
    """
    frames: list[pd.DataFrame] = []
    for each in series:
        rows = placed[placed["series"] == each.label]
        curves = [_smooth(pd.DataFrame(run).sort_values(by="x"), weight) for _, run in rows.groupby("run_id")]
        if len(each.members) == 1:
            frames += [curve.assign(low=np.nan, high=np.nan, runs=1) for curve in curves]
        elif curves:
            frames.append(_average(curves))
        if frames and curves:
            frames[-1] = frames[-1].assign(series=each.label)
    columns = ["series", "x", "value", "raw", "low", "high", "runs"]
    filled = [pd.DataFrame(frame[columns]) for frame in frames if not frame.empty]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=columns)


def _smooth(curve: pd.DataFrame, weight: float) -> pd.DataFrame:
    """Add the debiased exponential moving average, which starts at the first value. A gap in the values stays a gap."""
    raw = curve["value"]
    averaged = raw.ewm(alpha=1 - weight).mean().where(raw.notna())
    return curve.assign(raw=raw, value=averaged)


def _average(curves: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean of several curves at common x values, with the interval of the mean by Student's t."""
    grid = np.unique(np.concatenate([curve["x"].to_numpy() for curve in curves]))
    if len(grid) > MOST_GRID_POINTS:
        grid = np.linspace(grid[0], grid[-1], MOST_GRID_POINTS)
    found = [curve.dropna(subset=["value"]) for curve in curves]
    # A run says nothing of the x values before its first point and after its last.
    values = np.array([
        np.interp(grid, curve["x"], curve["value"], left=np.nan, right=np.nan)
        if len(curve) else np.full(len(grid), np.nan)
        for curve in found
    ])  # fmt: skip
    runs = np.isfinite(values).sum(axis=0)
    kept = runs > 0
    grid, values, runs = grid[kept], values[:, kept], runs[kept]
    mean = np.nanmean(values, axis=0) if len(grid) else np.array([])
    half = np.full(len(grid), np.nan)
    several = runs > 1
    if several.any():
        deviation = np.nanstd(values[:, several], axis=0, ddof=1)
        quantile = special.stdtrit(runs[several] - 1, 0.5 + CONFIDENCE / 2)
        half[several] = quantile * deviation / np.sqrt(runs[several])
    return pd.DataFrame(
        {"x": grid, "value": mean, "raw": np.nan, "low": mean - half, "high": mean + half, "runs": runs}
    )


def early_ends(drawn: pd.DataFrame, placed: pd.DataFrame, series: Sequence[Series]) -> pd.DataFrame:
    """Return where runs ended early: the columns series, x, value and why."""
    rows: list[dict[str, object]] = []
    for each in series:
        line = pd.DataFrame(drawn[drawn["series"] == each.label]).dropna(subset=["value"])
        x, values = numbers_of(line, "x"), numbers_of(line, "value")
        for member in each.members:
            own = numbers_of(pd.DataFrame(placed[placed["run_id"] == member.id]), "x")
            if member.ended_early and len(x) and len(own):
                nearest = int(np.argmin(np.abs(x - own.max())))
                rows.append(
                    {"series": each.label, "x": x[nearest], "value": values[nearest], "why": member.ended_early}
                )
    return pd.DataFrame(rows, columns=["series", "x", "value", "why"])


def time_unit(longest: float) -> tuple[str, float]:
    """Return the unit that suits a duration in seconds, and its length in seconds."""
    if not math.isfinite(longest) or longest < 300:
        return "s", 1.0
    return ("min", 60.0) if longest < 4 * 3600 else ("h", 3600.0)
