"""Parts that several pages show, and the address bar, which names the database, study or run of a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
import streamlit as st

from experiments_db import (
    BudgetKind,
    ExperimentStore,
    RecordNotFound,
    RunStatus,
    RunSummary,
    SchemaMismatch,
    StoreError,
)
from ui import charts, formats, queries
from ui.contents import ArmScore, StudyContents, best_arm
from ui.curves.series import Member

Color = Literal["red", "orange", "yellow", "blue", "green", "violet", "gray"]

COLORS: Mapping[str, Color] = {
    # Studies and runs.
    "running": "blue", "paused": "orange", "finished": "green", "stopped": "orange", "failed": "red", "planned": "gray",
    "launching": "violet", "evaluating": "violet",
    # Servers and their trainings.
    "rolling": "blue", "draining": "blue", "training": "blue", "booting": "violet", "exporting": "violet",
    "complete": "green", "offline": "gray", "replaced": "gray",
    # Verdicts on arms and hypotheses.
    "keep": "green", "worse": "red", "no better": "orange", "equal": "green", "different": "orange",
    "inconclusive": "gray", "baseline": "blue", "disqualified": "red",
    "supported": "green", "refuted": "red", "undecided": "gray",
    # Questions to a planner, and events.
    "open": "orange", "answered": "blue", "accepted": "green", "expired": "gray", "info": "gray", "warning": "orange",
    "error": "red",
}  # fmt: skip
"""The colour of each state and verdict, wherever it is shown."""

MOST_CHOICES = 1000
"""Of more runs than this, only those of the same arms can be chosen from a list."""

MOST_RANKED, MOST_DOTS = 40, 40
"""So many arms are drawn in a ranking, and so many seeds of each."""

MOST_RANKINGS = 64
"""So many drawn rankings are kept, the ones shown last."""

INKS: Mapping[str, str] = {"light": "#555d6e", "dark": "#a3adbf"}
"""The colours of texts in charts, by theme."""

EXAMPLE = 'researcher start --topic "Which learning rate trains word reversal best, 1e-4, 1e-3 or 1e-2?"'


@contextmanager
def store_errors() -> Generator[None]:
    """Show an error of the store in one line instead of a traceback."""
    try:
        yield
    except RecordNotFound as error:
        st.warning(f"{formats.plain(error.message)}. The address may be of another database.", icon=":material/search:")
    except SchemaMismatch as error:
        st.error(formats.plain(error.message), icon=":material/database_off:")
    except StoreError as error:
        st.error(f"{formats.plain(error.message)}. Reload the page to try again.", icon=":material/database_off:")


def choose_database() -> str:
    """Return the location of the database for this browser session. Raises InvalidRecord.

    A location named in the address stays from page to page.
    """
    asked = st.query_params.get("db") or st.session_state.get("asked_database")
    location = queries.database_location(asked)
    if asked:
        st.session_state["asked_database"] = asked
        st.query_params["db"] = asked
    st.session_state["database"] = location
    return location


def database() -> str:
    return st.session_state["database"]


def store() -> ExperimentStore:
    """Return the database's store. Its answers are kept until the database changes."""
    return queries.store(database())


def show_missing_database(location: str) -> None:
    st.title("No studies yet", anchor=False)
    st.markdown(f"There is no database at {formats.name(location)}. Start a study to create it:")
    st.code(EXAMPLE, language=None)
    st.caption(
        "To look at another one, set `SWARM_RESEARCH_DB` to its path, or add `?db=PATH` to the address of this page."
    )


def address(**ids: str) -> dict[str, str]:
    """Return the query parameters of a link within the explorer, including the database."""
    asked = st.session_state.get("asked_database")
    return ids | ({"db": asked} if asked else {})


def link(page: str, label: str, *, icon: str | None = None, **ids: str) -> None:
    """Show a link to a page, named by its file, about the objects in `ids`.

    `label` is Markdown.
    """
    st.page_link(f"app_pages/{page}.py", label=label, icon=icon, query_params=address(**ids))


