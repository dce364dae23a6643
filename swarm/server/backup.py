"""Backups of a server's home, from which a server resumes the same job, step, weights and half-filled batch."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from swarm.errors import BadRequest, CheckpointError, LedgerDamaged, LedgerError, NotFound, SwarmError
from swarm.ledger import queries
from swarm.ledger.database import connect_writer, hold_lock, open_for_reading, open_unchanged
from swarm.ledger.integrity.control import ClosedFile, ControlFile, control_path, read_mark
from swarm.ledger.integrity.inspection import inspect
from swarm.ledger.integrity.opening import CHECK_LIMIT_S, own_mark, rename
from swarm.server.home import inspect_home, ledger_of, set_aside
from swarm.trainer.checkpoint_files import verify_checkpoint
from swarm.trainer.checkpoints import DiskUse, RunDirectory, runs_of

logger = logging.getLogger(__name__)

ATTEMPTS = 5
"""Attempts to copy a home. A running server may remove a checkpoint during a copy, or return to an earlier step."""

RESTORED = "ledger.restored"
_DRAFT = ".restore.partial"


@dataclass(frozen=True, slots=True)
class Saved:
    """The content of a backup: its acknowledged episodes, its job, and the step that a server resumes from.

    `size` is in bytes.
    """

    directory: Path
    episodes: int
    job: str | None
    step: int
    size: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The effect of a restore. `aside` is the new place of the home's former content; `replaced` describes it."""

    saved: Saved
    home: Path
    aside: Path | None
    replaced: str | None


