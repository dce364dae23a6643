"""The curves of one or several series as the user asks for them: metrics, x axis, smoothing, scale and zoom.

All choices are in the address, so that a link shows the same charts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from ui import charts, elements, formats, queries
from ui.curves import drawing
from ui.curves.series import COUNTED, Axis, Series, combine, early_ends, numbers_of, place, steps_between, time_unit

FIRST_METRICS = ("critic/score/mean", "eval/mean", "sft/loss", "sft/held_out_loss", "actor/entropy", "actor/grad_norm")
"""The curves that are shown before the user chooses."""

MOST_KEPT = 64
"""So many charts are kept, the ones shown last."""

TITLES = {Axis.STEPS: "step", Axis.TOKENS: "tokens trained", Axis.EPISODES: "episodes"}


@dataclass(frozen=True, slots=True)
class _Choice:
    """The choices of the user. `zoom` is a range of x before it is expressed in a unit of time."""

    metrics: tuple[str, ...]
    axis: Axis
    weight: float
    is_log: bool
    zoom: tuple[float, float] | None


def show_curves(series: Sequence[Series], *, first: Sequence[str] = FIRST_METRICS) -> None:
    """Show the controls, and a chart for each metric that is chosen; all charts have the same x axis.

    The metrics `first` are shown before the user chooses.
    """
    names = elements.store().metric_names(_ids_of(series))
    if not names:
        st.caption("No step has been recorded yet.")
        return
    choice = _choose(names, [name for name in first if name in names] or list(names[:4]))
    if len(series) > drawing.MOST_SERIES:
        st.caption(
            f":orange[The first {drawing.MOST_SERIES} of {len(series)} are drawn.] Filter or group to see the others."
        )
        series = series[: drawing.MOST_SERIES]
    placed = _read(series, choice)
    if placed.empty:
        st.caption(_reason_for_nothing(choice))
        return
    _show_charts(series, choice, placed)


def _choose(names: Sequence[str], first: Sequence[str]) -> _Choice:
    wide, axis, narrow, last = st.columns([5, 2, 2, 1], vertical_alignment="bottom")
    with wide:
        metrics = st.multiselect("Metrics", names, default=first, key="metrics", bind="query-params")
    with axis:
        x = st.selectbox("By", [*Axis], key="x", bind="query-params", on_change=_whole, format_func=str)
    with narrow:
        weight = st.slider("Smoothing", 0.0, 0.95, 0.5, 0.05, key="smoothing", bind="query-params")
    with last:
        is_log = st.toggle("Log", key="log", bind="query-params", help="Logarithmic scale of the values.")
    return _Choice(tuple(metrics), Axis(x), weight, is_log, _zoom_in_address())


def _zoom_in_address() -> tuple[float, float] | None:
    try:
        low, high = (float(part) for part in st.query_params.get("zoom", "").split(","))
    except ValueError:
        return None
    return (low, high) if math.isfinite(low) and math.isfinite(high) and low < high else None


def _whole() -> None:
    st.query_params.pop("zoom", None)


def _zoom(key: str, unit: float) -> None:
    """Put the range that was drawn on a chart into the address."""
    chosen = st.session_state[key].get("selection", {}).get(drawing.ZOOM, {}).get("x", [])
    if len(chosen) == 2 and chosen[0] < chosen[1]:
        st.query_params["zoom"] = ",".join(f"{max(0.0, value * unit):.6g}" for value in chosen)


def _ids_of(series: Sequence[Series]) -> list[str]:
    return [member.id for each in series for member in each.members]


def _read(series: Sequence[Series], choice: _Choice) -> pd.DataFrame:
    """Return the placed points. A part that is zoomed into is read again, in finer spans."""
    read = partial(queries.curves, elements.database(), _ids_of(series))
    counted = COUNTED.get(choice.axis)
    counts = read((counted,)) if counted else pd.DataFrame()
    placed = place(read(choice.metrics), choice.axis, series, counts)
    if choice.zoom is None or placed.empty:
        return placed
    low, high = steps_between(placed, *choice.zoom)
    return place(read(choice.metrics, (low, high)), choice.axis, series, counts)


def _reason_for_nothing(choice: _Choice) -> str:
    if not choice.metrics:
        return "Choose a metric."
    if counted := COUNTED.get(choice.axis):
        return f"No step has recorded {formats.name(counted)}, so there are no {choice.axis} to draw by."
    return "No step has been recorded yet."


def _show_charts(series: Sequence[Series], choice: _Choice, placed: pd.DataFrame) -> None:
    low, high = choice.zoom or (float(numbers_of(placed, "x").min()), float(numbers_of(placed, "x").max()))
    unit_name, unit = time_unit(high) if choice.axis is Axis.TIME else ("", 1.0)
    placed = placed.assign(x=placed["x"] / unit)
    frame = drawing.Frame(
        order=[each.label for each in series],
        title=TITLES.get(choice.axis, f"time ({unit_name})"),
        domain=(low / unit, max(high, low + 1e-9) / unit),
        is_log=choice.is_log,
        is_whole=choice.axis is not Axis.TIME,
    )
    if choice.zoom is not None:
        shown = f"{frame.domain[0]:.4g} to {frame.domain[1]:.4g}"
        st.button(
            f"{frame.title}: {shown}",
            icon=":material/zoom_out:",
            on_click=_whole,
            help="Show all of it again.",
            key="whole",
        )
    with st.grid(2, min_column_width=420):
        for name in choice.metrics:
            with st.container(border=True, height="stretch"):
                _show_chart(series, replace(choice, metrics=(name,)), charts.only(placed, "name", name), frame, unit)
    _explain(series, placed)


def _show_chart(
    series: Sequence[Series], choice: _Choice, points: pd.DataFrame, frame: drawing.Frame, unit: float
) -> None:
    name = choice.metrics[0]
    spec = _draw(points, tuple(series), _smoothing_of(name, choice.weight), formats.printable(name), frame)
    if spec is None:
        st.markdown(f"**{formats.plain(name)}**")
        st.caption("There is no value to draw.")
        return
    # With a new key the chart forgets the brush that has become its zoom.
    key = f"curve {name} {choice.axis} {choice.zoom}"
    elements.show_chart(
        spec, key=key, on_select=partial(_zoom, key, unit), selection_mode=drawing.ZOOM, alt=f"{name} by {frame.title}"
    )
    if missing := sum(points["missing"].tolist()):
        st.caption(f":red[{formats.count(missing, 'step')}] without a finite value")


@st.cache_data(max_entries=MOST_KEPT, show_spinner=False)
def _draw(
    points: pd.DataFrame, series: tuple[Series, ...], weight: float, title: str, frame: drawing.Frame
) -> dict[str, Any] | None:
    """Return the chart of one metric, drawn once for all browser tabs; None if there is no value to draw."""
    drawn = combine(points, series, weight)
    if not (numbers_of(drawn, "value") > (0 if frame.is_log else -np.inf)).any():
        return None
    return charts.to_spec(drawing.draw(drawn, early_ends(drawn, points, series), title=title, frame=frame))


def _smoothing_of(name: str, weight: float) -> float:
    """Return the smoothing of a metric. Held-out scores are few means of many episodes: smoothed, they would lag."""
    return 0.0 if name.startswith("eval/") else weight


def _explain(series: Sequence[Series], placed: pd.DataFrame) -> None:
    words = ["Drag over a chart to zoom into all of them."]
    if any(len(each.members) > 1 for each in series):
        words.append("Line: mean of the runs. Band: 95 % confidence interval of the mean, where there are two or more.")
    if any(member.ended_early for each in series for member in each.members):
        words.append("Cross: ended early.")
    if (span := int(numbers_of(placed, "steps").max())) > 1:
        words.append(f"Each point is the mean of up to {span} steps.")
    st.caption(" ".join(words))