def link_study(contents: StudyContents) -> None:
    topic = formats.plain(formats.shortened(contents.study.topic, 120))
    link("study", topic, icon=":material/account_tree:", study=contents.study.id)


def choose_study(*, label: str = "Study") -> StudyContents | None:
    """Return the study in the address, else the one last looked at, else the newest.

    If there is none, show a note and return None.
    """
    studies = store().list_studies(limit=None)
    if not studies:
        show_no_studies()
        return None
    topics = {study.id: study.topic for study in studies}
    wanted: str = st.query_params.get("study") or st.session_state.get("study") or ""
    if wanted not in topics:
        if "study" in st.query_params:
            raise RecordNotFound(f"there is no study {wanted!r}")
        wanted = studies[0].id
    remember_study(wanted)
    if len(studies) > 1:
        st.session_state["study_choice"] = wanted
        st.selectbox(
            label,
            list(topics),
            key="study_choice",
            format_func=lambda key: f"{formats.shortened(formats.printable(topics[key]), 110)} · {key}",
            on_change=_follow_choice,
            label_visibility="collapsed",
        )
    return queries.load_study(database(), wanted)


def _follow_choice() -> None:
    st.query_params.clear()
    st.query_params.update(address(study=st.session_state["study_choice"]))


def remember_study(study_id: str) -> None:
    """Put this study into the address, and make it the one that other pages open with."""
    st.session_state["study"] = study_id
    st.query_params["study"] = study_id


def show_no_studies() -> None:
    st.info("The database holds no study yet. Start one:", icon=":material/science:")
    st.code(EXAMPLE, language=None)


def badge(word: str) -> str:
    """Return a state or a verdict as coloured Markdown."""
    return f":{COLORS.get(word.lower(), 'gray')}-badge[{formats.plain(formats.shortened(word.lower(), 60))}]"


def badge_column(words: Iterable[str], **options: Any) -> Any:
    """Return the configuration of a column of states or verdicts."""
    names = [str(word) for word in words]
    return st.column_config.MultiselectColumn(options=names, color=[COLORS[name] for name in names], **options)


def show_silence(contents: StudyContents) -> None:
    """Warn that no process works on a study that is to continue; show nothing for any other study.

    The warning for a killed process appears once its lease has expired, a minute later.
    """
    since = queries.work_on(database(), contents.study).silent_since
    if since is None:
        return
    st.warning(
        f"No process works on this study: the last sign of life was {formats.moment(since)}, "
        f"{formats.duration(time.time() - since)} ago. Go on with:",
        icon=":material/pause_circle:",
    )
    st.code(queries.resume_command(database(), contents.study.id), language=None)


def show_facts(*facts: str) -> None:
    """Show a line of small facts (Markdown), separated by dots."""
    # A caption would make the colours of badges too pale to read.
    st.markdown(f":small[{' · '.join(facts)}]")


def show_best_arm(contents: StudyContents, *, border: bool = True) -> None:
    """Show the name and mean of the best arm, and the change from the scores before training."""
    best = best_arm(contents)
    if best is None:
        st.metric("Best arm", formats.MISSING, border=border, help="No run has a final score yet.", height="stretch")
        return
    gain = None if best.base_mean is None or best.mean is None else best.mean - best.base_mean
    st.metric(
        f"Best arm {formats.name(formats.shortened(best.arm.name, 48))}",
        formats.score(best.mean),
        delta=formats.delta(gain),
        delta_description=None if gain is None else "by training",
        delta_color="inverse" if contents.document.get("direction") == "minimize" else "normal",
        border=border,
        height="stretch",
        help=describe_score(contents, best),
    )


def describe_score(contents: StudyContents, item: ArmScore) -> str:
    seeds = formats.count(len(item.seeds), "seed")
    return f"{formats.plain(contents.metric)}, {formats.plain(contents.search_split)} split, mean over {seeds}"


