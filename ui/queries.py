"""Cached calls that read the store, the one that writes tags and notes, and the location of the store.

Place in the flow: pages read through this module only. Answers are cached for a moment: the elements of one page share
them, and a page that refreshes itself still shows new rows. Raises what the store raises (StoreError).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import streamlit as st

from experiments_db import (
    Artifact,
    EpisodeSample,
    EpisodeSummary,
    Event,
    ExperimentStore,
    InvalidRecord,
    NotebookEntry,
    ProgramTrial,
    RecordedTraining,
    Review,
    Run,
    RunStatus,
    ServerEvent,
    Severity,
    Study,
    SystemPoint,
    TrainedEpisode,
    TrainedEpisodeSummary,
    TrainingScore,
    open_store,
)
from experiments_db.frames import (
    curves_frame,
    llm_calls_frame,
    metrics_frame,
    runs_frame,
    training_curves_frame,
)
from ui.contents import StudyContents
from ui.study_reader import StudyReader

TTL_S = 2.0
"""Below the refresh of a live page, so that each refresh sees the present state."""

MAX_ENTRIES = 128
MAX_READERS = 8
"""So many readers are kept; each holds the arms and runs of one study."""

MOST_POINTS = 1000
"""Of one curve: more than a screen has columns for it."""

PAGE = 200
MOST_TRAININGS = 500
USUAL_NAME = "research.db"


def database_location(asked: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the file or URL to read: the address's, else SWARM_RESEARCH_DB, else research.db under SWARM_HOME.

    Raises InvalidRecord for a URL in the address: a link must not make this machine connect anywhere.
    """
    if asked:
        if "://" in asked:
            raise InvalidRecord("the address may name a database file only; give a URL in SWARM_RESEARCH_DB")
        return asked
    if given := environ.get("SWARM_RESEARCH_DB", "").strip():
        return given
    return str(Path(environ.get("SWARM_HOME", "").strip() or "runs") / USUAL_NAME)


def home_of(location: str) -> Path | None:
    """Return the folder that holds a database file and the files of its studies; None for a server's URL."""
    return None if "://" in location else Path(location).expanduser().absolute().parent


def resume_command(location: str, study_id: str) -> str:
    """Return the command that resumes a study, for the machine that has its files."""
    home = home_of(location)
    if home is None:
        return f"researcher resume {study_id} --db {shlex.quote(location)}"
    named = Path(location).expanduser().absolute()
    other = "" if named.name == USUAL_NAME else f" --db {shlex.quote(str(named))}"
    return f"researcher resume {study_id} --home {shlex.quote(str(home))}{other}"


def open_database(location: str) -> ExperimentStore:
    """Return the store at `location`. Raises RecordNotFound, SchemaMismatch, InvalidRecord or StoreUnavailable."""
    return _open(location, _identity(location))


def _identity(location: str) -> tuple[int, int] | None:
    """Return the identity of a database file.

    Another file at the same path is another database, and connections to the old file are of no use.
    """
    if "://" in location:
        return None
    try:
        status = Path(location).expanduser().stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


@st.cache_resource(max_entries=8, show_spinner=False, on_release=ExperimentStore.close)
def _open(location: str, identity: tuple[int, int] | None) -> ExperimentStore:
    return open_store(location, read_only=True)


def label_training(location: str, training_id: str, tags: Sequence[str], note: str) -> None:
    """Store the tags and the note of a training. This is all that the explorer ever writes. Raises StoreError."""
    with open_store(location) as store:
        store.label_training(training_id, tags=tags, note=note)
    list_trainings.clear()
    find_training.clear()


@st.cache_data(ttl=TTL_S, max_entries=8, show_spinner=False)
def list_studies(location: str) -> list[Study]:
    """Return the studies, newest first."""
    return open_database(location).list_studies(limit=None)


@st.cache_data(ttl=TTL_S, max_entries=8, show_spinner=False)
def tally_runs(location: str) -> dict[str, dict[RunStatus, int]]:
    return open_database(location).tally_runs()


