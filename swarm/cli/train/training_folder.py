"""The folder of a training: its record, its lock for one process at a time, and the way an old one is set aside.

Place in the flow: `swarm train` opens the folder before it starts or calls a server. training_record.py finds the
differences between trainings, and this module reports them. It knows nothing of jobs and scores.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer
from pydantic import ValidationError

from swarm.cli.own_server import await_former_server
from swarm.cli.train.training_record import TrainingRecord, differences
from swarm.config import LEDGER
from swarm.errors import Conflict, LedgerError, Unavailable
from swarm.processes.flush import flush

RECORD = "training.json"
LOCK = "training.lock"


class TrainingFolder:
    """A training's folder that only this process uses. Open it with `open_folder`.

    `beside` is the command-line option that would put another training into a new folder. `former` is the key of the
    training that this one replaces.
    """

    def __init__(self, directory: Path, beside: str, former: str | None = None) -> None:
        self.directory = directory
        self.beside = beside
        self.former = former

    @property
    def _path(self) -> Path:
        return self.directory / RECORD

    def read(self) -> TrainingRecord | None:
        """Return the training of this folder, or None if there is none. Raise Conflict for an unreadable record."""
        try:
            return TrainingRecord.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged or of another version"
            raise self.refusal(f"{self._path} cannot be read: {reason}") from error

    def write(self, record: TrainingRecord) -> None:
        """Replace the record atomically. The new record is durable on return. Raise LedgerError on failure."""
        draft = self._path.with_suffix(".json.new")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(record.model_dump_json(indent=2))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
            flush(self.directory)
        except OSError as error:
            raise LedgerError(f"{self._path} cannot be written: {error.strerror}") from error

    def require_same(self, known: TrainingRecord, wanted: TrainingRecord) -> None:
        """Raise Conflict if the trainings differ. Its message names the differences and the ways to continue."""
        if found := differences(known, wanted):
            raise self.refusal(f"{self.directory} is another training: {'; '.join(found)}")

    def require_no_ledger(self) -> None:
        """Raise Conflict if the folder has a server's ledger, in which case the training's record is missing."""
        if (self.directory / LEDGER).exists():
            raise self.refusal(f"{self.directory} holds the ledger of a server, and no training is on record there")

    def refusal(self, what: str) -> Conflict:
        """Return an error with this description of the problem, and with the ways to begin another training."""
        return Conflict(
            f"{what}. Begin another one beside it with {self.beside}, or in its place with --fresh, which keeps what is"
            f" there as {free_name(self.directory, '.')}"
        )


@contextmanager
def open_folder(directory: Path, beside: str, *, fresh: bool = False) -> Generator[TrainingFolder]:
    """Yield the folder for exclusive use. With `fresh`, set its content aside and yield an empty folder.

    Raise Unavailable while another process trains there, LedgerError if the folder cannot be used.
    """
    with _locked(directory, beside):
        if not fresh or not any((directory / name).exists() for name in (RECORD, LEDGER)):
            yield TrainingFolder(directory, beside)
            return
        former = _key_of(TrainingFolder(directory, beside))
        await_former_server(directory)
        aside = free_name(directory, ".")
        try:
            directory.rename(aside)
        except OSError as error:
            raise LedgerError(f"{directory} cannot be set aside as {aside}: {error.strerror}; use {beside}") from error
        typer.echo(f"the training before this one is kept as {aside}", err=True)
    with _locked(directory, beside):
        yield TrainingFolder(directory, beside, former)


def _key_of(folder: TrainingFolder) -> str | None:
    """Return the key of a folder's training. Return None for an unreadable record, which can still be set aside."""
    with suppress(Conflict):
        known = folder.read()
        return None if known is None else known.key
    return None


@contextmanager
def _locked(directory: Path, beside: str) -> Generator[None]:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK).open("a+", encoding="ascii")
    except OSError as error:
        raise LedgerError(f"the training cannot use {directory}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise Unavailable(
                f"process {holder} trains in {directory}: wait for its end, or train beside it with {beside}"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def free_name(directory: Path, mark: str, first: int = 1) -> Path:
    """Return the first unused path that consists of the folder's name, the mark and a number."""
    number = first
    while (free := directory.with_name(f"{directory.name}{mark}{number}")).exists():
        number += 1
    return free
