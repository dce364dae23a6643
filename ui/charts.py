"""Frames to Altair charts. Colours, fonts and backgrounds are the theme's.

Place in the flow: pages shape a frame as a function here asks for it and show what comes back. This module knows
nothing of Streamlit or the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import altair as alt
import pandas as pd

LABEL_WIDTH = 260
ROW_HEIGHT = 44
CURVE_HEIGHT = 260
LEGEND_ROW_HEIGHT = 26
LEGEND_COLUMNS = 2
SCORE_FORMAT = ".3f"

Chart = alt.LayerChart | alt.FacetChart
"""What Altair says of layers."""


def ranking(arms: pd.DataFrame, seeds: pd.DataFrame, *, metric: str, order: Sequence[str]) -> Chart:
    """Draw arms from best to worst: a dot per seed, the mean, and its interval where there is one.

    `arms`: arm, mean, ci_low, ci_high. `seeds`: arm, seed, score. `order` is from the best arm down.
    """
    rows = alt.Y("arm:N", sort=list(order), title=None, axis=alt.Axis(labelLimit=LABEL_WIDTH, ticks=False))
    color = alt.Color("arm:N", sort=list(order), legend=None)
    scale, axis = alt.Scale(zero=False, nice=True, padding=12), alt.Axis(tickCount=8, format=".2f")
    tips = [alt.Tooltip(f"{name}:Q", title=title, format=SCORE_FORMAT) for name, title in _ARM_TIPS]
    base = alt.Chart(arms).encode(y=rows, color=color, tooltip=[alt.Tooltip("arm:N", title="Arm"), *tips])
    intervals = base.mark_rule(strokeWidth=3, opacity=0.45).encode(
        x=alt.X("ci_low:Q", scale=scale, title=metric, axis=axis), x2="ci_high:Q"
    )
    means = base.mark_point(shape="diamond", filled=True, size=150, opacity=1).encode(x=alt.X("mean:Q", scale=scale))
    dots = (
        alt.Chart(seeds)
        .mark_circle(size=55, opacity=0.55)
        .encode(
            x=alt.X("score:Q", scale=scale, title=metric, axis=axis),
            y=rows,
            yOffset=alt.value(ROW_HEIGHT / 2 + 9),
            color=color,
            tooltip=[
                alt.Tooltip("arm:N", title="Arm"),
                alt.Tooltip("seed:N", title="Seed"),
                alt.Tooltip("score:Q", title="Score", format=SCORE_FORMAT),
            ],
        )
    )
    return _framed(alt.layer(intervals, dots, means), height=ROW_HEIGHT * len(order) + 70)


_ARM_TIPS = (("mean", "Mean"), ("ci_low", "Interval from"), ("ci_high", "to"))


def smooth(points: pd.DataFrame, weight: float) -> pd.DataFrame:
    """Add the column `smoothed`: the exponential moving average of `value` along `step`, per `series`.

    `weight` in [0, 1) is the weight of the past. The average is debiased, so it starts at the first value. A step
    without a value has no average either.
    """
    ordered = points.sort_values(["series", "step"])
    averaged = ordered.groupby("series")["value"].transform(lambda values: values.ewm(alpha=1 - weight).mean())
    return ordered.assign(smoothed=averaged.where(ordered["value"].notna()))


def curves(points: pd.DataFrame, *, title: str, weight: float, order: Sequence[str], log: bool = False) -> Chart:
    """Draw curves over steps: raw faint, smoothed bold.

    `points`: series, step, value. `order` fixes the colour of each series.
    """
    frame = smooth(points, weight)
    if log:
        frame = frame[frame["value"] > 0]
    scale = alt.Scale(type="log") if log else alt.Scale(zero=False, nice=True)
    base = alt.Chart(frame).encode(
        x=_steps(),
        color=_series_color(order),
        tooltip=[
            alt.Tooltip("series:N", title="Series"),
            alt.Tooltip("step:Q", title="Step"),
            alt.Tooltip("value:Q", title="Value", format=".4g"),
            alt.Tooltip("smoothed:Q", title="Smoothed", format=".4g"),
        ],
    )
    smoothed = alt.Y("smoothed:Q", scale=scale, title=None, axis=_VALUE_AXIS)
    raw = alt.Y("value:Q", scale=scale, title=None, axis=_VALUE_AXIS)
    layers = [base.mark_line(strokeWidth=2.2).encode(y=smoothed)]
    if weight > 0:
        layers.insert(0, base.mark_line(strokeWidth=1, opacity=0.3).encode(y=raw))
    if len(frame) <= len(order):
        # A line of one point is invisible.
        layers.append(base.mark_point(filled=True).encode(y=smoothed))
    return _framed(alt.layer(*layers), height=_height(order), title=title)


def bands(points: pd.DataFrame, *, title: str, order: Sequence[str]) -> Chart:
    """Draw mean curves with the range over seeds.

    `points`: series, step, mean, low, high, seeds.
    """
    base = alt.Chart(points).encode(
        x=_steps(),
        color=_series_color(order),
        tooltip=[
            alt.Tooltip("series:N", title="Arm"),
            alt.Tooltip("step:Q", title="Step"),
            alt.Tooltip("mean:Q", title="Mean", format=".4g"),
            alt.Tooltip("low:Q", title="Lowest seed", format=".4g"),
            alt.Tooltip("high:Q", title="Highest seed", format=".4g"),
            alt.Tooltip("seeds:Q", title="Seeds"),
        ],
    )
    scale = alt.Scale(zero=False, nice=True)
    area = base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", scale=scale, title=None, axis=_VALUE_AXIS), y2="high:Q")
    line = base.mark_line(strokeWidth=2.2).encode(y=alt.Y("mean:Q", scale=scale, title=None, axis=_VALUE_AXIS))
    return _framed(alt.layer(area, line), height=_height(order), title=title)


def band_points(points: pd.DataFrame) -> pd.DataFrame:
    """Return the mean and range over runs at each step.

    The columns series, run_id, step, value become series, step, mean, low, high, seeds.
    """
    grouped = points.dropna(subset=["value"]).groupby(["series", "step"], as_index=False)["value"]
    ranges = grouped.agg(["mean", "min", "max", "count"])
    return pd.DataFrame(ranges).rename(columns={"min": "low", "max": "high", "count": "seeds"})


def only(frame: pd.DataFrame, column: str, *values: object) -> pd.DataFrame:
    """Return the rows whose `column` has one of these values."""
    return pd.DataFrame(frame[frame[column].isin(values)])


def effects(frame: pd.DataFrame, *, factor: str, order: Sequence[str]) -> Chart:
    """Draw the score by the level of one factor: a dot per run, a line through the means.

    `frame`: level, score, arm, seed.
    """
    levels = alt.X("level:N", sort=list(order), title=factor, axis=alt.Axis(labelAngle=0, labelLimit=140))
    scale = alt.Scale(zero=False, nice=True, padding=12)
    dots = (
        alt.Chart(frame)
        .mark_circle(size=55, opacity=0.5)
        .encode(
            x=levels,
            y=alt.Y("score:Q", scale=scale, title=None),
            tooltip=[
                alt.Tooltip("arm:N", title="Arm"),
                alt.Tooltip("seed:N", title="Seed"),
                alt.Tooltip("score:Q", title="Score", format=SCORE_FORMAT),
            ],
        )
    )
    line = (
        alt.Chart(frame)
        .mark_line(point=alt.OverlayMarkDef(size=90, filled=True), strokeWidth=2)
        .encode(x=levels, y=alt.Y("mean(score):Q", scale=scale, title=None))
    )
    return _framed(alt.layer(dots, line), height=CURVE_HEIGHT)


def _steps() -> alt.X:
    return alt.X("step:Q", title="step", scale=alt.Scale(zero=False, nice=False), axis=_STEP_AXIS)


_VALUE_AXIS = alt.Axis(format=".4~g", tickCount=5)
_STEP_AXIS = alt.Axis(tickMinStep=1, tickCount=8, format="d", grid=False)


def _series_color(order: Sequence[str]) -> alt.Color:
    legend = alt.Legend(
        orient="bottom",
        title=None,
        labelLimit=LABEL_WIDTH,
        columns=LEGEND_COLUMNS,
        # Without these the legend is as faint as the band.
        symbolOpacity=1,
        symbolType="stroke",
        symbolStrokeWidth=3,
    )
    return alt.Color("series:N", scale=alt.Scale(domain=list(order)), legend=legend if len(order) > 1 else None)


def _height(order: Sequence[str]) -> int:
    """Return the height of a chart, with extra height for its legend.

    The legend takes its rows from the chart's height.
    """
    return CURVE_HEIGHT + (LEGEND_ROW_HEIGHT * ceil(len(order) / LEGEND_COLUMNS) if len(order) > 1 else 0)


def _framed(chart: Chart, *, height: int, title: str = "") -> Chart:
    return chart.properties(height=height, padding={"left": 4, "right": 8, "top": 4, "bottom": 4}, title=title)
