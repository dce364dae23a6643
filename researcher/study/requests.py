"""Requests about a study from outside: to begin, find, pause, stop or resume one."""

from __future__ import annotations

import shlex
from pathlib import Path
from urllib.parse import urlsplit

from experiments_db import ExperimentStore, RecordNotFound, Study, StudyStatus, StudyWork, find_work
from researcher.errors import ResearchError, StudyNotFound
from researcher.home import DATABASE, DEFAULT_HOME, home_option
from researcher.study.settings import StudySettings
from researcher.study.topics import complete_from_topic
from swarm.processes import is_dead


def create_study(store: ExperimentStore, topic: str, settings: StudySettings) -> Study:
    """Store a study that `check_study` has passed, completed from its topic. Raises TopicInvalid."""
    if not settings.is_asked:
        settings = complete_from_topic(topic, settings)
    return store.create_study(topic.strip(), planner=settings.planner, settings=settings.model_dump(mode="json"))


EXAMPLE = "learning rate 1e-3 or 3e-3 for copying words"


def find_study(store: ExperimentStore, study_id: str | None) -> Study:
    """Return a study by its id, or the newest one. Raises StudyNotFound."""
    if study_id is None:
        if newest := store.list_studies(limit=1):
            return newest[0]
        raise StudyNotFound(f"there is no study yet: begin one with `researcher start --topic '{EXAMPLE}'`")
    try:
        return store.get_study(study_id)
    except RecordNotFound as error:
        shown = "" if _is_in(store, DEFAULT_HOME) else database_option(store.location)
        raise StudyNotFound(f"there is no study {study_id}: `researcher list{shown}` shows them all") from error


def ask_to_end(store: ExperimentStore, study_id: str, status: StudyStatus) -> Study:
    """Pause or stop a study; a process that works on it notices at its next heartbeat and drains."""
    study = find_study(store, study_id)
    if study.status not in (StudyStatus.RUNNING, StudyStatus.PAUSED):
        raise ResearchError(f"study {study_id} is {study.status} already")
    return store.set_study_status(study_id, status, f"{status} on request")


def work_of(store: ExperimentStore, study: Study) -> StudyWork:
    """Return whether a process works on the study.

    A killed process of this host is noticed at once, one of another host once its lease has run out.
    """
    return find_work(store, study, is_gone=is_dead)


def resume_command(store: ExperimentStore, study_id: str, home: Path) -> str:
    """Return the command that resumes a study, with its home and its database."""
    database = None if _is_in(store, home) else store.location
    return f"researcher resume {study_id}{home_option(home)}{database_option(database)}"


def _is_in(store: ExperimentStore, home: Path) -> bool:
    """Return whether a store is the default database of a home."""
    location = store.location
    return "://" not in location and Path(location).resolve() == (home / DATABASE).resolve()


def database_option(location: str | None) -> str:
    """Return the option for a database in a command that is shown; empty without a location.

    The password is left out, because the server takes it from PGPASSWORD or ~/.pgpass.
    """
    if location is None:
        return ""
    server = urlsplit(location).netloc
    account, mark, host = server.rpartition("@")
    shown = location.replace(server, f"{account.partition(':')[0]}{mark}{host}", 1) if mark else location
    return f" --db {shlex.quote(shown)}"