def show_baseline(contents: StudyContents) -> None:
    baseline = next((item for item in contents.ranking if item.arm.is_baseline), None)
    if baseline is not None:
        show_metric(
            f"Baseline {formats.name(formats.shortened(baseline.arm.name, 48))}",
            formats.score(baseline.mean),
            help=describe_score(contents, baseline),
        )


def table_height(rows: int) -> int | Literal["content"]:
    """Return a height at which short tables show all their rows and long ones scroll."""
    return "content" if rows <= 16 else 560


def show_table(
    table: pd.DataFrame | Sequence[Mapping[str, Any]],
    *,
    alt: str,
    columns: Mapping[str, Any] | None = None,
    placeholder: str = formats.MISSING,
) -> None:
    """Show a table, or rows by the titles of their columns; `columns` are configurations of some of them."""
    frame = pd.DataFrame(table)
    st.dataframe(
        frame,
        hide_index=True,
        height=table_height(len(frame)),
        placeholder=placeholder,
        column_config=columns,
        alt=alt,
    )


def number_columns(*names: str, format: str = "%.3f") -> dict[str, Any]:
    """Return the configurations of columns of numbers, by default of scores."""
    return {name: st.column_config.NumberColumn(format=format) for name in names}


def wide_column(name: str) -> dict[str, Any]:
    return {name: st.column_config.TextColumn(width="large")}


def show_sections(sections: Mapping[str, Callable[[], object]], *, key: str) -> None:
    """Show tabs, of which only the open one is computed; the address has its name as `key`."""
    for tab, show in zip(
        st.tabs(list(sections), key=key, on_change="rerun", bind="query-params"), sections.values(), strict=True
    ):
        if tab.open:
            with tab:
                show()


def show_text(text: str, *, language: str | None, line_numbers: bool = False) -> None:
    """Show a file or a log; a long one scrolls."""
    height = "content" if text.count("\n") < 30 else 560
    st.code(text, language=language, height=height, line_numbers=line_numbers, wrap_lines=language is None)


def show_metric(label: str, value: str, *, help: str | None = None, border: bool = True) -> None:
    st.metric(label, value, border=border, help=help, height="stretch")


def run_name(arm: str, run: RunSummary) -> str:
    """Return a run in words: its arm, its seed, and what else tells it from the others."""
    to = f" to step {run.rung}" if run.rung else ""
    return f"{arm} seed {run.seed}{to}" if run.attempt == 1 else f"{arm} seed {run.seed}{to} attempt {run.attempt}"


def choosable(contents: StudyContents, shown: Sequence[RunSummary]) -> Sequence[RunSummary]:
    """Return the runs to choose from beside those that are shown: all, or of a large study those of the same arms."""
    if len(contents.runs) <= MOST_CHOICES:
        return contents.runs
    arms = {run.experiment_id for run in shown}
    return [run for run in contents.runs if run.experiment_id in arms]


def worked(contents: StudyContents) -> str:
    """Return the time in which a process worked on a study, so that pauses do not count."""
    return formats.duration(contents.used.get(BudgetKind.WALL_CLOCK_S, 0.0))


def member_of(run: RunSummary) -> Member:
    """Return a run as a part of a series. One that failed or was stopped ended early."""
    ended = run.status in (RunStatus.FAILED, RunStatus.STOPPED)
    why = f"{run.status.value}: {run.exit_reason}" if run.exit_reason else run.status.value
    began = run.started_at or run.created_at
    return Member(run.id, began, formats.shortened(formats.printable(why), 120) if ended else "")


@dataclass(frozen=True, slots=True)
class RankedItem:
    """One row of a ranking: the mean of an arm or a run, its interval if there is one, and the score of each seed."""

    label: str
    mean: float
    ci_low: float | None
    ci_high: float | None
    seeds: tuple[tuple[int, float], ...]


