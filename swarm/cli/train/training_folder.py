"""The folder of a training: its record, one process at a time that trains it, and how an old one is set aside.

Place in the flow: `swarm train` opens one before it starts a server or asks one. training_record.py finds what differs,
here it is said. This module knows nothing of jobs and scores.
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
    """Use it through `open_folder`: then no other process has it. `beside` is the option that would give another
    training a folder of its own, `former` the key of the training whose place this one takes."""

    def __init__(self, directory: Path, beside: str, former: str | None = None) -> None:
        self.directory = directory
        self.beside = beside
        self.former = former

    @property
    def _path(self) -> Path:
        return self.directory / RECORD

    def read(self) -> TrainingRecord | None:
        """The training of this folder; None if there is none. Raises Conflict for a record that nobody can read."""
        try:
            return TrainingRecord.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged or of another version"
            raise self.refusal(f"{self._path} cannot be read: {reason}") from error

    def write(self, record: TrainingRecord) -> None:
        """Put the record in the place of the one before, as a whole or not at all. Durable on return.

        Raises LedgerError if it cannot be written.
        """
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
        """Raises Conflict, which says in one line what differs and the ways on."""
        if found := differences(known, wanted):
            raise self.refusal(f"{self.directory} is another training: {'; '.join(found)}")

    def require_no_ledger(self) -> None:
        """Raises Conflict for a folder with the ledger of a server and without the record of a training."""
        if (self.directory / LEDGER).exists():
            raise self.refusal(f"{self.directory} holds the ledger of a server, and no training is on record there")

    def refusal(self, what: str) -> Conflict:
        return Conflict(
            f"{what}. Begin another one beside it with {self.beside}, or in its place with --fresh, which keeps what is"
            f" there as {free_name(self.directory, '.')}"
        )


@contextmanager
def open_folder(directory: Path, beside: str, *, fresh: bool = False) -> Generator[TrainingFolder]:
    """The folder for this process alone; with `fresh` an empty one, in the place of what was there.

    Raises Unavailable while another process trains there, LedgerError for a folder that cannot be used.
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
    """None also for a record that nobody can read: it may be set aside all the same."""
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
    """The first that nothing has of the folder's name, the mark and a number."""
    number = first
    while (free := directory.with_name(f"{directory.name}{mark}{number}")).exists():
        number += 1
    return free
