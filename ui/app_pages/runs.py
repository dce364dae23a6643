"""Runs as a table: filter, sort, group, choose columns, download; open one or compare several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import streamlit as st

from experiments_db import TRAINING_SECONDS, Experiment, RunStatus, RunSummary, StudyRuns
from ui import elements, formats, live
from ui.contents import BASE, FINAL, TEST
from ui.tables import listing
from ui.tables.filters import ListedItem
from ui.tables.listing import ListView

ALL = "all studies"
PHASES = (BASE, FINAL, TEST)
TIMES = ("started", "created", "finished")
MOST_LOOKED_AT = 200
# So many of the newest runs say which metrics there are.


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


def values_of(run: RunSummary, arm: Experiment, scores: Mapping[str, float], seconds: float | None) -> dict[str, Any]:
    """Return what a run can be filtered, sorted and grouped by. A value of its own goes before a factor of that name.

    A run has one score of a phase in most studies, so its split need not be named.
    """
    own = {
        "arm": arm.name, "status": run.status.value, "seed": run.seed, "study": run.study_id, "run": run.id,
        "to_step": run.rung, "attempt": run.attempt, "training_s": seconds, "outcome": run.exit_reason,
        "iteration": arm.iteration, "baseline": arm.is_baseline, "server": run.server_url, "started": run.started_at,
        "created": run.created_at, "finished": run.finished_at,
    }  # fmt: skip
    by_phase = {name.partition(".")[0]: scores[name] for name in sorted(scores, reverse=True)}
    return {**own, **{name: value for name, value in arm.factors.items() if name not in own}, **by_phase, **scores}


def items_of(found: StudyRuns) -> list[ListedItem]:
    """Return the runs with their values by name."""
    arms = {arm.id: arm for arm in found.experiments}
    seconds = elements.store().sum_metric([run.id for run in found.runs], TRAINING_SECONDS)
    scores: dict[str, dict[str, float]] = {}
    for item in found.means:
        scores.setdefault(item.run_id, {})[f"{item.phase}.{item.split}"] = item.mean
    return [
        ListedItem(run.id, run.id, values_of(run, arms[run.experiment_id], scores.get(run.id, {}), seconds.get(run.id)))
        for run in found.runs
    ]


def with_metrics(items: Sequence[ListedItem], metrics: Sequence[str]) -> list[ListedItem]:
    """Return the runs with the last value of each of these metrics, too."""
    points = {name: elements.store().latest_points([item.id for item in items], name) for name in metrics}
    return [
        replace(
            item, values={**item.values, **{name: of[item.id].value for name, of in points.items() if item.id in of}}
        )
        for item in items
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
            **{score_title(name): item.values.get(name) for name in scores},
            **{name: listing.cell(item.values.get(name)) for name in (*factors, *more) if name not in TIMES},
            **{f"{name.capitalize()} (UTC)": time_of(item, name) for name in ("started", *more) if name in TIMES},
            "Training time": item.values["training_s"],
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
        name for name in others if all(isinstance(listing.cell(i.values.get(name)), int | float | None) for i in items)
    ]
    return {
        "Arm": st.column_config.TextColumn(pinned=True, width="medium"),
        "Status": elements.badge_column(RunStatus),
        "Training time": st.column_config.NumberColumn(format="%.0f s", help="Of its steps, without pauses."),
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


def show_table(view: ListView, found: StudyRuns, items: Sequence[ListedItem], metrics: Sequence[str]) -> None:
    shown = view.arrange(with_metrics(items, [name for name in metrics if name in view.names]))
    show_counts(found, len(shown))
    scored = {f"{item.phase}.{item.split}" for item in found.means if item.phase in PHASES}
    scores = sorted(scored, key=lambda name: (PHASES.index(name.partition(".")[0]), name))
    factors = sorted({name for arm in found.experiments for name in arm.factors})
    if not shown:
        return
    if view.groups:
        numbers = {score_title(name): name for name in scores} | {name: name for name in view.columns}
        listing.choose_groups(view.group(shown), numbers, noun="Runs")
        return
    more = [name for name in view.columns if name not in factors]
    config = configure(shown, scores, [*factors, *more])
    chosen = listing.choose_rows(shown, table_of(shown, scores, factors, more), columns=config, alt="Runs")
    show_actions(shown, chosen)


def show_runs(*study_ids: str) -> None:
    with elements.store_errors():
        found = elements.store().list_all_runs(study_ids)
        if not found.runs:
            st.caption("No run has been planned yet.")
            return
        items = items_of(found)
        metrics = elements.store().metric_names([run.id for run in found.runs[-MOST_LOOKED_AT:]])
        names = dict.fromkeys(name for item in items for name in item.values)
        view = listing.choose_view([*names, *metrics], example="lr>=1e-3 status=finished seed=0")
        if view is not None:
            show_table(view, found, items, metrics)


def show_counts(found: StudyRuns, shown: int) -> None:
    short = sum(run.rung > 0 for run in found.runs)
    total = formats.count(len(found.runs) - short, "run")
    if short:
        total = f"{total} and {formats.count(short, 'short run')} of exploration"
    st.caption(total if shown == len(found.runs) else f"{shown} of {total}")


st.title("Runs", anchor=False)
if elements.store().list_studies(limit=None):
    token = partial(elements.store().tally_runs)
    live.follow(show_runs, *choose_studies(), token=token)
else:
    elements.show_no_studies()
