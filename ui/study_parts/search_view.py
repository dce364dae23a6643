"""The search of an exploring study: the tree of experiments, and one arm of it in detail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd
import streamlit as st

from experiments_db import ProgramTrial, SearchArm
from ui import charts, comparison, elements, formats
from ui.contents import StudyContents
from ui.study_parts import tree_chart

CHOSEN, TREE = "search_arm", "search_tree"


def show_search(contents: StudyContents) -> None:
    """Show the tree, the table of what was tried, and the arm that was chosen."""
    arms = contents.search_arms
    explored = [arm for arm in arms if arm.is_explored]
    if not explored:
        st.caption("Nothing is explored yet.")
        return
    cost = sum(arm.cost for arm in arms)
    st.caption(
        f"{formats.count(len(explored), 'arm')} explored with {formats.count(len(contents.short), 'short run')}, "
        f"{cost:.3g} full runs. An exploring score is that of one seed; no claim rests on it."
    )
    _show_tree(contents)
    _show_tried(explored)
    names = [arm.name for arm in arms]
    if st.session_state.get(CHOSEN) not in names:
        st.session_state[CHOSEN] = contents.confirmed or names[-1]
    chosen = st.selectbox("Arm", names, key=CHOSEN, format_func=formats.printable)
    _show_arm(contents, next(arm for arm in arms if arm.name == chosen))


def _show_tree(contents: StudyContents) -> None:
    arms = contents.search_arms
    nodes = pd.DataFrame([_node(contents, arm) for arm in arms])
    places = {arm.name: arm for arm in arms}
    edges = pd.DataFrame(
        [
            {
                "x": places[parent].depth, "y": places[parent].row, "x2": arm.depth, "y2": arm.row, "kind": index,
                "operator": "" if index or arm.experiment.operator is None else arm.experiment.operator.value,
            }
            for arm in arms
            for index, parent in enumerate(arm.parents)
        ],
        columns=["x", "y", "x2", "y2", "kind", "operator"],
    )  # fmt: skip
    is_minimized = contents.document.get("direction") == "minimize"
    elements.show_chart(
        charts.to_spec(tree_chart.draw_tree(nodes, edges, is_minimized=is_minimized)),
        key=TREE,
        on_select=_choose_clicked,
        selection_mode=tree_chart.CLICKED,
        alt="The tree of experiments",
    )
    st.caption(
        "Each arm stands to the right of its parents; the word below the line is how it was derived. Cross: out of "
        "the search. Hollow: not explored. Square: the arm that was confirmed. Click an arm to see its program."
    )


def _node(contents: StudyContents, arm: SearchArm) -> dict[str, Any]:
    last = arm.last
    state = "out" if arm.failure else "confirmed" if arm.name == contents.confirmed else "in"
    return {
        "arm": formats.printable(arm.name),
        "id": arm.name,
        "x": arm.depth,
        "y": arm.row,
        "score": None if last is None else last.score,
        "said": formats.score(None if last is None else last.score),
        "scored": last is not None,
        "reached": formats.MISSING if last is None else f"{100 * last.share:.0f} % of its training",
        "state": state,
        "operator": arm.experiment.operator.value if arm.experiment.operator else formats.MISSING,
        "purpose": formats.printable(arm.experiment.purpose),
        "out": f"{arm.failure.value}: {formats.printable(arm.reason)}" if arm.failure else formats.MISSING,
        "plan": arm.experiment.iteration + 1,
    }


def _choose_clicked() -> None:
    """Show the arm that was clicked."""
    event: Mapping[str, Any] = st.session_state.get(TREE) or {}
    points = event.get("selection", {}).get(tree_chart.CLICKED) or []
    if points and points[0].get("id"):
        st.session_state[CHOSEN] = points[0]["id"]


def _show_tried(explored: list[SearchArm]) -> None:
    rows = [
        {
            "Arm": formats.printable(arm.name),
            "From": formats.printable(", ".join(arm.parents)) or formats.MISSING,
            "How": arm.experiment.operator.value if arm.experiment.operator else formats.MISSING,
            "What for": formats.printable(arm.experiment.purpose),
            "Plan": arm.experiment.iteration + 1,
            "Reached": None if arm.last is None else 100 * arm.last.share,
            "Score": None if arm.last is None else arm.last.score,
            "± its tasks": None if arm.last is None else arm.last.stderr,
            "Full runs": arm.cost,
            "Seconds": arm.seconds,
            "Out because": arm.failure.value if arm.failure else formats.MISSING,
        }
        for arm in explored
    ]
    columns = {
        **elements.number_columns("Score", "± its tasks"),
        **elements.number_columns("Reached", format="%.0f %%"),
        **elements.number_columns("Full runs", format="%.2f"),
        **elements.number_columns("Seconds", format="%.0f"),
    }
    elements.show_table(rows, columns=columns, alt="The arms that were explored")


def _show_arm(contents: StudyContents, arm: SearchArm) -> None:
    experiment = arm.experiment
    with st.container(border=True):
        st.markdown(f"**{formats.name(arm.name)}** {formats.plain(experiment.purpose)}")
        if arm.failure is not None:
            st.markdown(f":red-badge[{arm.failure.value}] {formats.plain(arm.reason)}")
        if arm.statement:
            counted = "not measured" if arm.passed is None else formats.plain(arm.passed.in_words)
            st.markdown(f"Must be true of it: {formats.plain(arm.statement)} Held-out attempts: {counted}.")
        for item in arm.runs:
            label = f"to step {item.run.rung}: {formats.score(item.score)} ({item.run.status.value})"
            elements.link("run", label, icon=":material/show_chart:", run=item.run.id)
        parent = contents.arms_by_id.get(experiment.parent_id or "")
        tabs = st.tabs(["Change", "Program", "Requests", "Settings", "Trials"])
        with tabs[0]:
            comparison.show_change(experiment, parent)
        with tabs[1]:
            elements.show_text(formats.printable(experiment.program_code), language="python", line_numbers=True)
        with tabs[2]:
            _show_requests(arm)
        with tabs[3]:
            st.json(dict(experiment.job), expanded=True)
        with tabs[4]:
            _show_trials(contents, arm)


def _show_requests(arm: SearchArm) -> None:
    """Show a request of the arm's agent beside that of the plain agent."""
    if arm.requests is None:
        st.caption("No agent of its own has played a score of this arm.")
        return
    st.markdown(
        f"{arm.requests['unchanged']} of {arm.requests['requests']} requests have the words of their task unchanged."
    )
    for side, name, title in zip(st.columns(2), ("plain", "own"), ("The plain agent", "This agent"), strict=True):
        with side:
            st.caption(f"{title}, task {formats.plain(str(arm.requests['task']))}")
            elements.show_text(formats.printable(json.dumps(arm.requests[name], indent=1)), language="json")


