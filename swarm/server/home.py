"""The home of a server, its directory with the ledger and the runs. A ledger opens only if it agrees with the runs."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from swarm.config import LEDGER
from swarm.errors import BadRequest, LedgerDamaged, LedgerError
from swarm.ledger import Ledger, queries
from swarm.ledger.database import hold_lock, open_unchanged
from swarm.ledger.integrity.control import control_path
from swarm.ledger.integrity.inspection import NOT_ON_RECORD, Inspected, inspect
from swarm.ledger.integrity.place import name_others
from swarm.trainer.checkpoints import RunDirectory, run_directory, runs_of, step_of

logger = logging.getLogger(__name__)

SET_ASIDE = "set-aside"


def ledger_of(home: Path) -> Path:
    """Return the path of a home's ledger."""
    return home / LEDGER


def open_home(home: Path, *, is_new_wanted: bool = False) -> Ledger:
    """Open the ledger of a home, or create one if the home is empty.

    With `is_new_wanted`, set a damaged ledger aside with its runs and create a new one. Raise LedgerInUse,
    LedgerDamaged and LedgerError. Raise BadRequest if a new ledger is wanted but the present one is undamaged.
    """
    path = ledger_of(home)
    lock = hold_lock(path)
    try:
        if is_new_wanted:
            _set_aside_unless_sound(home)
    except (sqlite3.Error, OSError) as error:
        lock.close()
        raise LedgerError(f"{path} cannot be set aside ({error}): check that its directory can be written") from error
    except BaseException:
        lock.close()
        raise
    return Ledger.open(path, lock, lambda: _require_to_fit(home))


def set_aside(home: Path, others: Iterable[str] = ()) -> Path | None:
    """Move the content of a home to a new folder inside it, and return the folder. Return None if there was nothing.

    The new folder is a home itself. It gets the ledger, the control file, all runs, and the entries named in `others`.
    The caller must hold the lock of the ledger. Raise OSError.
    """
    path = ledger_of(home)
    copies = [each for each in home.glob(f"{path.name}*") if each.suffix != ".lock"]
    folders = {run.path.parent.parent for run in runs_of(home)}
    folders |= {home / name for name in others if (home / name).exists()}
    if not copies and not folders:
        return None
    place = home / f"{SET_ASIDE}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1_000_000:06d}"
    place.mkdir()
    # The control file moves last: after a crash in between, it reveals that the ledger is missing.
    for each in sorted({*copies, *folders}, key=lambda each: each == control_path(path)):
        each.rename(place / each.name)
    logger.warning("what was in %s is in %s now", home, place)
    return place


def inspect_home(home: Path, limit_s: float | None) -> Inspected:
    """Inspect the ledger and the runs of a home without changing them or leaving files behind.

    Raise LedgerDamaged, LedgerError, sqlite3.Error, OSError.
    """
    inspected = inspect(ledger_of(home), limit_s)
    _require_to_fit(home)
    return inspected


def _set_aside_unless_sound(home: Path) -> None:
    path = ledger_of(home)
    try:
        found = inspect_home(home, None)
    except LedgerDamaged as error:
        logger.warning("%s", error.finding)
        set_aside(home)
        return
    if found.mark is not None:
        raise BadRequest(
            f"{path} is sound: nothing is set aside; start without --new-ledger, or in another --home",
            param="new_ledger",
        )


def _require_to_fit(home: Path) -> None:
    """Raise LedgerDamaged unless the ledger knows each run of the home and each step that has a checkpoint.

    A ledger that exists must have passed its own check before.
    """
    runs = runs_of(home)
    path = ledger_of(home)
    if not runs:
        return
    if not path.exists() or path.stat().st_size == 0:
        state = "is empty" if path.exists() else "is missing"
        raise LedgerDamaged.of(path, f"{state}, but there is {_shown(runs)}", NOT_ON_RECORD, name_others(path))
    known = _steps_of_runs(home)
    strange = [run for run in runs if run.path not in known]
    if strange:
        state = f"is the ledger of another directory, or an older copy: it does not know {_shown(strange)}"
        raise LedgerDamaged.of(path, state, NOT_ON_RECORD)
    for run in runs:
        newest = max((step_of(each) or 0 for each in run.checkpoints.newest_first()), default=0)
        if newest > known[run.path]:
            steps = f"it ends at step {known[run.path]} of {_shown([run])}, which has a checkpoint of step {newest}"
            raise LedgerDamaged.of(path, f"is an older copy: {steps}", NOT_ON_RECORD)


def _steps_of_runs(home: Path) -> Mapping[Path, int]:
    """Return the last recorded step of each run, by the folder of the run."""
    with closing(open_unchanged(ledger_of(home))) as connection:
        found: dict[Path, int] = {}
        for job_id, resolved in connection.execute("SELECT job_id, resolved FROM jobs").fetchall():
            names = json.loads(resolved)
            if "project_name" in names:
                folder = run_directory(home, names["project_name"], names["experiment_name"], job_id)
                found[folder] = queries.last_trained_step(connection, job_id)
        return found


def _shown(runs: list[RunDirectory]) -> str:
    last = runs[-1]
    return f"{last.name}/{last.path.name}" + (f" and {len(runs) - 1} other runs" if len(runs) > 1 else "")
