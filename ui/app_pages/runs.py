"""Runs as a table: filter, sort, choose columns, download; open one or compare several."""

from __future__ import annotations

from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import RunStatus
from ui import downloads, elements, formats, live, queries
from ui.contents import BASE, FINAL, TEST
from ui.tables.filter_input import read_filter

ALL = "all studies"
FIXED = {
    "experiment": "Arm",
    "seed": "Seed",
    "rung": "To step",
    "attempt": "Attempt",
    "status": "Status",
    "duration_s": "Duration",
    "started_at": "Started (UTC)",
    "exit_reason": "Outcome",
    "run_id": "Run",
    "study_id": "Study",
    "experiment_id": "Arm id",
    "iteration": "Iteration",
    "is_baseline": "Baseline",
    "server_url": "Server",
    "created_at": "Created (UTC)",
    "finished_at": "Finished (UTC)",
}
PHASES = (BASE, FINAL, TEST)
TIMES = ("started_at", "created_at", "finished_at")
NAMES = {
    "arm": "experiment",
    "status": "status",
    "seed": "seed",
    "study": "study_id",
    "run": "run_id",
    "to_step": "rung",
    "attempt": "attempt",
    "duration": "duration_s",
    "outcome": "exit_reason",
}
NEVER_GROUPED = ("run_id", "duration_s")
MOST_WITH_METRICS = 500
HIDDEN_AT_FIRST = ("experiment_id", "iteration", "is_baseline", "server_url", "created_at", "finished_at", "attempt")


def title_of(column: str) -> str:
    if column in FIXED:
        return FIXED[column]
    if column.startswith("factor."):
        return column.removeprefix("factor.")
    if not is_score(column):
        return column
    phase, _, split = column.partition(".")
    return f"{phase.capitalize()} ({split})"


def is_score(column: str) -> bool:
    return column.partition(".")[0] in PHASES


def choose_studies() -> tuple[str, ...]:
    """Return the ids of the study in the address, or of all studies, and write the choice to the address."""
    studies = elements.store().list_studies(limit=None)
    topics = {study.id: formats.printable(study.topic) for study in studies}
    wanted = st.query_params.get("study", ALL)
    st.session_state["runs_study"] = wanted if wanted in topics else ALL
    st.selectbox(
        "Study",
        [ALL, *topics],
        key="runs_study",
        format_func=lambda key: key if key == ALL else f"{formats.shortened(topics[key], 90)} · {key}",
        on_change=follow_choice,
    )
    chosen = st.session_state["runs_study"]
    return tuple(topics) if chosen == ALL else (chosen,)


def follow_choice() -> None:
    chosen = st.session_state["runs_study"]
    st.query_params.clear()
    st.query_params.update(elements.address(**({} if chosen == ALL else {"study": chosen})))


def filter_runs(frame: pd.DataFrame) -> pd.DataFrame | None:
    """Show the filter, and return the runs that it keeps; None if it cannot be read."""
    columns = columns_by_name(frame)
    left, right = st.columns([5, 2], vertical_alignment="bottom")
    with left:
        wanted = read_filter(columns, example="lr>=1e-3 status=finished seed=0")
    with right:
        groups = [name for name in columns if not is_score(columns[name]) and columns[name] not in NEVER_GROUPED]
        st.multiselect("Group by", groups, key="group", bind="query-params", placeholder="no groups")
    if wanted is None:
        return None
    if not wanted.conditions:
        return frame
    values = zip(*(frame[column].tolist() for column in columns.values()), strict=True)
    rows = (
        {name: None if formats.is_missing(value) else value for name, value in zip(columns, row, strict=True)}
        for row in values
    )
    return pd.DataFrame(frame[[wanted.keeps(row) for row in rows]]).reset_index(drop=True)


