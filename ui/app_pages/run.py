"""One run: its scores, curves, configuration, program, log, events, evaluations and episodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import streamlit as st

from experiments_db import TRAINING_SECONDS, Experiment, RecordNotFound, Run
from ui import comparison, elements, episode_search, episode_view, formats, live, queries, study_files
from ui.artifacts.view import show_files_of_run
from ui.contents import BASE, FINAL, TEST, StudyContents
from ui.curves.series import Series
from ui.curves.view import show_curves
from ui.episode_search import EpisodeOwner


def choose_run() -> Run | None:
    """Return the run in the address, or one that the user picks from the study last looked at."""
    asked = st.query_params.get("run")
    if asked is None:
        contents = elements.choose_study()
        if contents is None:
            return None
        if not contents.runs:
            st.caption("No run has been planned yet.")
            return None
        st.query_params["run"] = asked = contents.runs[-1].id
    run = elements.store().get_run(asked)
    st.session_state["study"] = run.study_id
    return run


def show_switch(contents: StudyContents, run: Run) -> None:
    """Show the other runs of the study, one choice away."""
    arms = contents.arms_by_id
    names = {
        item.id: f"{elements.run_name(formats.printable(arms[item.experiment_id].name), item)} · {item.status.value}"
        for item in elements.choosable(contents, [run])
    }
    st.session_state["run_choice"] = run.id
    st.selectbox("Run", list(names), key="run_choice", format_func=names.__getitem__, on_change=follow_choice)


def follow_choice() -> None:
    st.query_params["run"] = st.session_state["run_choice"]


def show_head(contents: StudyContents, run: Run, arm: Experiment) -> None:
    attempt = "" if run.attempt == 1 else f", attempt {run.attempt}"
    st.title(f"{formats.plain(formats.shortened(arm.name, 80))}, seed {run.seed}{attempt}", anchor=False)
    facts = [elements.badge(run.status)]
    if arm.is_baseline:
        facts.append(":blue-badge[baseline]")
    if run.rung:
        facts.append(f":gray-badge[exploration to step {run.rung}, no claim]")
    if run.exit_reason:
        facts.append(formats.plain(formats.shortened(run.exit_reason, 300)))
    facts.append(f"started {formats.moment(run.started_at)}")
    facts.append(f"`{run.id}`")
    elements.show_facts(*facts)
    elements.link_study(contents)


def show_figures(contents: StudyContents, run: Run) -> None:
    scores = contents.scores_of(run.id)
    split = contents.search_split
    base, final = scores.get((BASE, split)), scores.get((FINAL, split))
    test = next((value for (phase, _), value in scores.items() if phase == TEST), None)
    with st.grid(5, min_column_width=150):
        gain = formats.delta(None if base is None or final is None else final - base)
        st.metric(
            "Final score",
            formats.score(final),
            delta=gain,
            border=True,
            height="stretch",
            help=contents.metric,
        )
        elements.show_metric("Before training", formats.score(base))
        elements.show_metric("Test split", formats.score(test), help="Scored once, for best arm and baseline.")
        version = formats.MISSING if run.final_weight_version is None else str(run.final_weight_version)
        elements.show_metric("Weight version", version, help="Steps trained, by the version served at the end.")
        seconds = elements.store().sum_metric([run.id], TRAINING_SECONDS).get(run.id)
        elements.show_metric("Training time", formats.duration(seconds), help="Of its steps, without pauses.")


def show_config(run: Run, arm: Experiment) -> None:
    left, right = st.columns(2)
    with left:
        st.subheader("As given", anchor=False)
        elements.show_text(episode_view.show_json(arm.job), language="json")
    with right:
        st.subheader("As the server resolved it", anchor=False)
        elements.show_text(episode_view.show_json(run.job), language="json")
    if run.environment:
        st.caption(formats.plain(formats.settings(run.environment)))


def show_code(arm: Experiment) -> None:
    if arm.program_code:
        elements.show_text(formats.printable(arm.program_code), language="python", line_numbers=True)
    else:
        st.caption("The program is not written yet.")


def show_log(run: Run) -> None:
    paths = find_logs(run)
    if not paths:
        st.caption("There is no log in the study's folder.")
        return
    try:
        text, is_cut = study_files.tail(paths[0])
    except OSError as error:
        st.warning(f"The log cannot be read: {error.strerror}")
        return
    if is_cut:
        part = formats.size(study_files.TAIL_BYTES)
        st.caption(f"The last {part}; the whole log is at {formats.name(str(paths[0]))}")
    if text.strip():
        elements.show_text(formats.printable(text), language=None)
    else:
        st.caption(f"The log is empty: {formats.name(str(paths[0]))}")


def show_events(run: Run) -> None:
    events = elements.store().list_events(run.study_id, run_id=run.id, newest_first=True)
    if not events:
        st.caption("Nothing has been noted of this run.")
        return
    rows = [
        {
            "Time (UTC)": formats.clock(event.created_at),
            "Severity": event.severity.value,
            "Event": event.kind,
            "Message": formats.printable(event.message),
        }
        for event in events
    ]
    elements.show_table(rows, columns=elements.wide_column("Message"), alt="Events of the run")


def show_evaluations(contents: StudyContents, run: Run) -> None:
    own = elements.store().list_evaluation_summaries(run_ids=(run.id,))
    if not own:
        st.caption("The run has not been scored yet.")
        return
    rows = [
        {
            "Phase": item.phase,
            "Split": item.split,
            "Mean": item.mean,
            "Standard error": item.stderr,
            "Successes": f"{item.successes} / {item.episodes}",
            "Weight version": item.weight_version,
            "Time": formats.moment(item.created_at),
            "Evaluator": item.evaluator_hash[:12],
        }
        for item in own
    ]
    elements.show_table(rows, columns=elements.number_columns("Mean", "Standard error"), alt="Evaluations of the run")
    st.caption(f"{formats.plain(contents.metric)}. The same evaluator hash means: scored in the same way, same tasks.")


def token_of(run: Run) -> object:
    """Return what differs once the page would show something else."""
    is_log_shown = st.session_state.get("part") == "Log"
    return (
        queries.study_token(elements.database(), run.study_id),
        episode_search.count_episodes(EpisodeOwner("run", run.id)),
        [study_files.written_at(path) for path in find_logs(run)] if is_log_shown else (),
    )


def find_logs(run: Run) -> list[Path]:
    """Return the logs of a run that are in the study's folder."""
    home = queries.home_of(elements.database())
    artifacts = elements.store().list_artifacts(run.study_id, run_id=run.id)
    stored = [item.path for item in artifacts if item.kind == "log"]
    if run.log_path:
        stored.append(run.log_path)
    return [path for item in stored if home and (path := study_files.locate(home, run.study_id, item))]


