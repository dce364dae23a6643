"""The store of studies: every read and write, one transaction each."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from experiments_db.stores.digests import DigestStore
from experiments_db.stores.episodes import EpisodeSearch
from experiments_db.stores.findings import FindingStore
from experiments_db.stores.history import HistoryStore
from experiments_db.stores.leases import LeaseStore
from experiments_db.stores.measurements import MeasurementStore
from experiments_db.stores.notebook import NotebookStore
from experiments_db.stores.revisions import RevisionStore
from experiments_db.stores.runs import RunStore
from experiments_db.stores.studies import StudyStore
from experiments_db.stores.trainings import TrainingStore


class ExperimentStore(
    StudyStore,
    RunStore,
    MeasurementStore,
    FindingStore,
    HistoryStore,
    NotebookStore,
    LeaseStore,
    RevisionStore,
    DigestStore,
    TrainingStore,
    EpisodeSearch,
):
    """The store, with all parts on one database. `open_store` makes it; close it, or use it as a context manager.

    Frozen records go in and out. `get_*` raises RecordNotFound, `find_*` gives None; writes that a crashed process may
    repeat are keyed, as their docstrings say. A store may be used from several threads. After a fork, open a new one.
    """

    @property
    def location(self) -> str:
        """The path of a SQLite file, or the URL of a server without its password."""
        return str(self._database)

    def close(self) -> None:
        """Give back the connections; a store made by `under` shares them with the one it was made from."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