def show_ranking(items: Sequence[RankedItem], *, metric: str, alt: str) -> None:
    """Show means and scores, best first. Of many arms the best are shown, and of many seeds a part."""
    shown = tuple(replace(item, seeds=_thinned(item.seeds)) for item in items[:MOST_RANKED])
    show_chart(_draw_ranking(shown, metric), alt=alt)
    words = ["Diamond: mean over seeds; bar: interval of the mean; dots: seeds."]
    if len(items) > len(shown):
        words.append(f"The best {len(shown)} of {len(items)}.")
    if (most := max(len(item.seeds) for item in items)) > MOST_DOTS:
        words.append(f"{MOST_DOTS} dots stand for up to {most} seeds.")
    st.caption(" ".join(words))


def _thinned(seeds: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    """Return at most `MOST_DOTS` seeds, among them those with the lowest and the highest score."""
    if len(seeds) <= MOST_DOTS:
        return seeds
    by_score = sorted(seeds, key=lambda seed: seed[1])
    return tuple(by_score[round(place * (len(seeds) - 1) / (MOST_DOTS - 1))] for place in range(MOST_DOTS))


@st.cache_data(max_entries=MOST_RANKINGS, show_spinner=False)
def _draw_ranking(items: tuple[RankedItem, ...], metric: str) -> dict[str, Any]:
    arms = [{"arm": item.label, "mean": item.mean, "ci_low": item.ci_low, "ci_high": item.ci_high} for item in items]
    dots = [{"arm": item.label, "seed": seed, "score": score} for item in items for seed, score in item.seeds]
    order = [item.label for item in items]
    return charts.to_spec(charts.ranking(pd.DataFrame(arms), pd.DataFrame(dots), metric=metric, order=order))


def choose_row(table: pd.DataFrame, ids: Sequence[str], *, param: str, **options: Any) -> str | None:
    """Show a table and return the id of the row that is selected, which the address has as `param`.

    The id in the address need not be one of `ids`, so a choice outlives another page or filter of the table. The
    options are those of `choose_rows`.
    """
    asked = st.query_params.get(param)

    def follow_choice(chosen: Sequence[str]) -> None:
        if chosen:
            st.query_params[param] = chosen[0]

    choose_rows(table, ids, [] if asked is None else [asked], follow_choice, mode="single-row", **options)
    return asked


def choose_rows(
    table: pd.DataFrame,
    ids: Sequence[str],
    named: Collection[str],
    follow: Callable[[Sequence[str]], None],
    *,
    alt: str,
    mode: Literal["single-row", "multi-row"] = "multi-row",
    column_config: Mapping[str, Any] | None = None,
    height: int | None = None,
) -> None:
    """Show a table in which the rows of the `named` ids are selected; `follow` gets the ids of another selection."""
    # A table of other rows is another table. Its selection begins anew, at the rows that the address names.
    key = f"{alt} {hash(tuple(ids))}"

    def tell() -> None:
        numbers: list[int] = st.session_state[key].selection.rows
        follow([ids[number] for number in numbers])

    st.dataframe(
        table,
        hide_index=True,
        height=height or table_height(len(table)),
        placeholder=formats.MISSING,
        column_config=column_config,
        on_select=tell,
        selection_mode=mode,
        selection_default={"selection": {"rows": [number for number, each in enumerate(ids) if each in named]}},
        key=key,
        alt=alt,
    )


def show_chart(spec: Mapping[str, Any], *, alt: str, **options: Any) -> None:
    """Show a chart, as `charts.to_spec` gives it, with texts that are dark or light enough to read."""
    ink = {"labelColor": INKS[st.context.theme.type or "light"], "titleColor": INKS[st.context.theme.type or "light"]}
    readable = {**spec, "config": {**spec.get("config", {}), "axis": ink, "legend": ink}}
    st.vega_lite_chart(readable, alt=alt, **options)
