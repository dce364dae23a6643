"""Runs as a table: filter, sort, group, choose columns, download; open one or compare several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import RunStatus
from ui import elements, formats, live, queries
from ui.contents import BASE, FINAL, TEST
from ui.tables import listing
from ui.tables.filters import ListedItem
from ui.tables.listing import ListView

ALL = "all studies"
BASICS = {
    "experiment": "arm", "status": "status", "seed": "seed", "study_id": "study", "run_id": "run", "rung": "to_step",
    "attempt": "attempt", "duration_s": "duration", "exit_reason": "outcome", "iteration": "iteration",
    "is_baseline": "baseline", "server_url": "server", "started_at": "started", "created_at": "created",
    "finished_at": "finished",
}  # fmt: skip
# The columns of a frame of runs by the names that they have in a filter.
PHASES = (BASE, FINAL, TEST)
TIMES = ("started", "created", "finished")
FACTOR = "factor."
MOST_LOOKED_AT = 200
# So many of the newest runs say which metrics there are.


def is_score(column: str) -> bool:
    return column.partition(".")[0] in PHASES


def score_title(column: str) -> str:
    phase, _, split = column.partition(".")
    return f"{phase.capitalize()} ({split})"


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


def names_of(frame: pd.DataFrame) -> dict[str, str]:
    """Return the columns of the frame by the names that their values have."""
    columns = {name: column for column, name in BASICS.items()}
    for column in map(str, frame):
        if column.startswith(FACTOR):
            columns.setdefault(column.removeprefix(FACTOR), column)
        elif is_score(column):
            # A run has one score of a phase in most studies, so its split need not be named.
            columns.setdefault(column.partition(".")[0], column)
            columns[column] = column
    return columns


def items_of(frame: pd.DataFrame, columns: Mapping[str, str], metrics: Sequence[str]) -> list[ListedItem]:
    """Return the runs with their values by name, and the last value of each of these metrics."""
    ids = [str(run_id) for run_id in frame["run_id"]]
    points = {name: elements.store().latest_points(tuple(ids), name) for name in metrics}
    values = zip(*(frame[column].tolist() for column in columns.values()), strict=True)
    return [
        ListedItem(
            run_id,
            run_id,
            {name: None if formats.is_missing(value) else value for name, value in zip(columns, row, strict=True)}
            | {name: found[run_id].value if run_id in found else None for name, found in points.items()},
        )
        for run_id, row in zip(ids, values, strict=True)
    ]


def table_of(items: Sequence[ListedItem], scores: Sequence[str], factors: Sequence[str], more: Sequence[str]) -> Any:
    """Return one row per run: what identifies it and how it ended, its scores and factors, and the chosen columns."""
    studies = {item.values["study"] for item in items}
    return [
        {
            "Arm": formats.printable(str(item.values["arm"])),
            "Seed": item.values["seed"],
            "To step": item.values["to_step"] or None,
            "Status": [item.values["status"]],
            **{score_title(name): item.values[name] for name in scores},
            **{name: listing.cell(item.values[name]) for name in (*factors, *more) if name not in TIMES},
            **{f"{name.capitalize()} (UTC)": time_of(item, name) for name in ("started", *more) if name in TIMES},
            "Duration": item.values["duration"],
            "Outcome": listing.cell(item.values["outcome"]),
            "Run": item.id,
            "Study": item.values["study"] if len(studies) > 1 else None,
        }
        for item in items
    ]


def time_of(item: ListedItem, name: str) -> datetime | None:
    value = item.values[name]
    return None if value is None else datetime.fromtimestamp(value, UTC)


def configure(items: Sequence[ListedItem], scores: Sequence[str], others: Sequence[str]) -> dict[str, Any]:
    """Return the configurations of the columns. Numbers of `others` keep all their digits."""
    numeric = [
        name for name in others if all(isinstance(listing.cell(i.values[name]), int | float | None) for i in items)
    ]
    return {
        "Arm": st.column_config.TextColumn(pinned=True, width="medium"),
        "Status": elements.badge_column(RunStatus),
        "Duration": st.column_config.NumberColumn(format="%.0f s"),
        **{f"{name.capitalize()} (UTC)": st.column_config.DatetimeColumn(format="MM-DD HH:mm:ss") for name in TIMES},
        **elements.number_columns(*map(score_title, scores)),
        # Streamlit's own format ends after four decimals, where learning rates begin.
        **elements.number_columns(*numeric, format="plain"),
    }


def show_actions(items: Sequence[ListedItem], chosen: Sequence[ListedItem]) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        if not chosen:
            st.caption("Select rows to open a run or to compare several.")
        elif len(chosen) == 1:
            elements.link("run", "Open run", icon=":material/show_chart:", run=chosen[0].id)
        else:
            ids = ",".join(item.id for item in chosen)
            elements.link("compare", f"Compare {len(chosen)} runs", icon=":material/compare_arrows:", runs=ids)
        listing.show_download(items, "runs")


def show_table(view: ListView, frame: pd.DataFrame, columns: Mapping[str, str], metrics: Sequence[str]) -> None:
    items = view.arrange(items_of(frame, columns, [name for name in metrics if name in view.names]))
    show_counts(frame, len(items))
    scores = sorted(
        (name for name in columns if "." in name and is_score(name)), key=lambda name: PHASES.index(name.split(".")[0])
    )
    factors = [name for name, column in columns.items() if column.startswith(FACTOR)]
    if not items:
        return
    if view.groups:
        numbers = {score_title(name): name for name in scores} | {name: name for name in view.columns}
        listing.choose_groups(view.group(items), numbers, noun="Runs")
        return
    more = [name for name in view.columns if name not in factors]
    config = configure(items, scores, [*factors, *more])
    chosen = listing.choose_rows(items, table_of(items, scores, factors, more), columns=config, alt="Runs")
    show_actions(items, chosen)


def show_runs(*study_ids: str) -> None:
    with elements.store_errors():
        frame = queries.runs(elements.database(), study_ids)
        if frame.empty:
            st.caption("No run has been planned yet.")
            return
        columns = names_of(frame)
        metrics = elements.store().metric_names(tuple(str(run_id) for run_id in frame["run_id"][-MOST_LOOKED_AT:]))
        view = listing.choose_view([*columns, *metrics], example="lr>=1e-3 status=finished seed=0")
        if view is not None:
            show_table(view, frame, columns, metrics)


def show_counts(frame: pd.DataFrame, shown: int) -> None:
    short = sum(rung > 0 for rung in frame["rung"])
    total = formats.count(len(frame) - short, "run")
    if short:
        total = f"{total} and {formats.count(short, 'short run')} of exploration"
    st.caption(total if shown == len(frame) else f"{shown} of {total}")


st.title("Runs", anchor=False)
if elements.store().list_studies(limit=None):
    token = partial(elements.store().tally_runs)
    live.follow(show_runs, *choose_studies(), token=token)
else:
    elements.show_no_studies()
