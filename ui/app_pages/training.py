"""One recorded training: curves, held-out scores, trained episodes, settings, the server's machine and events."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import streamlit as st

from experiments_db import LONGEST_NOTE, MOST_TAGS, TRAINING_SECONDS, RecordedTraining, sum_step_seconds
from ui import charts, elements, episode_view, formats, live, queries
from ui.artifacts.view import show_files_of_training
from ui.curves import drawing
from ui.curves.series import time_unit
from ui.curves.view import show_curves
from ui.episode_search import EpisodeOwner, show_search
from ui.tables.training_rows import OVER, REWARD, rows_of, series_of

NO_ENDS = pd.DataFrame(columns=["series", "x", "value", "why"])


def choose_training() -> RecordedTraining | None:
    """Return the training in the address, or else the newest; None if there is none."""
    trainings = queries.list_trainings(elements.database())
    asked = st.query_params.get("training")
    if asked is None:
        if not trainings:
            st.info("No server has recorded a training here yet.", icon=":material/info:")
            return None
        st.query_params["training"] = asked = trainings[0].id
    return elements.store().get_training(asked)


def show_head(training: RecordedTraining) -> None:
    st.title(formats.plain(f"{training.project}/{training.experiment}"), anchor=False)
    facts = [elements.badge(training.status)]
    if training.reason:
        facts.append(formats.plain(formats.shortened(training.reason, 300)))
    if training.model:
        facts.append(f"on {formats.plain(training.model)}")
    facts.append(f"begun {formats.moment(training.begun_at)}")
    facts.append(formats.name(training.home))
    elements.show_facts(*facts)


def show_labels(training: RecordedTraining) -> None:
    """Show the tags and the note, and let the user change both."""
    if training.tags or training.note:
        tags = " ".join(f":gray-badge[{formats.plain(tag)}]" for tag in training.tags)
        elements.show_facts(*filter(None, [tags, formats.plain(formats.shortened(training.note, 300))]))
    known = sorted({tag for each in queries.list_trainings(elements.database()) for tag in each.tags})
    with st.popover("Tags and note", icon=":material/label:"):
        tags = st.multiselect(
            "Tags", known, default=training.tags, accept_new_options=True, max_selections=MOST_TAGS, key="tags"
        )
        note = st.text_area("Note", training.note, max_chars=LONGEST_NOTE, key="note")
        if st.button("Save", disabled=(tuple(tags), note) == (training.tags, training.note), key="save labels"):
            queries.label_training(elements.database(), training.id, tags, note)
            st.rerun()


def show_figures(training: RecordedTraining) -> None:
    names = (REWARD,)
    metrics = elements.store().latest_training_metrics((training.id,), names).get(training.id, {})
    scores = elements.store().list_training_scores((training.id,))
    best = max(scores, key=lambda score: score.mean, default=None)
    with st.grid(5, min_column_width=150):
        elements.show_metric("Step", f"{training.step} / {training.settings.get('total_steps') or '∞'}")
        elements.show_metric("Reward", formats.score(metrics.get(REWARD)))
        elements.show_metric("Held-out score", formats.score(scores[-1].mean if scores else None))
        at = "" if best is None else f"At step {best.step}."
        elements.show_metric("Best held-out score", formats.score(None if best is None else best.mean), help=at or None)
        help = "Of its steps, without pauses."
        elements.show_metric("Training time", formats.duration(seconds_of(training)), help=help)


def seconds_of(training: RecordedTraining) -> float | None:
    """Return the seconds of training, which are those of its run if a study has it; None before the first step."""
    store = elements.store()
    if training.launch_key is not None and (run := store.find_run(training.launch_key)) is not None:
        return store.sum_metric([run.id], TRAINING_SECONDS).get(run.id)
    points = store.list_training_points(training.id, name=REWARD)
    states = store.list_server_events(training.id, kind="engine.state", limit=None)
    return sum_step_seconds(training, points, states) if points else None


def show_scores(training: RecordedTraining) -> None:
    scores = elements.store().list_training_scores((training.id,))
    if not scores:
        st.caption("The weights were not scored on held-out tasks. The job's `eval_every` says how often they are.")
        return
    rows = [
        {
            "Step": score.step,
            "Mean": score.mean,
            "Standard error": score.stderr,
            "Successes": f"{score.successes} / {score.episodes}",
            "Time": formats.moment(score.recorded_at),
        }
        for score in scores
    ]
    elements.show_table(rows, columns=elements.number_columns("Mean", "Standard error"), alt="Held-out scores")


def show_settings(training: RecordedTraining) -> None:
    if training.changes:
        st.subheader("Changed while it ran", anchor=False)
        for step, settings in sorted(training.changes.items(), key=lambda change: int(change[0])):
            st.markdown(f"From step {formats.plain(step)} on: {formats.plain(formats.settings(settings))}")
    elements.show_text(episode_view.show_json(training.settings), language="json")


def show_machine(training: RecordedTraining) -> None:
    points = elements.store().list_system_points(training.id)
    if not points:
        st.caption("The load of the machine has not been recorded yet. It is, every ten seconds.")
        return
    unit_name, unit = time_unit(max(point.recorded_at for point in points) - training.begun_at)
    readings = pd.DataFrame(
        {
            "series": training.id,
            "name": [point.name for point in points],
            "x": [(point.recorded_at - training.begun_at) / unit for point in points],
            "value": [point.value for point in points],
            "raw": np.nan,
            "low": np.nan,
        }
    )
    domain = (min(0.0, *readings["x"]), max(readings["x"]) + 1e-9)
    frame = drawing.Frame([training.id], f"time ({unit_name})", domain)
    st.caption("Readings of the server's machine since the training began.")
    with st.grid(2, min_column_width=420):
        for name, values in readings.groupby("name", sort=False):
            with st.container(border=True, height="stretch"):
                chart = drawing.draw(values, NO_ENDS, title=formats.printable(str(name)), frame=frame)
                elements.show_chart(charts.to_spec(chart), alt=f"{name} over time")


def show_events(training: RecordedTraining) -> None:
    rows = [
        {
            "Time (UTC)": formats.clock(event.recorded_at),
            "Event": formats.printable(event.kind),
            "Detail": formats.printable(formats.settings(event.detail)),
        }
        for event in elements.store().list_server_events(training.id, limit=queries.PAGE)
    ]
    elements.show_table(rows, alt="Events of the server")


def show_training(training_id: str) -> None:
    with elements.store_errors():
        training = elements.store().get_training(training_id)
        show_head(training)
        show_labels(training)
        show_figures(training)
        sections = {
            "Curves": partial(show_curves, series_of(rows_of([training], {}))),
            "Held-out scores": partial(show_scores, training),
            "Trained episodes": partial(show_search, EpisodeOwner("training", training.id)),
            "Settings": partial(show_settings, training),
            "Artifacts": partial(show_files_of_training, training),
            "Machine": partial(show_machine, training),
            "Events": partial(show_events, training),
        }
        elements.show_sections(sections, key="part")


training = choose_training()
if training is not None:
    live.follow(
        show_training,
        training.id,
        token=partial(elements.store().get_training, training.id),
        is_on=training.status not in OVER,
    )
