"""Arms or runs side by side: scores, curves, differences in jobs and programs, and the effect of each factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import pandas as pd
import streamlit as st

from experiments_db import Experiment, JsonObject, Run
from ui import charts, differences, elements, formats, queries
from ui.contents import FINAL, ArmScore, SeedScore, StudyContents, rank_arms

MAX_ITEMS = 12
# Arms with different training rewards can be compared by these.
TRUE_GRADE = "batch/success_rate"


@dataclass(frozen=True, slots=True)
class ComparedItem:
    """One thing compared: an arm with all its runs that count, or a single run. `label` is unique on the page."""

    label: str
    arm: Experiment
    run_ids: tuple[str, ...]
    job: JsonObject


def ids_in_address(name: str) -> list[str]:
    return [part for part in st.query_params.get(name, "").split(",") if part]


def choose_arms(contents: StudyContents) -> list[ComparedItem]:
    """Return the arms in the address, or the best arms, and write the user's choice to the address."""
    ranked = {item.arm.id: item for item in rank_arms(contents)}
    names = unique({arm_id: formats.printable(item.arm.name) for arm_id, item in ranked.items()})
    asked = [arm_id for arm_id in ids_in_address("arms") if arm_id in ranked]
    st.session_state["arm_choice"] = (asked or list(ranked))[:MAX_ITEMS]
    st.multiselect(
        "Arms",
        list(ranked),
        key="arm_choice",
        format_func=names.__getitem__,
        max_selections=MAX_ITEMS,
        on_change=partial(follow_choice, "arm_choice", "arms"),
    )
    chosen = [ranked[arm_id] for arm_id in st.session_state["arm_choice"]]
    return [ComparedItem(names[item.arm.id], item.arm, runs_of(contents, item), item.arm.job) for item in chosen]


def runs_of(contents: StudyContents, item: ArmScore) -> tuple[str, ...]:
    """Return the runs behind the arm's mean, or all runs that have begun if there is no score yet."""
    scored = tuple(score.run_id for score in item.seeds)
    return scored or tuple(run.id for run in contents.claiming if run.experiment_id == item.arm.id)


def follow_choice(key: str, name: str) -> None:
    st.query_params[name] = ",".join(st.session_state[key])


def choose_runs(asked: Sequence[str]) -> tuple[list[StudyContents], list[ComparedItem]]:
    """Return the runs in the address and their studies, and let the user choose others. Raises RecordNotFound."""
    found = [queries.find_run(elements.database(), run_id) for run_id in dict.fromkeys(asked)][:MAX_ITEMS]
    studies = {run.study_id: queries.load_study(elements.database(), run.study_id) for run in found}
    runs = {run.id: run for contents in studies.values() for run in contents.runs}
    arms = {arm.id: arm for contents in studies.values() for arm in contents.experiments}
    labels = unique({run.id: run_label(arms[run.experiment_id], run) for run in runs.values()})
    st.session_state["run_choices"] = [run.id for run in found]
    st.multiselect(
        "Runs",
        list(runs),
        key="run_choices",
        format_func=labels.__getitem__,
        max_selections=MAX_ITEMS,
        on_change=partial(follow_choice, "run_choices", "runs"),
    )
    items = [ComparedItem(labels[run.id], arms[run.experiment_id], (run.id,), run.job) for run in found]
    return list(studies.values()), items


def run_label(arm: Experiment, run: Run) -> str:
    return elements.run_name(formats.printable(arm.name), run)


