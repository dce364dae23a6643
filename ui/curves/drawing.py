"""Charts of curves: lines told apart by colour and dash, intervals, a crosshair, and a brush that zooms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import altair as alt
import numpy as np
import pandas as pd

from ui import formats
from ui.curves.series import numbers_of

HEIGHT = 270
LEGEND_ROW_HEIGHT = 20
LEGEND_WIDTH, LABEL_WIDTH = 440, 260
CHARACTER_WIDTH, SYMBOL_WIDTH = 7, 45
"""In pixels, to guess how many names fit beside each other."""

ZOOM = "zoom"
"""The name of the brush in the selection that a chart reports."""

DASHES = ([1, 0], [7, 4], [2, 3], [9, 3, 2, 3])
COLORS = 8
"""The theme has so many; each further eight series have another dash."""

MOST_SERIES = COLORS * len(DASHES)
MOST_NAMED = 12
"""So many series are named in a tooltip."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The things that all charts of a page share: the series in their order, the x axis and the scale."""

    order: Sequence[str]
    title: str
    domain: tuple[float, float]
    is_log: bool = False
    is_whole: bool = False


def draw(drawn: pd.DataFrame, ends: pd.DataFrame, *, title: str, frame: Frame) -> alt.LayerChart | alt.FacetChart:
    """Draw one metric.

    `drawn` is as `combine` returns it and `ends` as `early_ends` does.
    """
    if frame.is_log:
        drawn, ends = pd.DataFrame(drawn[drawn["value"] > 0]), pd.DataFrame(ends[ends["value"] > 0])
    drawn = drawn.assign(key=[f"s{frame.order.index(label)}" for label in drawn["series"]])
    base = alt.Chart(drawn).encode(
        x=alt.X("x:Q", title=frame.title, scale=alt.Scale(domain=list(frame.domain), nice=False), axis=_x_axis(frame)),
        color=_color(frame.order),
        strokeDash=_dash(frame.order),
    )
    value = alt.Y("value:Q", scale=_value_scale(drawn, frame), title=None, axis=alt.Axis(format=".4~g", tickCount=5))
    layers: list[alt.Chart] = []
    if np.isfinite(numbers_of(drawn, "low")).any():
        area = base.mark_area(opacity=0.16, clip=True, strokeWidth=0)
        low = alt.Y("low:Q", scale=_value_scale(drawn, frame), title=None)
        layers.append(area.encode(y=low, y2="high:Q", strokeDash=alt.Undefined))
    unsmoothed = numbers_of(drawn, "raw")
    if (np.isfinite(unsmoothed) & (unsmoothed != numbers_of(drawn, "value"))).any():
        raw = alt.Y("raw:Q", scale=_value_scale(drawn, frame), title=None)
        layers.append(base.mark_line(strokeWidth=1, opacity=0.3, clip=True).encode(y=raw))
    layers.append(base.mark_line(strokeWidth=2.2, clip=True).encode(y=value))
    if len(drawn) <= 3 * len(frame.order):
        # A line of one point is invisible.
        layers.append(base.mark_point(filled=True, size=36).encode(y=value, strokeDash=alt.Undefined))
    if not ends.empty:
        layers.append(_ends(ends, value, frame))
    layers += _crosshair(base, value, frame)
    brush = alt.selection_interval(name=ZOOM, encodings=["x"])
    layers[0] = layers[0].add_params(brush)
    rows = ceil(len(frame.order) / _legend_columns(frame.order)) if len(frame.order) > 1 else 0
    height = HEIGHT + LEGEND_ROW_HEIGHT * rows
    padding = {"left": 4, "right": 10, "top": 4, "bottom": 4}
    return alt.layer(*layers).properties(height=height, padding=padding, title=title)


def _crosshair(base: alt.Chart, value: alt.Y, frame: Frame) -> list[alt.Chart]:
    """Return a rule at the x value next to the pointer, which names all series there, and a dot on each line."""
    nearest = alt.selection_point(
        name="pointed", nearest=True, on="pointermove", clear="pointerout", encodings=["x"], empty=False
    )
    tips = [alt.Tooltip("x:Q", title=frame.title, format=",.6~g")]
    tips += [
        alt.Tooltip(f"s{number}:Q", title=formats.tip(label)[:60], format=".4g")
        for number, label in enumerate(frame.order[:MOST_NAMED])
    ]
    rule = (
        base.transform_pivot("key", value="value", groupby=["x"])
        .mark_rule(strokeWidth=1, strokeDash=[1, 0])
        .encode(
            color=alt.value("#8a94a6"),
            strokeDash=alt.Undefined,
            opacity=alt.when(nearest).then(alt.value(0.8)).otherwise(alt.value(0)),
            tooltip=tips,
        )
        .add_params(nearest)
    )
    dots = base.mark_point(filled=True, size=45).encode(
        y=value,
        strokeDash=alt.Undefined,
        opacity=alt.when(nearest).then(alt.value(1)).otherwise(alt.value(0)),
    )
    return [dots, rule]


def _ends(ends: pd.DataFrame, value: alt.Y, frame: Frame) -> alt.Chart:
    tips = [alt.Tooltip("series:N", title="Series"), alt.Tooltip("why:N", title="Ended early")]
    return (
        alt.Chart(ends)
        .mark_point(shape="cross", filled=True, size=110, angle=45, opacity=1)
        .encode(x="x:Q", y=value, color=_color(frame.order), tooltip=tips)
    )


def _value_scale(drawn: pd.DataFrame, frame: Frame) -> alt.Scale:
    """Return the scale of the values. An interval that is wider than all the lines is cut off, not the lines."""
    values = np.concatenate([numbers_of(drawn, "value"), numbers_of(drawn, "raw")])
    values = values[np.isfinite(values) & (values > (0 if frame.is_log else -np.inf))]
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = (low / 2, high * 2) if frame.is_log else (low - abs(low) / 10 - 1e-9, high + abs(high) / 10 + 1e-9)
    elif not frame.is_log:
        low, high = low - (high - low) / 20, high + (high - low) / 20
    return alt.Scale(type="log" if frame.is_log else "linear", domain=[low, high], nice=False)


def _x_axis(frame: Frame) -> alt.Axis:
    if frame.is_whole:
        return alt.Axis(tickMinStep=1, tickCount=7, format="~s" if frame.domain[1] >= 100_000 else "d", grid=False)
    return alt.Axis(tickCount=7, format="~s" if frame.domain[1] >= 100_000 else ".6~g", grid=False)


def _color(order: Sequence[str]) -> alt.Color:
    return alt.Color("series:N", scale=alt.Scale(domain=list(order)), legend=_legend(order))


def _dash(order: Sequence[str]) -> alt.StrokeDash:
    dashes = [list(DASHES[number // COLORS % len(DASHES)]) for number in range(len(order))]
    return alt.StrokeDash("series:N", scale=alt.Scale(domain=list(order), range=dashes), legend=_legend(order))


def _legend(order: Sequence[str]) -> alt.Legend | None:
    """Return the legend of colour and dash. Vega joins the two because they are the same."""
    if len(order) == 1:
        return None
    return alt.Legend(
        orient="bottom", title=None, labelLimit=LABEL_WIDTH, columns=_legend_columns(order), symbolOpacity=1,
        symbolType="stroke", symbolStrokeWidth=3, symbolSize=300,
    )  # fmt: skip


def _legend_columns(order: Sequence[str]) -> int:
    longest = min(LABEL_WIDTH, CHARACTER_WIDTH * max(len(label) for label in order)) + SYMBOL_WIDTH
    return max(1, min(len(order), LEGEND_WIDTH // longest))