def columns_by_name(frame: pd.DataFrame) -> dict[str, str]:
    """Return the columns by the names that they have in a filter."""
    columns = {name: column for name, column in NAMES.items() if column in frame}
    for column in map(str, frame):
        if column.startswith("factor."):
            columns.setdefault(column.removeprefix("factor."), column)
        elif is_score(column):
            # A run has one score of a phase in most studies, so its split need not be named.
            columns.setdefault(column.partition(".")[0], column)
            columns[column] = column
    return columns


def show_groups(frame: pd.DataFrame, names: list[str]) -> None:
    """Show the runs by their values under these names: how many there are, and mean and deviation of their scores."""
    columns = columns_by_name(frame)
    chosen = [columns[name] for name in names if name in columns]
    scores = [str(name) for name in frame if is_score(str(name))]
    labels = frame[chosen].map(lambda value: formats.MISSING if formats.is_missing(value) else formats.setting(value))
    grouped = frame[scores].groupby([labels[name] for name in chosen], sort=False)
    table = pd.DataFrame({"Runs": grouped.size()})
    for score in scores:
        table[title_of(score)] = grouped[score].mean()
        table[f"{title_of(score)} ±"] = grouped[score].std()
    table = table.dropna(axis="columns", how="all").rename_axis(index=[formats.printable(name) for name in names])
    table = table.reset_index()
    elements.show_table(table, columns=elements.number_columns(*table.columns[len(names) + 1 :]), alt="Groups of runs")
    st.caption("Mean and standard deviation (±) over the runs of a group.")


def add_metrics(frame: pd.DataFrame) -> pd.DataFrame:
    """Let the user choose metrics, and add the last value of each as a column."""
    if len(frame) > MOST_WITH_METRICS:
        st.caption(f"Filter down to {MOST_WITH_METRICS} runs to add metrics as columns.")
        return frame
    ids = tuple(str(run_id) for run_id in frame["run_id"])
    names = elements.store().metric_names(ids)
    chosen = st.multiselect("Metrics", names, key="metrics", bind="query-params", placeholder="the last value of")
    values = {name: elements.store().latest_points(ids, name) for name in chosen}
    return frame.assign(
        **{
            name: [points[run_id].value if run_id in points else None for run_id in ids]
            for name, points in values.items()
        }
    )


def column_order(frame: pd.DataFrame) -> list[str]:
    """Return the columns in order: what identifies a run and how it ended first, then factors and scores."""
    scores = sorted((name for name in frame if is_score(name)), key=lambda name: PHASES.index(name.partition(".")[0]))
    factors = [name for name in frame if name.startswith("factor.")]
    head, tail = (
        ["experiment", "seed", "rung", "status"],
        ["duration_s", "started_at", "exit_reason", "run_id", "study_id"],
    )
    if not any(frame["rung"]):
        head.remove("rung")
    rest = [name for name in frame if name not in {*head, *tail, "rung", *scores, *factors}]
    if len(set(frame["study_id"])) == 1:
        tail.remove("study_id")
    return [*head, *scores, *factors, *tail, *rest]