# Records are frozen, so they are shared as a resource; `cache_data` would copy them for every reader.
@st.cache_resource(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def load_study(location: str, study_id: str) -> StudyContents:
    return _reader(location, _identity(location), study_id).read()


@st.cache_resource(max_entries=MAX_READERS, show_spinner=False)
def _reader(location: str, identity: tuple[int, int] | None, study_id: str) -> StudyReader:
    return StudyReader(_open(location, identity), study_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def find_run(location: str, run_id: str) -> Run:
    return open_database(location).get_run(run_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def list_events(
    location: str,
    study_id: str,
    *,
    run_id: str | None = None,
    min_severity: Severity = Severity.INFO,
    limit: int = PAGE,
) -> list[Event]:
    """Return the events, newest first."""
    return open_database(location).list_events(
        study_id, run_id=run_id, min_severity=min_severity, newest_first=True, limit=limit
    )


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def list_notes(location: str, study_id: str) -> list[NotebookEntry]:
    """Return the entries of the notebook, oldest first."""
    return open_database(location).list_notes(study_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def list_reviews(location: str, study_id: str) -> list[Review]:
    return open_database(location).list_reviews(study_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def list_program_trials(location: str, study_id: str) -> list[ProgramTrial]:
    """Return the trials of programs, those of drafts included, oldest first."""
    return open_database(location).list_program_trials(study_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def llm_calls(location: str, study_id: str) -> pd.DataFrame:
    """Return one row per call of a language model, oldest first, without its texts."""
    return llm_calls_frame(open_database(location), study_id).drop(columns=["prompt", "response"])


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def list_artifacts(location: str, study_id: str, run_id: str | None = None) -> list[Artifact]:
    return open_database(location).list_artifacts(study_id, run_id=run_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def metric_names(location: str, run_ids: tuple[str, ...]) -> list[str]:
    return open_database(location).metric_names(run_ids)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def curves(location: str, run_id: str, names: tuple[str, ...]) -> pd.DataFrame:
    """Return curves with one row per step, or per span of steps if there are more than `MOST_POINTS` steps."""
    return curves_frame(open_database(location), [run_id], names, most=MOST_POINTS)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def metrics(location: str, run_ids: tuple[str, ...], names: tuple[str, ...]) -> pd.DataFrame:
    """Return one row per point: run_id, name, step, value, recorded_at."""
    return metrics_frame(open_database(location), run_ids, names)


@st.cache_data(ttl=TTL_S, max_entries=16, show_spinner=False)
def runs(location: str, study_ids: tuple[str, ...]) -> pd.DataFrame:
    """Return one row per run of these studies, as `frames.runs_frame` gives it, with the study's id."""
    store = open_database(location)
    frames = [runs_frame(store, study_id).assign(study_id=study_id) for study_id in study_ids]
    filled = [frame for frame in frames if not frame.empty]
    return pd.concat(filled, ignore_index=True) if filled else pd.DataFrame()


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def list_episodes(location: str, run_id: str) -> list[EpisodeSummary]:
    return open_database(location).list_episodes(run_id, limit=PAGE)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def find_episode(location: str, run_id: str, episode_id: str) -> EpisodeSample:
    return open_database(location).get_episode(run_id, episode_id)


@st.cache_data(ttl=TTL_S, max_entries=8, show_spinner=False)
def list_trainings(location: str) -> list[RecordedTraining]:
    """Return the newest trainings that servers recorded, the newest first."""
    return open_database(location).list_trainings(limit=MOST_TRAININGS)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def find_training(location: str, training_id: str) -> RecordedTraining:
    return open_database(location).get_training(training_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def latest_training_metrics(
    location: str, training_ids: tuple[str, ...], names: tuple[str, ...]
) -> dict[str, dict[str, float | None]]:
    """Return the last value of each metric, by training and name."""
    found = open_database(location).latest_training_metrics(training_ids, names)
    return {training_id: dict(values) for training_id, values in found.items()}


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def training_metric_names(location: str, training_ids: tuple[str, ...]) -> list[str]:
    return open_database(location).training_metric_names(training_ids)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def training_curves(location: str, training_ids: tuple[str, ...], names: tuple[str, ...]) -> pd.DataFrame:
    """Return curves with one row per step, or per span of steps if there are more than `MOST_POINTS` steps."""
    return training_curves_frame(open_database(location), training_ids, names, most=MOST_POINTS)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def training_scores(location: str, training_ids: tuple[str, ...]) -> list[TrainingScore]:
    return open_database(location).list_training_scores(training_ids)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def trained_episodes(location: str, training_id: str) -> list[TrainedEpisodeSummary]:
    return open_database(location).list_trained_episodes(training_id, limit=PAGE)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def find_trained_episode(location: str, training_id: str, episode_id: str) -> TrainedEpisode:
    return open_database(location).get_trained_episode(training_id, episode_id)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def server_events(location: str, training_id: str) -> list[ServerEvent]:
    return open_database(location).list_server_events(training_id, limit=PAGE)


@st.cache_data(ttl=TTL_S, max_entries=MAX_ENTRIES, show_spinner=False)
def system_points(location: str, training_id: str) -> list[SystemPoint]:
    return open_database(location).list_system_points(training_id)