def back_up(home: Path, target: Path) -> Saved:
    """Write a backup of a home to `target`, which appears only once it is complete and checked.

    The home may be that of a running server, and the backup is a home itself. The check reads the copied ledger again
    and compares each checkpoint with its manifest. For a large file, a manifest records only the size.

    Raise NotFound if the home has no ledger, and BadRequest if `target` is not new or empty. Raise LedgerDamaged if the
    home's ledger is damaged, and LedgerError if the disk fails.
    """
    path = ledger_of(home)
    with _disk_errors(home):
        if not path.is_file() or inspect_home(home, CHECK_LIMIT_S).mark is None:
            raise NotFound(f"{home} holds no ledger: give the --home of a server")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise BadRequest(f"{target} is there already: give a directory that is new or empty")
    draft = target.absolute().with_name(f".{target.absolute().name}.partial")
    with _disk_errors(target):
        try:
            for _ in range(ATTEMPTS):
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
                if _copy(home, draft):
                    break
            else:
                raise LedgerError(f"{home} changed during each of {ATTEMPTS} attempts to copy it: try again")
            _check_copy(path, draft)
            os.sync()
            draft.replace(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return describe(target)


def restore(source: Path, home: Path) -> Restored:
    """Set aside the content of a home and put a backup in its place.

    The restored ledger gets a new id, because it lacks what the original recorded after the backup. Raise NotFound if
    `source` is not a backup, LedgerDamaged if it is incomplete, and LedgerInUse while a server runs in the home.
    """
    if not ledger_of(source).is_file() or read_mark(ledger_of(source)) is None:
        raise NotFound(f"{source} is not a backup: it has no ledger with a control file")
    with _disk_errors(home), closing(hold_lock(ledger_of(home))):
        draft = home / _DRAFT
        shutil.rmtree(draft, ignore_errors=True)
        try:
            shutil.copytree(source, draft, ignore=shutil.ignore_patterns("*.lock", "*-shm"))
            try:
                inspect_home(draft, None)
            except LedgerDamaged as error:
                raise LedgerDamaged(
                    f"the backup {source} is damaged, and nothing was changed: {error.finding}"
                ) from error
            _make_own(ledger_of(draft))
            replaced = _found(home)
            aside = set_aside(home, [path.name for path in draft.iterdir()])
            _move_in(draft, home, aside)
            os.sync()
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return Restored(describe(home), home, aside, replaced)


def _move_in(draft: Path, home: Path, aside: Path | None) -> None:
    """Move the content of the draft into the home. Raise LedgerError, which says where the former content is."""
    # The ledger follows the runs that it names. The control file comes last, because it declares the ledger valid.
    last = [ledger_of(draft), control_path(ledger_of(draft))]
    try:
        for each in (*(path for path in sorted(draft.iterdir()) if path not in last), *last):
            each.rename(home / each.name)
    except OSError as error:
        kept = "" if aside is None else f"; all that was there before is in {aside}"
        raise LedgerError(f"the backup cannot be restored into {home}: {error}{kept}") from error


def describe(home: Path) -> Saved:
    """Return the content of a home that no server writes to. Leave no new file in it. Raise LedgerError."""
    with _disk_errors(home), closing(open_unchanged(ledger_of(home))) as connection:
        connection.row_factory = sqlite3.Row
        episodes = own_mark(connection).acknowledged
        job = queries.latest_job(connection)
        step = 0 if job is None else queries.last_trained_step(connection, job.job_id)
    name = None if job is None else f"{job.resolved.get('project_name')}/{job.resolved.get('experiment_name')}"
    use = DiskUse.of(home)
    return Saved(home, episodes, name, step, use.ledger + use.checkpoints)


def _copy(home: Path, draft: Path) -> bool:
    """Copy the runs and then the ledger. Return False if the home changed in a way that makes the copy wrong.

    By this order the copied ledger knows each copied run, and has the batches that come after its checkpoints.

    The copy is wrong if the weights returned to an earlier step, or if a checkpoint was removed or replaced. It is also
    wrong if a server began to write to a ledger that was closed.
    """
    with closing(_open(ledger_of(home))) as present:
        rewinds = _rewinds(present)
    runs = runs_of(home)
    try:
        for run in runs:
            _copy_run(run, draft / run.path.relative_to(home), is_newest=run.number == runs[-1].number)
        if not all(_is_like(run, draft / run.path.relative_to(home)) for run in runs):
            return False
    except (shutil.Error, FileNotFoundError) as error:
        if all(run.path.is_dir() for run in runs) and not _is_gone(error):
            raise
        logger.info("a checkpoint went away while it was copied")
        return False
    # Read before the ledger is copied, so that the copy has at least what this mark says.
    noted = read_mark(ledger_of(home))
    with closing(_open(ledger_of(home))) as source, closing(sqlite3.connect(ledger_of(draft))) as copy:
        source.backup(copy)
    if noted is not None and noted.closed is not None and read_mark(ledger_of(home)) != noted:
        return False
    if noted is not None:
        # The copy has the same rows as the closed ledger, but not the same bytes.
        ControlFile.create(ledger_of(draft), replace(noted, closed=None)).abandon()
    with closing(open_unchanged(ledger_of(draft))) as copied:
        return _rewinds(copied) == rewinds


def _copy_run(run: RunDirectory, target: Path, *, is_newest: bool) -> None:
    """Copy a run without the files of unfinished writes. Skip what a run that is over no longer needs."""
    needless: set[Path] = set() if is_newest else set(run.checkpoints.superfluous())

    def ignored(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if name.startswith(".step-") or Path(folder, name) in needless]

    shutil.copytree(run.path, target, ignore=ignored)


def _is_like(run: RunDirectory, copy: Path) -> bool:
    """Return whether each copied checkpoint agrees with its manifest, or its origin is damaged as well."""
    for checkpoint in RunDirectory(copy, run.number).checkpoints.newest_first():
        origin = run.path / checkpoint.relative_to(copy)
        if _damage(checkpoint) is None:
            continue
        if not origin.is_dir() or (damage := _damage(origin)) is None:
            logger.info("the copy of %s is not what its manifest says", origin)
            return False
        logger.warning("copied as it is: %s", damage)
    return True


def _damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, or None."""
    try:
        verify_checkpoint(checkpoint)
    except CheckpointError as error:
        return error.message
    return None


def _is_gone(error: OSError) -> bool:
    """Return whether the copy failed because a listed file no longer exists."""
    if isinstance(error, FileNotFoundError):
        return True
    return any(not Path(source).exists() for source, *_ in error.args[0])


def _open(path: Path) -> sqlite3.Connection:
    """Return a connection that leaves no file behind where a server has closed the ledger.

    A server that opens such a ledger says so in the control file before it writes.
    """
    noted = read_mark(path)
    return open_for_reading(path) if noted is None or noted.closed is None else open_unchanged(path)


def _rewinds(connection: sqlite3.Connection) -> int:
    return connection.execute("SELECT count(*) FROM events WHERE kind = 'weights.rewound'").fetchone()[0]


def _check_copy(origin: Path, draft: Path) -> None:
    """Check the whole copy and mark it as closed. Raise LedgerDamaged with the path of the original ledger."""
    path = ledger_of(draft)
    try:
        mark = inspect(path, None).mark
    except LedgerDamaged as error:
        finding = error.finding.replace(str(path), str(origin), 1)
        raise LedgerDamaged(f"no backup was made: {finding}", finding=finding) from error
    assert mark is not None, "it is the copy of a record"
    ControlFile.create(path, mark).close(ClosedFile.of(path, None))


def _make_own(path: Path) -> None:
    """Give the copy a new id, and a control file with this id."""
    with closing(connect_writer(path)) as connection:
        mark = rename(connection, RESTORED)
        # The command has named what it replaced, so receipts of the original say nothing about this ledger.
        connection.execute("DELETE FROM openings")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    ControlFile.create(path, mark).close(ClosedFile.of(path, None))


def _found(home: Path) -> str | None:
    """Return a description of the home's content before it is replaced, or None if there is none."""
    try:
        found = inspect_home(home, CHECK_LIMIT_S).mark
    except SwarmError as error:
        return error.finding if isinstance(error, LedgerDamaged) else error.message
    return None if found is None else f"a ledger with {found.acknowledged:,} acknowledged episodes"


@contextmanager
def _disk_errors(place: Path) -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        with suppress(IndexError, TypeError):
            error = error.args[0][0][2] if isinstance(error, shutil.Error) else error
        raise LedgerError(f"{place} cannot be read or written: {error}") from error
