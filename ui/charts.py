"""Altair charts of frames. Colours, fonts and backgrounds are the theme's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
import pandas as pd

from ui import formats

LABEL_WIDTH = 260
ROW_HEIGHT = 44
EFFECT_HEIGHT, PARALLEL_HEIGHT = 260, 380
MOST_LEVELS = 8
LOG_FACTOR = 9
"""Numbers that span more than this are drawn on a logarithmic scale."""

SCORE_FORMAT = ".3f"
SCORE_COLORS = ["#6f7ae0", "#2f9e8f", "#d9971f"]
"""From the lowest score to the highest, told apart on a light and on a dark page."""


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
        x=alt.X("ci_low:Q", scale=scale, title=formats.tip(metric), axis=axis), x2="ci_high:Q"
    )
    means = base.mark_point(shape="diamond", filled=True, size=150, opacity=1).encode(x=alt.X("mean:Q", scale=scale))
    dots = (
        alt.Chart(seeds)
        .mark_circle(size=55, opacity=0.55)
        .encode(
            x=alt.X("score:Q", scale=scale, title=formats.tip(metric), axis=axis),
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


def to_spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return a chart as Vega-Lite with its frames as named datasets.

    It is not checked against the schema of Vega-Lite, which would take longer than all else of a page.
    """
    frames: list[pd.DataFrame] = []
    spec: dict[str, Any] = _with_named_frames(chart, frames).to_dict(validate=False)
    # Streamlit's theme goes in place of Altair's.
    spec.pop("config", None)
    return spec | {"datasets": {_frame_name(number): frame for number, frame in enumerate(frames)}}


def _with_named_frames(chart: Any, frames: list[pd.DataFrame]) -> Any:
    named = chart.copy(deep=False)
    if isinstance(chart.data, pd.DataFrame):
        number = next((number for number, frame in enumerate(frames) if frame is chart.data), len(frames))
        if number == len(frames):
            frames.append(chart.data)
        named.data = alt.NamedData(name=_frame_name(number))
    if isinstance(chart, alt.LayerChart):
        named.layer = [_with_named_frames(layer, frames) for layer in chart.layer]
    return named


def _frame_name(number: int) -> str:
    return f"frame-{number}"


def only(frame: pd.DataFrame, column: str, *values: object) -> pd.DataFrame:
    """Return the rows whose `column` has one of these values."""
    return pd.DataFrame(frame[frame[column].isin(values)])


def effects(frame: pd.DataFrame, *, factor: str, order: Sequence[str]) -> Chart:
    """Draw the score by the level of one factor: a dot per run, a line through the means.

    `frame`: level, score, arm, seed, and number, the level as a number. Where all levels are numbers and there are
    more than `MOST_LEVELS`, they are drawn to scale and without a line.
    """
    factor = formats.tip(factor)
    is_scaled = len(order) > MOST_LEVELS and bool(frame["number"].notna().all())
    if is_scaled:
        levels = alt.X("number:Q", title=factor, scale=_number_scale(frame["number"].tolist()))
    else:
        levels = alt.X("level:N", sort=list(order), title=factor, axis=alt.Axis(labelAngle=0, labelLimit=140))
    scale = alt.Scale(zero=False, nice=True, padding=12)
    base = alt.Chart(frame).encode(x=levels)
    tips = [
        alt.Tooltip("arm:N", title="Arm"),
        alt.Tooltip("seed:N", title="Seed"),
        alt.Tooltip("level:N", title=factor),
        alt.Tooltip("score:Q", title="Score", format=SCORE_FORMAT),
    ]
    dots = base.mark_circle(size=55, opacity=0.5).encode(y=alt.Y("score:Q", scale=scale, title=None), tooltip=tips)
    if is_scaled:
        return _framed(alt.layer(dots), height=EFFECT_HEIGHT)
    line = base.mark_line(point=alt.OverlayMarkDef(size=90, filled=True), strokeWidth=2).encode(
        y=alt.Y("mean(score):Q", scale=scale, title=None)
    )
    return _framed(alt.layer(dots, line), height=EFFECT_HEIGHT)


def parallel(frame: pd.DataFrame, *, columns: Sequence[str], score: str) -> Chart:
    """Draw parallel coordinates: a line for each row of `frame` through its values in `columns`, coloured by `score`.

    `frame` has the column `item`, which names the row.
    """
    positions: list[dict[str, object]] = []
    ticks: list[dict[str, object]] = []
    for column in columns:
        places, marks = _positions(frame[column].tolist(), is_score=column == score)
        ticks += [{"column": column, "position": place, "text": text} for place, text in marks]
        for item, value, place, rank in zip(frame["item"], frame[column], places, frame[score], strict=True):
            if place is not None:
                positions.append(
                    {"item": item, "column": column, "position": place, "value": _text(value), "score": rank}
                )
    x = alt.X("column:N", sort=list(columns), title=None, axis=alt.Axis(labelAngle=0, labelLimit=150, grid=True))
    y = alt.Y("position:Q", axis=None, scale=alt.Scale(domain=[-0.05, 1.05]))
    lines = (
        alt.Chart(pd.DataFrame(positions))
        .mark_line(strokeWidth=1.8, opacity=0.75, point=alt.OverlayMarkDef(size=28))
        .encode(
            x=x,
            y=y,
            detail="item:N",
            color=alt.Color(
                "score:Q",
                scale=alt.Scale(range=SCORE_COLORS),
                legend=alt.Legend(title=formats.tip(score), orient="right"),
            ),
            tooltip=[
                alt.Tooltip("item:N", title="Run"),
                alt.Tooltip("column:N", title="Column"),
                alt.Tooltip("value:N", title="Value"),
                alt.Tooltip("score:Q", title=formats.tip(score), format=SCORE_FORMAT),
            ],
        )
    )
    labels = (
        alt.Chart(pd.DataFrame(ticks))
        .mark_text(align="left", dx=7, fontSize=12, fontWeight=600, color="#7b8599")
        .encode(x=x, y=y, text="text:N")
    )
    return _framed(alt.layer(lines, labels), height=PARALLEL_HEIGHT)


def _positions(values: Sequence[Any], *, is_score: bool) -> tuple[list[float | None], list[tuple[float, str]]]:
    """Return the place of each value on its axis, from 0 to 1, and the marks of the axis. A missing value has none.

    Scores are drawn to scale; the values of any other column stand at equal distances, numbers by size.
    """
    known = sorted((value for value in values if not formats.is_missing(value)), key=formats.order_of)
    if is_score:
        low, high = known[0], known[-1]
        places = [(value - low) / (high - low) if high > low else 0.5 for value in values]
        return places, [(min(places), _text(low)), (max(places), _text(high))]
    levels = list(dict.fromkeys(map(_text, known)))
    place_of = {level: number / (len(levels) - 1) if len(levels) > 1 else 0.5 for number, level in enumerate(levels)}
    marked = levels if len(levels) <= 2 * MOST_LEVELS else [levels[0], levels[-1]]
    places = [None if formats.is_missing(value) else place_of[_text(value)] for value in values]
    return places, [(place_of[level], level) for level in marked]


def _is_log(low: float, high: float) -> bool:
    return low > 0 and high / low > LOG_FACTOR


def _number_scale(numbers: Sequence[float]) -> alt.Scale:
    is_log = _is_log(min(numbers), max(numbers))
    return alt.Scale(type="log") if is_log else alt.Scale(zero=False, nice=True)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _framed(chart: Chart, *, height: int, title: str = "") -> Chart:
    return chart.properties(height=height, padding={"left": 4, "right": 8, "top": 4, "bottom": 4}, title=title)
