"""The opening of a store, which loads SQLAlchemy only when a store is opened."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments_db.store import ExperimentStore


def open_store(
    location: str | Path, *, read_only: bool = False, clock: Callable[[], float] = time.time
) -> ExperimentStore:
    """Open the store at `location`: the path of a SQLite file, or a postgresql:// URL.

    For writing, a missing database is created, one process at a time. For reading, nothing is changed. `clock` gives
    seconds since the epoch.

    Raises RecordNotFound (reading what is not there), SchemaMismatch, NotAStore, InvalidRecord (no valid location) or
    StoreUnavailable.
    """
    from experiments_db.engine import connect
    from experiments_db.schema import prepare
    from experiments_db.store import ExperimentStore

    database = connect(location, read_only=read_only)
    try:
        prepare(database)
    except BaseException:
        database.close()
        raise
    return ExperimentStore(database, clock=clock)