def _show_trials(contents: StudyContents, arm: SearchArm) -> None:
    trials = elements.store().list_program_trials(contents.study.id)
    own = [item for item in trials if item.experiment_id == arm.experiment.id]
    if not own:
        st.caption("Its program was not tried before training.")
    for trial in own:
        _show_trial(trial)


def _show_trial(trial: ProgramTrial) -> None:
    passed = "" if trial.passed is None else f", {trial.passed} pass the check"
    st.markdown(
        f"{formats.count(trial.attempts, 'attempt')} with the base weights, {trial.broken} broken{passed}: grade "
        f"{formats.score(trial.mean)}, own reward {formats.score(trial.mean_reward)}, "
        f"{formats.duration(trial.seconds)}."
    )
    if trial.error:
        elements.show_text(formats.printable(trial.error), language=None)
    for number, transcript in enumerate(trial.transcripts, 1):
        title = f"Attempt {number}: {formats.plain(str(transcript.get('task', '')))}"
        with st.expander(f"{title}, score {formats.score(transcript.get('score'))}"):
            for message in transcript.get("messages", ()):
                st.caption(formats.plain(str(message.get("role", ""))))
                elements.show_text(formats.printable(str(message.get("content", ""))), language=None)
            if transcript.get("error"):
                elements.show_text(formats.printable(str(transcript["error"])), language=None)
