"""The location of the store, and what pages ask of it beside its own methods.

A function that takes the location of the database keeps its answer until the database changes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pandas as pd
import streamlit as st

from experiments_db import (
    FILE_LOGGED,
    ExperimentStore,
    InvalidRecord,
    RecordedTraining,
    ServerEvent,
    Study,
    StudyWork,
    find_work,
    open_store,
)
from experiments_db.frames import (
    curves_frame,
    llm_calls_frame,
)
from ui.contents import StudyContents, read_contents
from ui.tables.training_rows import BASICS, ListedTraining, rows_of, settings_of

P = ParamSpec("P")
T = TypeVar("T")

MOST_ANSWERS, MOST_STUDIES = 64, 32
"""So many answers and studies are kept, the ones asked for last. A page asks about twenty questions."""

MOST_POINTS = 6000
"""Of one metric in a chart, all curves together."""

FEWEST_POINTS, FINEST_POINTS = 60, 800
"""Of one curve; a screen has no more columns for it."""

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


@st.cache_resource(max_entries=8, show_spinner=False, on_release=lambda store: store.close())
def _open(location: str, identity: tuple[int, int] | None) -> ExperimentStore:
    return open_store(location, read_only=True)


def _ask(location: str, question: Sequence[object], read: Callable[[ExperimentStore], T]) -> T:
    """Return the answer to a question: the one that is kept, or else what `read` gives.

    An answer is kept until the database changes, for all browser sessions. Lists, dictionaries and frames are shallow
    copies, so that no page changes those of another.
    """
    store = open_database(location)
    # The version comes first: a change while the answer is read makes it one of an older version.
    answer: Any = _answer(location, _identity(location), store.read_version(), question, lambda: read(store))
    return cast(T, copy(answer)) if isinstance(answer, list | dict | pd.DataFrame) else answer


@st.cache_resource(max_entries=MOST_ANSWERS, show_spinner=False)
def _answer(
    location: str, identity: tuple[int, int] | None, version: str, question: Sequence[object], _read: Callable[[], Any]
) -> Any:
    return _read()


def _kept(read: Callable[Concatenate[ExperimentStore, P], T]) -> Callable[Concatenate[str, P], T]:
    """Turn a function of a store into one of its location, which reads only what has not been read already."""

    @wraps(read)
    def ask(location: str, *args: P.args, **kwargs: P.kwargs) -> T:
        return _ask(location, (read.__name__, args, kwargs), lambda store: read(store, *args, **kwargs))

    return ask


class _KeptStore:
    """A store whose methods give kept answers."""

    def __init__(self, location: str) -> None:
        self._location = location

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            return _ask(self._location, (name, args, kwargs), lambda store: getattr(store, name)(*args, **kwargs))

        return ask


def label_training(location: str, training_id: str, tags: Sequence[str], note: str) -> None:
    """Store the tags and the note of a training. This is all that the explorer ever writes. Raises StoreError."""
    with open_store(location) as store:
        store.label_training(training_id, tags=tags, note=note)


def store(location: str) -> ExperimentStore:
    """Return the store at `location`, whose answers are kept until the database changes. Raises StoreError."""
    return cast(ExperimentStore, _KeptStore(location))


def load_study(location: str, study_id: str) -> StudyContents:
    """Return a study as it stands. Raises RecordNotFound."""
    # The version comes first: what is written meanwhile is then read again, never missed.
    return _study(location, _identity(location), study_id, store(location).read_study_version(study_id))


@st.cache_resource(max_entries=MOST_STUDIES, show_spinner=False)
def _study(location: str, identity: tuple[int, int] | None, study_id: str, version: object) -> StudyContents:
    return read_contents(_open(location, identity), study_id)


def work_on(location: str, study: Study) -> StudyWork:
    """Return whether a process works on the study by now."""
    return find_work(store(location), study)


def study_token(location: str, study_id: str) -> object:
    """Return what differs once anything of a study was written, or a process began or ceased to work on it."""
    is_at_work = work_on(location, load_study(location, study_id).study).is_at_work
    return store(location).read_study_version(study_id), is_at_work


@_kept
def llm_calls(store: ExperimentStore, study_id: str) -> pd.DataFrame:
    """Return one row per call of a language model, oldest first, without its texts."""
    return llm_calls_frame(store, study_id).drop(columns=["prompt", "response"])


@_kept
def curves(
    store: ExperimentStore,
    ids: Sequence[str],
    names: Sequence[str],
    steps: tuple[int, int] | None = None,
    most: int = 0,
) -> pd.DataFrame:
    """Return curves of runs or trainings, one row per step, or per span of steps.

    A curve has at most `most` rows, by default as many as can be drawn of so many curves.
    """
    most = most or min(FINEST_POINTS, max(FEWEST_POINTS, MOST_POINTS // max(1, len(ids))))
    return curves_frame(store, ids, names, most=most, steps=steps)


def list_trainings(location: str) -> list[RecordedTraining]:
    """Return the newest trainings that servers recorded, the newest first."""
    return store(location).list_trainings(limit=MOST_TRAININGS)


@_kept
def training_columns(store: ExperimentStore) -> list[str]:
    """Return the names of all values of the newest trainings: basics, then settings, then metrics."""
    trainings = store.list_trainings(limit=MOST_TRAININGS)
    settings = sorted({name for training in trainings for name in settings_of(training)})
    metrics = store.metric_names([training.id for training in trainings])
    return list(dict.fromkeys([*BASICS, *settings, *metrics]))


@_kept
def training_rows(store: ExperimentStore, names: tuple[str, ...]) -> list[ListedTraining]:
    """Return the newest trainings as rows, with the last values of the metrics among these names."""
    trainings = store.list_trainings(limit=MOST_TRAININGS)
    ids = [training.id for training in trainings]
    return rows_of(trainings, store.latest_training_metrics(ids, names))


@_kept
def list_saved_files(store: ExperimentStore, training_id: str) -> list[ServerEvent]:
    """Return the events of the newest checkpoints and files of a training, the newest of each first."""
    return [
        event
        for kind in ("checkpoint.saved", FILE_LOGGED)
        for event in store.list_server_events(training_id, kind=kind, limit=PAGE)
    ]
