"""What runs now, and what ended last: trainings and studies, each one click away."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pandas as pd
import streamlit as st

from experiments_db import RecordedTraining, RunStatus, Study, StudyStatus
from ui import charts, elements, formats, live, queries
from ui.study_parts import progress_view
from ui.tables.training_rows import HELD_OUT, OVER, REWARD, name_of

MOST_CARDS = 12
MOST_ENDED = 5
POINTS = 60
# A server that trains writes something every ten seconds.
STALE_S = 120.0

GOING_ON = (StudyStatus.RUNNING, StudyStatus.PAUSED)


def show_training(training: RecordedTraining, points: pd.DataFrame, score: float | None) -> None:
    """Show a card of a training that goes on: its progress, its reward and when it will be over."""
    with st.container(border=True, height="stretch"):
        title = formats.plain(formats.shortened(name_of(training), 60))
        elements.link("training", f"**{title}**", icon=":material/monitoring:", training=training.id)
        last = training.settings.get("total_steps")
        facts = [formats.plain(training.model), elements.badge(training.status)]
        if (silent := time.time() - training.updated_at) > STALE_S:
            facts.append(f":orange[no sign of life for {formats.duration(silent)}]")
        elements.show_facts(*facts)
        if isinstance(last, int) and last > 0:
            left = seconds_left(training, points, last)
            words = f"step {training.step} of {last}"
            words += f", about {formats.duration(left)} left" if left is not None and silent <= STALE_S else ""
            st.progress(min(1.0, training.step / last), text=words)
        else:
            st.caption(f"step {training.step}")
        values = [value for value in points["value"] if math.isfinite(value)]
        left_side, right_side = st.columns(2)
        with left_side:
            st.metric("Reward", formats.score(values[-1] if values else None), chart_data=values or None)
        with right_side:
            st.metric("Held-out score", formats.score(score))


def seconds_left(training: RecordedTraining, points: pd.DataFrame, last: int) -> float | None:
    """Return how long the other steps take if each takes as long as those on record; None if none was timed."""
    if len(points) < 2:
        return None
    first, newest = points.iloc[0], points.iloc[-1]
    steps = float(newest["step"] + newest["steps"] - first["step"] - first["steps"])
    seconds = float(newest["recorded_at"] - first["recorded_at"])
    return max(0.0, seconds / steps * (last - training.step)) if steps > 0 and seconds > 0 else None


def show_study(study: Study) -> None:
    """Show a card of a study that goes on: how many trainings it has made, and its best arm so far."""
    contents = queries.load_study(elements.database(), study.id)
    with st.container(border=True, height="stretch"):
        topic = formats.plain(formats.shortened(study.topic, 120))
        elements.link("study", f"**{topic}**", icon=":material/account_tree:", study=study.id)
        elements.show_facts(
            elements.badge(study.status),
            f"planner {formats.plain(study.planner)}",
            f"{elements.worked(contents)} at work",
        )
        elements.show_silence(contents)
        finished = sum(run.status is RunStatus.FINISHED for run in contents.claiming)
        total = len(contents.claiming) + progress_view.count_waiting(contents)
        if total:
            st.progress(finished / total, text=f"{finished} of {formats.count(total, 'training')} finished")
        elements.show_best_arm(contents, border=False)


def show_running(trainings: Sequence[RecordedTraining], studies: Sequence[Study]) -> None:
    st.subheader("Running now", anchor=False)
    if not trainings and not studies:
        st.caption("Nothing is running.")
        return
    ids = tuple(training.id for training in trainings[:MOST_CARDS])
    points = queries.curves(elements.database(), ids, (REWARD,), most=POINTS)
    scores = elements.store().latest_training_metrics(ids, (HELD_OUT,))
    with st.grid(3, min_column_width=320):
        for study in studies[:MOST_CARDS]:
            show_study(study)
        for training in trainings[:MOST_CARDS]:
            score = scores.get(training.id, {}).get(HELD_OUT)
            show_training(training, charts.only(points, "run_id", training.id), score)
    hidden = len(studies[MOST_CARDS:]) + len(trainings[MOST_CARDS:])
    if hidden:
        st.caption(f"{hidden} more are listed under Studies and Trainings.")


def show_ended(trainings: Sequence[RecordedTraining], studies: Sequence[Study]) -> None:
    st.subheader("Ended last", anchor=False)
    if not trainings and not studies:
        st.caption("Nothing has ended yet.")
        return
    left, right = st.columns(2) if trainings and studies else (st.container(), st.container())
    with left:
        for study in studies[:MOST_ENDED]:
            topic = formats.plain(formats.shortened(study.topic, 90))
            elements.link("study", topic, icon=":material/account_tree:", study=study.id)
            elements.show_facts(elements.badge(study.status), formats.moment(study.finished_at or study.updated_at))
    ids = tuple(training.id for training in trainings[:MOST_ENDED])
    scores = elements.store().latest_training_metrics(ids, (HELD_OUT, REWARD))
    with right:
        for training in trainings[:MOST_ENDED]:
            last = scores.get(training.id, {})
            title = formats.plain(formats.shortened(name_of(training), 90))
            elements.link("training", title, icon=":material/monitoring:", training=training.id)
            facts = [formats.plain(training.status.lower()), f"step {training.step}"]
            facts += [
                f"{word} {formats.score(last[name])}"
                for word, name in (("reward", REWARD), ("held-out score", HELD_OUT))
                if name in last
            ]
            elements.show_facts(*facts, formats.moment(training.updated_at))


def show_home() -> None:
    with elements.store_errors():
        trainings = queries.list_trainings(elements.database())
        studies = elements.store().list_studies(limit=None)
        if not trainings and not studies:
            show_beginning()
            return
        show_running(
            [training for training in trainings if training.status not in OVER],
            [study for study in studies if study.status in GOING_ON],
        )
        show_ended(
            [training for training in trainings if training.status in OVER],
            [study for study in studies if study.status not in GOING_ON],
        )


def show_beginning() -> None:
    st.info("Nothing is on record yet. A training appears here within seconds of its first step:")
    st.code("swarm train --env reverse", language=None)
    st.markdown("A study trains, judges and reports by itself:")
    st.code(elements.EXAMPLE, language=None)


def token() -> object:
    """Return what differs once anything on the page would."""
    database = elements.database()
    return queries.list_trainings(database), elements.store().list_studies(limit=None), elements.store().tally_runs()


st.title("Home", anchor=False)
live.follow(show_home, token=token)
