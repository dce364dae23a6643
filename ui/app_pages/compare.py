"""Arms or runs side by side: scores, curves, differences in jobs and programs, and the effect of each factor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import streamlit as st

from experiments_db import Experiment, JsonObject, RunSummary
from ui import comparison, differences, elements, formats, queries
from ui.comparison import ScoredItem
from ui.contents import FINAL, ArmScore, StudyContents
from ui.curves import view
from ui.curves.series import Series
from ui.tables.training_rows import HELD_OUT, TRUE_GRADE

ARMS_AT_FIRST = 12
# So many runs of an arm have a part in its curve.
MOST_MEMBERS = 30
SCORE = "score"


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
    ranked = {item.arm.id: item for item in contents.ranking}
    names = unique({arm_id: formats.printable(item.arm.name) for arm_id, item in ranked.items()})
    asked = [arm_id for arm_id in ids_in_address("arms") if arm_id in ranked]
    st.session_state["arm_choice"] = asked or list(ranked)[:ARMS_AT_FIRST]
    st.multiselect(
        "Arms",
        list(ranked),
        key="arm_choice",
        format_func=names.__getitem__,
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
    found = [elements.store().get_run(run_id) for run_id in dict.fromkeys(asked)]
    studies = {run.study_id: queries.load_study(elements.database(), run.study_id) for run in found}
    runs = {run.id: run for contents in studies.values() for run in elements.choosable(contents, found)}
    arms = {arm.id: arm for contents in studies.values() for arm in contents.experiments}
    labels = unique({run.id: run_label(arms[run.experiment_id], run) for run in runs.values()})
    st.session_state["run_choices"] = [run.id for run in found]
    st.multiselect(
        "Runs",
        list(runs),
        key="run_choices",
        format_func=labels.__getitem__,
        on_change=partial(follow_choice, "run_choices", "runs"),
    )
    items = [ComparedItem(labels[run.id], arms[run.experiment_id], (run.id,), run.job) for run in found]
    return list(studies.values()), items


def run_label(arm: Experiment, run: RunSummary) -> str:
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
    intervals = {item.arm.id: item for contents in studies for item in contents.ranking}
    rows: list[elements.RankedItem] = []
    for item in items:
        dots = tuple((seeds[run_id], finals[run_id]) for run_id in item.run_ids if run_id in finals)
        if dots:
            score = intervals[item.arm.id] if len(item.run_ids) > 1 else None
            low, high = (score.ci_low, score.ci_high) if score else (None, None)
            rows.append(elements.RankedItem(item.label, fmean(score for _, score in dots), low, high, dots))
    if not rows:
        st.caption("None of these has a final score yet.")
        return
    elements.show_ranking(rows, metric=studies[0].metric, alt="Final scores")


def show_curves(studies: list[StudyContents], items: list[ComparedItem]) -> None:
    runs = {run.id: run for contents in studies for run in contents.runs}
    series = [
        Series(item.label, tuple(elements.member_of(runs[run_id]) for run_id in item.run_ids[:MOST_MEMBERS]))
        for item in items
        if item.run_ids
    ]
    view.show_curves(series, first=(TRUE_GRADE, HELD_OUT, "actor/entropy"))
    if any(len(item.run_ids) > MOST_MEMBERS for item in items):
        st.caption(f"The curve of an arm is the mean of its first {MOST_MEMBERS} runs.")


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


def scored_runs(contents: StudyContents) -> list[ScoredItem]:
    """Return every scored run of the study, with the factors of its arm."""
    return [
        ScoredItem(f"{item.arm.name} seed {score.seed}", score.final, item.arm.factors, score.seed)
        for item in contents.ranking
        for score in item.seeds
    ]


def show_effects(contents: StudyContents) -> None:
    said = f"Dots: all scored runs of the study, by {formats.plain(contents.metric)}. The line joins the means; other "
    comparison.show_effects(scored_runs(contents), explanation=f"{said}factors may vary along.")


def show_parallel(contents: StudyContents) -> None:
    scored = scored_runs(contents)
    factors = comparison.varied([item.settings for item in scored])
    if not factors:
        st.caption("No factor has scores at more than one level.")
        return
    comparison.show_parallel(scored, factors, score=SCORE)
    st.caption(f"Lines: all scored runs of the study, coloured by {formats.plain(contents.metric)}.")


def show_comparison(studies: list[StudyContents], items: list[ComparedItem]) -> None:
    sections = {
        "Scores": partial(show_scores, studies, items),
        "Curves": partial(show_curves, studies, items),
        "Config": partial(
            comparison.show_differing, [(item.label, item.job) for item in items], same="The jobs are the same."
        ),
        "Code": partial(show_code, items),
        "Factor effects": partial(show_effects, studies[0]),
        "Parallel coordinates": partial(show_parallel, studies[0]),
    }
    elements.show_sections(sections, key="aspect")


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
