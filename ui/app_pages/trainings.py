"""Every training that a server recorded: a table to filter, group and sort, and charts of those that are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, stdev
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import RecordedTraining
from ui import comparison, downloads, elements, formats, live, queries
from ui.comparison import MOST_AXES, ScoredItem
from ui.curves.series import Series
from ui.curves.view import show_curves
from ui.tables.filter_input import read_filter
from ui.tables.training_rows import (
    HELD_OUT,
    REWARD,
    ListedTraining,
    group_rows,
    series_of,
    settings_of,
)

FIRST_METRICS = (REWARD, HELD_OUT, "actor/entropy", "actor/ppo_kl")
DRAWN_AT_FIRST = 8
MOST_SPARKLINES = 100
SPARKLINE_POINTS = 40
SCORES = {"score": "Held-out score", "reward": "Reward"}
NEWEST = "newest"
EXAMPLE = "swarm train --env reverse"
CURVE = "Curve"


def read_rows() -> list[ListedTraining] | None:
    """Show the filter, and return the rows that it keeps, in the chosen order; None if it cannot be read."""
    names = queries.training_columns(elements.database())
    left, right = st.columns([6, 1], vertical_alignment="bottom")
    with left:
        wanted = read_filter(names, example="lr>=1e-3 status=complete tag=paper")
    with right, st.popover("View", icon=":material/tune:"):
        st.multiselect("Columns", names, key="columns", bind="query-params", placeholder="settings and metrics")
        st.multiselect("Group by", names, key="group", bind="query-params", placeholder="no groups")
        st.selectbox("Sort by", [NEWEST, *names], key="sort", bind="query-params")
        st.toggle("Largest first", True, key="descending", bind="query-params")
    if wanted is None:
        return None
    asked = {REWARD, HELD_OUT, *wanted.names, *st.session_state["columns"], *st.session_state["group"]}
    asked.add(st.session_state["sort"])
    listed = queries.training_rows(elements.database(), tuple(sorted(asked & {REWARD, HELD_OUT, *names})))
    rows = [row for row in listed if wanted.keeps(row.values)]
    show_counts(len(rows), len(listed))
    return sort_rows(rows, st.session_state["sort"], is_descending=st.session_state["descending"])


def show_counts(shown: int, read: int) -> None:
    words = formats.count(shown, "training") if shown == read else f"{shown} of {formats.count(read, 'training')}"
    if read == queries.MOST_TRAININGS:
        words += f". Only the newest {read} are read."
    st.caption(words)


def sort_rows(rows: Sequence[ListedTraining], name: str, *, is_descending: bool) -> list[ListedTraining]:
    """Return the rows in the order of a value; rows without it come last."""
    if name == NEWEST:
        return list(rows)

    def rank(row: ListedTraining) -> tuple[bool, float, str]:
        value = row.values[name]
        is_number = isinstance(value, int | float)
        return not is_number, float(value) if is_number else 0.0, formats.setting(value)

    filled = [row for row in rows if not formats.is_missing(row.values.get(name))]
    empty = [row for row in rows if formats.is_missing(row.values.get(name))]
    return [*sorted(filled, key=rank, reverse=is_descending), *empty]


def table_of(rows: Sequence[ListedTraining], columns: Sequence[str]) -> pd.DataFrame:
    """Return one row per training: its state, the last values of its metrics, and the columns that were chosen."""
    sparklines = read_sparklines(rows[:MOST_SPARKLINES])
    return pd.DataFrame(
        [
            {
                "Training": formats.printable(row.title),
                "Status": row.values["status"],
                "Step": f"{row.training.step}/{row.training.settings.get('total_steps') or '∞'}",
                CURVE: sparklines.get(row.training.id),
                "Reward": row.values["reward"],
                "Held-out score": row.values["score"],
                **{name: cell(row.values.get(name)) for name in columns},
                "Tags": [formats.printable(tag) for tag in row.training.tags],
                "Model": formats.printable(row.training.model),
                "Begun (UTC)": formats.moment(row.training.begun_at),
                "Home": formats.printable(row.training.home),
            }
            for row in rows
        ]
    )


def read_sparklines(rows: Sequence[ListedTraining]) -> dict[str, list[float]]:
    """Return the rewards of these trainings, as many as a small picture shows."""
    ids = tuple(row.training.id for row in rows)
    points = queries.small_training_curves(elements.database(), ids, REWARD, SPARKLINE_POINTS)
    return {
        str(training_id): [round(value, 4) for value in curve["value"].dropna()]
        for training_id, curve in points.groupby("run_id")
    }


def cell(value: Any) -> Any:
    # A column has one type: numbers sort as numbers, all else is text.
    is_plain = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_plain or value is None else formats.printable(formats.setting(value))


def group_table(groups: Mapping[str, Sequence[ListedTraining]], columns: Sequence[str]) -> pd.DataFrame:
    """Return one row per group: how many trainings it has, and mean and standard deviation of their numbers."""
    names = [("Reward", "reward"), ("Held-out score", "score"), *((name, name) for name in columns)]
    rows: list[dict[str, Any]] = []
    for label, members in groups.items():
        found: dict[str, Any] = {"Group": label, "Trainings": len(members)}
        for title, name in names:
            values = [row.values.get(name) for row in members]
            numbers = [
                float(value) for value in values if isinstance(value, int | float) and not formats.is_missing(value)
            ]
            found[title] = fmean(numbers) if numbers else None
            found[f"{title} ±"] = stdev(numbers) if len(numbers) > 1 else None
        rows.append(found)
    return pd.DataFrame(rows).dropna(axis="columns", how="all")


def choose_rows(rows: Sequence[ListedTraining]) -> list[ListedTraining]:
    """Show the table, and return the rows that are selected, which the address names."""
    ids = [row.training.id for row in rows]
    named = set(st.query_params.get("chosen", "").split(","))
    # A table of other rows is another table. Its selection begins anew, with the rows that the address names.
    key = f"chosen trainings {hash(tuple(ids))}"

    def follow_choice() -> None:
        st.query_params["chosen"] = ",".join(ids[number] for number in st.session_state[key].selection.rows)

    st.dataframe(
        table_of(rows, st.session_state["columns"]),
        hide_index=True,
        height=elements.table_height(len(rows)),
        placeholder=formats.MISSING,
        column_config={
            "Training": st.column_config.TextColumn(pinned=True),
            CURVE: st.column_config.LineChartColumn(
                width="small", help="The rewards of training, from the first step."
            ),
            "Reward": st.column_config.NumberColumn(format="%.3f"),
            "Held-out score": st.column_config.NumberColumn(format="%.3f"),
        },
        on_select=follow_choice,
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [number for number, each in enumerate(ids) if each in named]}},
        key=key,
        alt="Trainings",
    )
    return [row for row in rows if row.training.id in named]


def show_actions(rows: Sequence[ListedTraining], chosen: Sequence[ListedTraining]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if len(chosen) == 1:
            elements.link("training", "Open training", icon=":material/monitoring:", training=chosen[0].training.id)
        elif not chosen:
            more = f" Charts show the first {DRAWN_AT_FIRST}." if len(rows) > DRAWN_AT_FIRST else ""
            st.caption(f"Select one to open it, or several to compare them.{more}")
        st.download_button(
            "CSV", lambda: downloads.to_csv(exported(rows)), "trainings.csv", "text/csv",
            icon=":material/download:", on_click="ignore", type="tertiary",
        )  # fmt: skip


def exported(rows: Sequence[ListedTraining]) -> pd.DataFrame:
    return pd.DataFrame([{"id": row.training.id, **row.values} for row in rows])


def choose_groups(groups: Mapping[str, list[ListedTraining]]) -> list[Series]:
    """Show the groups, and return a series for each that is selected, or else for each of them."""
    table = group_table(groups, st.session_state["columns"])
    event = st.dataframe(
        table, hide_index=True, height=elements.table_height(len(table)), placeholder=formats.MISSING,
        on_select="rerun", selection_mode="multi-row", key="chosen_groups", alt="Groups of trainings",
        column_config={
            name: st.column_config.NumberColumn(format="%.4g") for name in table.columns[2:]
        },
    )  # fmt: skip
    st.caption("Mean and standard deviation (±) over the trainings of a group.")
    labels = list(groups)
    selected = [labels[number] for number in event.selection.rows if number < len(labels)] or labels
    return [
        Series(label, tuple(member for each in series_of(groups[label]) for member in each.members))
        for label in selected
    ]


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
        rows = read_rows()
        if not rows:
            return
        if st.session_state["group"]:
            groups = group_rows(rows, st.session_state["group"])
            series = choose_groups(groups)
            show_curves_of(series)
            return
        chosen = choose_rows(rows)
        show_actions(rows, chosen)
        shown = chosen or rows[:DRAWN_AT_FIRST]
        series = series_of(shown)
        compared = chosen or rows
        configs = [(each.label, row.training.settings) for row, each in zip(shown, series, strict=True)]
        sections = {
            "Curves": partial(show_curves_of, series),
            "Settings": partial(comparison.show_differing, configs, same="The settings are the same."),
            "Parallel coordinates": partial(show_parallel, compared, series_of(compared)),
            "Effects of settings": partial(show_effects, compared, series_of(compared)),
        }
        elements.show_sections(sections, key="aspect")


def show_curves_of(series: Sequence[Series]) -> None:
    ids = tuple(member.id for each in series for member in each.members)
    names = elements.store().training_metric_names(ids)
    show_curves(series, names, partial(queries.training_curves, elements.database()), first=FIRST_METRICS)


def token() -> list[RecordedTraining]:
    return queries.list_trainings(elements.database())


st.title("Trainings", anchor=False)
if queries.list_trainings(elements.database()):
    live.follow(show_trainings, token=token)
else:
    st.info("No server has recorded a training here yet. Every server does, for example:", icon=":material/info:")
    st.code(EXAMPLE, language=None)
