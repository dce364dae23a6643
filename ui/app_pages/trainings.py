"""Every training that a server recorded: a table to filter, group and sort, and charts of those that are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from experiments_db import RecordedTraining
from ui import comparison, elements, formats, live, queries
from ui.comparison import MOST_AXES, ScoredItem
from ui.curves.series import Series
from ui.curves.view import show_curves
from ui.tables import listing
from ui.tables.listing import ListView
from ui.tables.training_rows import (
    HELD_OUT,
    REWARD,
    ListedTraining,
    series_of,
    settings_of,
)

FIRST_METRICS = (REWARD, HELD_OUT, "sft/loss", "sft/held_out_loss", "actor/entropy", "actor/ppo_kl")
DRAWN_AT_FIRST = 8
MOST_SPARKLINES = 100
SPARKLINE_POINTS = 40
SCORES = {"score": "Held-out score", "reward": "Reward"}
EXAMPLE = "swarm train --env reverse"
CURVE = "Curve"
COLUMNS = {
    "Training": st.column_config.TextColumn(pinned=True),
    CURVE: st.column_config.LineChartColumn(width="small", help="The rewards of training, from the first step."),
    **elements.number_columns("Reward", "Held-out score"),
}


def read_rows(view: ListView, names: Sequence[str]) -> list[ListedTraining]:
    """Return the trainings that the view keeps, in its order."""
    asked = {REWARD, HELD_OUT, *(view.names & set(names))}
    listed = queries.training_rows(elements.database(), tuple(sorted(asked)))
    rows = view.arrange(listed)
    total = formats.count(len(listed), "training")
    words = total if len(rows) == len(listed) else f"{len(rows)} of {total}"
    if len(listed) == queries.MOST_TRAININGS:
        words += f". Only the newest {len(listed)} are read."
    st.caption(words)
    return rows


def table_of(rows: Sequence[ListedTraining], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return one row per training: its state, the last values of its metrics, and the columns that were chosen."""
    sparklines = read_sparklines(rows[:MOST_SPARKLINES])
    return [
        {
            "Training": formats.printable(row.title),
            "Status": row.values["status"],
            "Step": f"{row.training.step}/{row.training.settings.get('total_steps') or '∞'}",
            CURVE: sparklines.get(row.id),
            "Reward": row.values["reward"],
            "Held-out score": row.values["score"],
            **{name: listing.cell(row.values.get(name)) for name in columns},
            "Tags": [formats.printable(tag) for tag in row.training.tags],
            "Model": formats.printable(row.training.model),
            "Begun (UTC)": formats.moment(row.training.begun_at),
            "Home": formats.printable(row.training.home),
        }
        for row in rows
    ]


def read_sparklines(rows: Sequence[ListedTraining]) -> dict[str, list[float]]:
    """Return the rewards of these trainings, as many as a small picture shows."""
    ids = tuple(row.id for row in rows)
    points = queries.curves(elements.database(), ids, (REWARD,), most=SPARKLINE_POINTS)
    return {
        str(training_id): [round(value, 4) for value in curve["value"].dropna()]
        for training_id, curve in points.groupby("run_id")
    }


def show_actions(rows: Sequence[ListedTraining], chosen: Sequence[ListedTraining]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(chosen) == 1:
            elements.link("training", "Open training", icon=":material/monitoring:", training=chosen[0].id)
        elif not chosen:
            more = f" Charts show the first {DRAWN_AT_FIRST}." if len(rows) > DRAWN_AT_FIRST else ""
            st.caption(f"Select one to open it, or several to compare them.{more}")
        listing.show_download(rows, "trainings")


def choose_scored(rows: Sequence[ListedTraining], series: Sequence[Series]) -> list[ScoredItem]:
    """Let the user choose a score, and return the trainings that have one."""
    score = st.segmented_control(
        "Score", list(SCORES), default="score", required=True, key="by", format_func=SCORES.__getitem__
    )
    return [
        ScoredItem(each.label, row.values[score], settings_of(row.training), row.values.get("seed"))
        for row, each in zip(rows, series, strict=True)
        if not formats.is_missing(row.values.get(score))
    ]


def show_parallel(rows: Sequence[ListedTraining], series: Sequence[Series]) -> None:
    scored = choose_scored(rows, series)
    settings = comparison.varied([settings_of(row.training) for row in rows])
    chosen = st.multiselect("Axes", settings, default=settings[:MOST_AXES], key="axes")
    if not chosen or len(scored) < 2:
        st.caption("Parallel coordinates need two trainings with a score, and a setting in which they differ.")
        return
    comparison.show_parallel(scored, chosen, score=st.session_state["by"])
    if len(scored) < len(rows):
        st.caption(f"{formats.count(len(rows) - len(scored), 'training')} without a score left out.")


def show_effects(rows: Sequence[ListedTraining], series: Sequence[Series]) -> None:
    comparison.show_effects(
        choose_scored(rows, series),
        explanation="Dots: trainings. The line joins the means of a value; other settings may vary along.",
    )


def show_trainings() -> None:
    with elements.store_errors():
        names = queries.training_columns(elements.database())
        view = listing.choose_view(names, example="lr>=1e-3 status=complete tag=paper")
        rows = [] if view is None else read_rows(view, names)
        if view is None or not rows:
            return
        if view.groups:
            show_groups(view, rows)
            return
        chosen = listing.choose_rows(rows, table_of(rows, view.columns), columns=COLUMNS, alt="Trainings")
        show_actions(rows, chosen)
        shown = chosen or rows[:DRAWN_AT_FIRST]
        series = series_of(shown)
        compared = chosen or rows
        configs = [(each.label, row.training.settings) for row, each in zip(shown, series, strict=True)]
        sections = {
            "Curves": partial(show_curves, series, first=FIRST_METRICS),
            "Settings": partial(comparison.show_differing, configs, same="The settings are the same."),
            "Parallel coordinates": partial(show_parallel, compared, series_of(compared)),
            "Effects of settings": partial(show_effects, compared, series_of(compared)),
        }
        elements.show_sections(sections, key="aspect")


def show_groups(view: ListView, rows: Sequence[ListedTraining]) -> None:
    """Show the groups, and the mean curve of each that is selected."""
    groups = view.group(rows)
    numbers = {"Reward": "reward", "Held-out score": "score", **{name: name for name in view.columns}}
    series = [
        Series(label, tuple(member for each in series_of(groups[label]) for member in each.members))
        for label in listing.choose_groups(groups, numbers, noun="Trainings")
    ]
    show_curves(series, first=FIRST_METRICS)


def token() -> list[RecordedTraining]:
    return queries.list_trainings(elements.database())


st.title("Trainings", anchor=False)
if queries.list_trainings(elements.database()):
    live.follow(show_trainings, token=token)
else:
    st.info("No server has recorded a training here yet. Every server does, for example:", icon=":material/info:")
    st.code(EXAMPLE, language=None)
