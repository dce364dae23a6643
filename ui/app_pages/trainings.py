"""Every training that a server recorded: a table, and the curves of those that are selected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import RecordedTraining
from ui import charts, elements, formats, queries

REFRESH = "3s"
# The beginning of a column's name that is a setting, not a metric.
SETTING = "job: "
REWARD, HELD_OUT = "critic/score/mean", "eval/mean"
FIRST_METRICS = (REWARD, HELD_OUT, "actor/entropy", "actor/ppo_kl")
EXAMPLE = "swarm train --env reverse"


def name_of(training: RecordedTraining) -> str:
    return f"{training.project}/{training.experiment}"


def choose_columns(trainings: list[RecordedTraining]) -> list[str]:
    """Return the settings and metrics that the user wants as columns."""
    settings = {f"{SETTING}{name}" for training in trainings for name in training.settings}
    ids = tuple(training.id for training in trainings)
    metrics = queries.training_metric_names(elements.database(), ids)
    return st.multiselect(
        "Columns", [*sorted(settings), *metrics], key="columns", bind="query-params", placeholder="settings and metrics"
    )


def table_of(trainings: list[RecordedTraining], columns: list[str]) -> pd.DataFrame:
    """Return one row per training: its state, the last values of its metrics, and the columns that were chosen."""
    ids = tuple(training.id for training in trainings)
    names = [name for name in columns if not name.startswith(SETTING)]
    metrics = queries.latest_training_metrics(elements.database(), ids, (REWARD, HELD_OUT, *names))
    return pd.DataFrame(
        [
            {
                "Training": formats.printable(name_of(training)),
                "Status": training.status.lower(),
                "Step": f"{training.step}/{training.settings.get('total_steps') or '∞'}",
                "Reward": metrics.get(training.id, {}).get(REWARD),
                "Held-out score": metrics.get(training.id, {}).get(HELD_OUT),
                **{name: _cell(training, metrics.get(training.id, {}), name) for name in columns},
                "Tags": [formats.printable(tag) for tag in training.tags],
                "Model": formats.printable(training.model),
                "Begun (UTC)": formats.moment(training.begun_at),
                "Home": formats.printable(training.home),
            }
            for training in trainings
        ]
    )


def _cell(training: RecordedTraining, metrics: Mapping[str, float | None], name: str) -> Any:
    if not name.startswith(SETTING):
        return metrics.get(name)
    value = training.settings.get(name.removeprefix(SETTING))
    # A column has one type: numbers sort as numbers, all else is text.
    return value if isinstance(value, int | float) or value is None else formats.printable(formats.setting(value))


def filter_trainings(trainings: list[RecordedTraining]) -> list[RecordedTraining]:
    """Return the trainings with the words that the user types in name, model, status, settings, tags or note."""
    text = st.text_input("Filter", placeholder="name, status, tag or setting=value", key="filter", bind="query-params")
    words = text.lower().split()
    return [training for training in trainings if all(word in _text_of(training) for word in words)]


def _text_of(training: RecordedTraining) -> str:
    settings = " ".join(f"{name}={formats.setting(value)}" for name, value in training.settings.items())
    labels = " ".join([*training.tags, training.note])
    return f"{name_of(training)} {training.model} {training.status} {settings} {labels}".lower()


def show_curves(chosen: list[RecordedTraining]) -> None:
    ids = tuple(training.id for training in chosen)
    names = queries.training_metric_names(elements.database(), ids)
    if not names:
        st.caption("No step has been recorded yet.")
        return
    first = [name for name in FIRST_METRICS if name in names] or names[:4]
    wide, narrow = st.columns([5, 2], vertical_alignment="bottom")
    with wide:
        shown = st.multiselect("Metrics", names, default=first, key="metrics", bind="query-params")
    with narrow:
        weight = st.slider("Smoothing", 0.0, 0.95, 0.5, 0.05, key="smoothing", bind="query-params")
    titles = {training.id: f"{name_of(training)} · {formats.moment(training.begun_at)}" for training in chosen}
    points = queries.training_curves(elements.database(), ids, tuple(shown))
    points = points.assign(series=[titles[run_id] for run_id in points["run_id"]])
    with st.grid(2, min_column_width=420):
        for name in shown:
            with st.container(border=True, height="stretch"):
                curve = charts.only(points, "name", name)
                chart = charts.curves(
                    curve,
                    title=formats.printable(name),
                    weight=elements.smoothing_of(name, weight),
                    order=list(titles.values()),
                )
                st.altair_chart(chart, alt=f"{name} over steps")


def show_trainings() -> None:
    with elements.store_errors():
        trainings = filter_trainings(queries.list_trainings(elements.database()))
        st.caption(formats.count(len(trainings), "training"))
        if not trainings:
            return
        event = st.dataframe(
            table_of(trainings, choose_columns(trainings)),
            hide_index=True,
            height=elements.table_height(len(trainings)),
            placeholder=formats.MISSING,
            column_config={
                "Training": st.column_config.TextColumn(pinned=True),
                "Reward": st.column_config.NumberColumn(format="%.3f"),
                "Held-out score": st.column_config.NumberColumn(format="%.3f"),
            },
            on_select="rerun",
            selection_mode="multi-row",
            key="chosen_trainings",
            alt="Trainings",
        )
        chosen = [trainings[row] for row in event.selection.rows if row < len(trainings)]
        if len(chosen) == 1:
            elements.link("training", "Open training", icon=":material/monitoring:", training=chosen[0].id)
        elif not chosen:
            st.caption("Select one to open it, or several to compare their curves. Shown are those of the newest.")
        show_curves(chosen or trainings[:1])


st.title("Trainings", anchor=False)
if queries.list_trainings(elements.database()):
    st.fragment(show_trainings, run_every=REFRESH)()
else:
    st.info("No server has recorded a training here yet. Every server does, for example:", icon=":material/info:")
    st.code(EXAMPLE, language="bash")