def unique(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels, with the id added to each label that occurs more than once."""
    counts = Counter(labels.values())
    return {key: label if counts[label] == 1 else f"{label} ({key})" for key, label in labels.items()}


def show_scores(studies: list[StudyContents], items: list[ComparedItem]) -> None:
    """Show the final scores: arms with their interval and seeds, single runs as they are."""
    finals = {
        item.run_id: item.mean
        for contents in studies
        for item in contents.evaluations
        if (item.phase, item.split) == (FINAL, contents.search_split)
    }
    seeds = {run.id: run.seed for contents in studies for run in contents.runs}
    intervals = {item.arm.id: item for contents in studies for item in rank_arms(contents)}
    dots = [
        {"arm": item.label, "seed": seeds[run_id], "score": finals[run_id]}
        for item in items
        for run_id in item.run_ids
        if run_id in finals
    ]
    if not dots:
        st.caption("None of these has a final score yet.")
        return
    arms = []
    for item in items:
        values = [finals[run_id] for run_id in item.run_ids if run_id in finals]
        if values:
            score = intervals[item.arm.id] if len(item.run_ids) > 1 else None
            bounds = {"ci_low": score.ci_low, "ci_high": score.ci_high} if score else {"ci_low": None, "ci_high": None}
            arms.append({"arm": item.label, "mean": fmean(values), **bounds})
    order = [item.label for item in items]
    st.altair_chart(
        charts.ranking(pd.DataFrame(arms), pd.DataFrame(dots), metric=studies[0].metric, order=order),
        alt="Final scores",
    )
    st.caption("Diamond: mean; bar: interval of the mean; dots: seeds.")


def show_curves(items: list[ComparedItem]) -> None:
    run_ids = tuple(run_id for item in items for run_id in item.run_ids)
    names = queries.metric_names(elements.database(), run_ids)
    if not names:
        st.caption("None of these has recorded a step yet.")
        return
    first = [name for name in (TRUE_GRADE, "actor/entropy") if name in names] or names[:2]
    chosen = st.multiselect("Metrics", names, default=first, key="compared", bind="query-params")
    labels = {run_id: item.label for item in items for run_id in item.run_ids}
    points = queries.metrics(elements.database(), run_ids, tuple(chosen))
    points = points.assign(series=[labels[run_id] for run_id in points["run_id"]])
    order = [item.label for item in items]
    with st.grid(2, min_column_width=420):
        for name in chosen:
            curve = charts.band_points(charts.only(points, "name", name))
            with st.container(border=True, height="stretch"):
                if curve.empty:
                    st.markdown(f"**{formats.plain(name)}**")
                    st.caption("There is no value to draw.")
                    continue
                title = formats.printable(name)
                st.altair_chart(charts.bands(curve, title=title, order=order), alt=f"{name} over steps, by series")
    if any(len(item.run_ids) > 1 for item in items):
        st.caption("Line: mean over seeds. Band: lowest to highest seed.")


def show_config(items: list[ComparedItem]) -> None:
    table = differences.differing_settings([(item.label, item.job) for item in items])
    if table.empty:
        st.caption("The jobs are the same.")
        return
    st.dataframe(table, height=elements.table_height(len(table)), alt="Settings that differ")
    st.caption("Only what differs; names and seeds of runs are left out.")


def show_code(items: list[ComparedItem]) -> None:
    if len(items) < 2:
        st.caption("Choose two to see the changes in their programs.")
        return
    programs: Mapping[str, Experiment] = {item.label: item.arm for item in items}
    left, right = st.columns(2)
    with left:
        old = st.selectbox("From", list(programs), index=0, key="old")
    with right:
        new = st.selectbox("To", list(programs), index=1, key="new")
    diff = differences.code_diff(
        programs[old].program_code,
        programs[new].program_code,
        old_name=f"{old}/program.py",
        new_name=f"{new}/program.py",
    )
    if diff:
        elements.show_text(diff, language="diff")
    else:
        st.caption("The programs are the same, or not written yet.")


def show_effects(contents: StudyContents) -> None:
    """Show the score of every arm of the study by each factor that has more than one level."""
    rows = [(item, score) for item in rank_arms(contents) for score in item.seeds]
    factors = sorted({name for item, _ in rows for name in item.arm.factors})
    varied = [name for name in factors if len({formats.setting(item.arm.factors.get(name)) for item, _ in rows}) > 1]
    if not varied:
        st.caption("No factor has scores at more than one level.")
        return
    with st.grid(2, min_column_width=420):
        for name in varied:
            with st.container(border=True, height="stretch"):
                show_effect(rows, name)
    st.caption(
        f"Dots: all scored runs of the study, by {formats.plain(contents.metric)}. The line joins the means; other "
        "factors may vary along."
    )


def show_effect(rows: list[tuple[ArmScore, SeedScore]], factor: str) -> None:
    levels = sorted((item.arm.factors.get(factor) for item, _ in rows), key=level_order)
    order = list(dict.fromkeys(level_text(level) for level in levels))
    frame = pd.DataFrame(
        [
            {
                "level": level_text(item.arm.factors.get(factor)),
                "score": score.final,
                "arm": formats.printable(item.arm.name),
                "seed": score.seed,
            }
            for item, score in rows
        ]
    )
    st.altair_chart(charts.effects(frame, factor=formats.printable(factor), order=order), alt=f"Score by {factor}")


def level_text(level: object) -> str:
    return formats.printable(formats.setting(level))


def level_order(level: object) -> tuple[bool, float, str]:
    is_number = isinstance(level, int | float)
    return not is_number, float(level) if is_number else 0.0, str(level)


def show_comparison(studies: list[StudyContents], items: list[ComparedItem]) -> None:
    sections = {
        "Scores": partial(show_scores, studies, items),
        "Curves": partial(show_curves, items),
        "Config": partial(show_config, items),
        "Code": partial(show_code, items),
        "Factor effects": partial(show_effects, studies[0]),
    }
    tabs = st.tabs(list(sections), key="aspect", on_change="rerun", bind="query-params")
    for tab, show in zip(tabs, sections.values(), strict=True):
        if tab.open:
            with tab:
                show()


st.title("Compare", anchor=False)
asked = ids_in_address("runs")
if asked:
    studies, items = choose_runs(asked)
    for contents in studies:
        elements.link_study(contents)
    show_comparison(studies, items)
elif (contents := elements.choose_study()) is not None:
    elements.link_study(contents)
    if contents.experiments:
        with st.grid(3, min_column_width=200):
            elements.show_best_arm(contents)
            elements.show_baseline(contents)
            elements.show_metric("Arms", str(len(contents.experiments)))
        show_comparison([contents], choose_arms(contents))
    else:
        st.caption("The study has no arms yet.")