def show_run(run_id: str) -> None:
    with elements.store_errors():
        run = elements.store().get_run(run_id)
        contents = queries.load_study(elements.database(), run.study_id)
        arm = contents.arms_by_id[run.experiment_id]
        show_head(contents, run, arm)
        show_figures(contents, run)
        sections = {
            "Curves": partial(show_curves, [Series(arm.name, (elements.member_of(run),))]),
            "Change": partial(comparison.show_change, arm, contents.arms_by_id.get(arm.parent_id or "")),
            "Config": partial(show_config, run, arm),
            "Code": partial(show_code, arm),
            "Log": partial(show_log, run),
            "Events": partial(show_events, run),
            "Evaluations": partial(show_evaluations, contents, run),
            "Episodes": partial(episode_search.show_search, EpisodeOwner("run", run.id)),
            "Artifacts": partial(show_files_of_run, run),
        }
        elements.show_sections(sections, key="part")


run = choose_run()
if run is not None:
    study = queries.load_study(elements.database(), run.study_id)
    if run.experiment_id not in study.arms_by_id:
        raise RecordNotFound(f"run {run.id} belongs to no arm of its study")
    show_switch(study, run)
    is_followed = not run.status.is_over and st.toggle("Live", value=True, help="Show what is new", key="live")
    live.follow(show_run, run.id, token=partial(token_of, run), is_on=is_followed)