def displayed(frame: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    table = pd.DataFrame(index=frame.index)
    for name in columns:
        values = frame[name]
        if name == "rung":
            table[name] = values.where(values > 0)
        elif name == "status":
            table[name] = [[value] for value in values]
        elif name in TIMES:
            table[name] = pd.to_datetime(values, unit="s")
        elif values.dtype == object or pd.api.types.is_string_dtype(values):
            # Factors may be numbers in one arm and words in another.
            table[name] = [
                None if formats.is_missing(value) else formats.printable(formats.setting(value)) for value in values
            ]
        else:
            table[name] = values
    return table


def numeric_factors_of(table: pd.DataFrame) -> set[str]:
    return {str(name) for name in table.select_dtypes("number") if str(name).startswith("factor.")}


def configure(columns: list[str], numeric_factors: set[str]) -> dict[str, Any]:
    config: dict[str, Any] = {name: title_of(name) for name in columns}
    options = [status.value for status in RunStatus]
    colors = [elements.RUN_COLORS[status] for status in RunStatus]
    for name in columns:
        if name == "status":
            config[name] = st.column_config.MultiselectColumn("Status", options=options, color=colors)
        elif name in TIMES:
            config[name] = st.column_config.DatetimeColumn(title_of(name), format="MM-DD HH:mm:ss")
        elif name == "duration_s":
            config[name] = st.column_config.NumberColumn("Duration", format="%.0f s")
        elif name == "experiment":
            config[name] = st.column_config.TextColumn("Arm", pinned=True, width="medium")
        elif is_score(name):
            config[name] = st.column_config.NumberColumn(title_of(name), format="%.3f")
        elif name in numeric_factors:
            # Streamlit's own format ends after four decimals, where learning rates begin.
            config[name] = st.column_config.NumberColumn(title_of(name), format="plain")
    return config


def show_actions(selected: list[str]) -> None:
    if not selected:
        st.caption("Select rows to open a run or to compare several.")
    elif len(selected) == 1:
        elements.link("run", "Open run", icon=":material/show_chart:", run=selected[0])
    else:
        label = f"Compare {len(selected)} runs"
        elements.link("compare", label, icon=":material/compare_arrows:", runs=",".join(selected))


def show_table(frame: pd.DataFrame) -> None:
    order = column_order(frame)
    filled = [name for name in order if any(not formats.is_missing(value) for value in frame[name])]
    default = [name for name in filled if name not in HIDDEN_AT_FIRST]
    actions = st.container(horizontal=True, vertical_alignment="center")
    with actions, st.popover("Columns", icon=":material/view_column:"):
        chosen = st.multiselect("Columns", order, default=default, format_func=title_of, label_visibility="collapsed")
        with_metrics = add_metrics(frame)
        metrics = [str(name) for name in with_metrics if name not in frame]
        frame = with_metrics
    columns = [*(chosen or default), *metrics]
    table = displayed(frame, columns)
    event = st.dataframe(
        table,
        hide_index=True,
        height=elements.table_height(len(frame)),
        placeholder=formats.MISSING,
        column_config=configure(columns, numeric_factors_of(table)),
        on_select="rerun",
        selection_mode="multi-row",
        key="selection",
        alt="Runs",
    )
    with actions:
        show_actions([str(frame["run_id"][row]) for row in event.selection.rows if row < len(frame)])
    with st.container(horizontal=True):
        st.download_button(
            "CSV",
            lambda: downloads.to_csv(frame),
            "runs.csv",
            "text/csv",
            icon=":material/download:",
            on_click="ignore",
        )
        st.download_button(
            "Parquet",
            lambda: downloads.to_parquet(frame),
            "runs.parquet",
            "application/vnd.apache.parquet",
            icon=":material/download:",
            on_click="ignore",
        )


def show_runs(*study_ids: str) -> None:
    with elements.store_errors():
        frame = queries.runs(elements.database(), study_ids)
        if frame.empty:
            st.caption("No run has been planned yet.")
            return
        shown = filter_runs(frame)
        if shown is None:
            return
        show_counts(frame, shown)
        if shown.empty:
            return
        if names := st.session_state["group"]:
            show_groups(shown, names)
        else:
            show_table(shown)


def show_counts(frame: pd.DataFrame, shown: pd.DataFrame) -> None:
    short = sum(rung > 0 for rung in frame["rung"])
    total = formats.count(len(frame) - short, "run")
    if short:
        total = f"{total} and {formats.count(short, 'short run')} of exploration"
    st.caption(total if len(shown) == len(frame) else f"{len(shown)} of {total}")


st.title("Runs", anchor=False)
if elements.store().list_studies(limit=None):
    token = partial(elements.store().tally_runs)
    live.follow(show_runs, *choose_studies(), token=token)
else:
    elements.show_no_studies()
