"""The folder of a training: its lock, and its record, by which a training is known again."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from swarm.cli.held_out_score import HeldOutScore, HeldOutStep
from swarm.cli.options import training_folder
from swarm.cli.own_server import await_former_server
from swarm.cli.train.measurement import MeasuredTraining
from swarm.config import LEDGER
from swarm.digest import DIGITS
from swarm.environments import Environment
from swarm.environments.registry import files_of
from swarm.errors import Conflict, LedgerError, Unavailable
from swarm.job import LR_OF_BUNDLED_MODELS, TrainJob
from swarm.model_path import directory_of
from swarm.processes.flush import flush

RECORD = "training.json"
LOCK = "training.lock"
PLAIN_NAME = "plain"
READ_WHOLE_BYTES = 32 * 2**20
END_BYTES = 2**20
"""Bytes of a large model file that its digest reads at each end. A training changes all weights, so this is enough."""
SHOWN_FILES = 3
SHOWN_CHARACTERS = 60


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EnvironmentOnRecord(_Part):
    """The environment of a training, with the name that the user gave.

    `files` has a digest for each file of a user's environment. They show which file has changed.
    """

    name: str
    digest: str
    files: dict[str, str] = Field(default_factory=dict[str, str])


class ProgramOnRecord(_Part):
    name: str
    digest: str


class TrainingRecord(_Part):
    """A training as it is recorded in its folder.

    `key` is the launch key of its run on the server. A training on demonstrations alone has no `environment` and no
    `program`. `model_files` is the digest of a model directory. It is None for a
    bundled model or a model on another machine. `base_score` is measured before the first step, and None until then.
    `base_score_remembered_from` is when an earlier training measured it, and None if this one did. `final_scores` are
    those of the weights at the end of a finished training, in the order of their measurement. `took` is what the newest
    command on it used, if that trained steps on a server of its own.
    """

    key: str
    job: TrainJob
    environment: EnvironmentOnRecord | None
    program: ProgramOnRecord | None
    model_files: str | None = None
    base_score: HeldOutScore | None = None
    base_score_remembered_from: datetime | None = None
    final_scores: tuple[HeldOutStep, ...] = ()
    took: MeasuredTraining | None = None


def read_record(path: Path) -> TrainingRecord | None:
    """Return the record in a file, or None if it is damaged or of another version."""
    with suppress(OSError, ValidationError):
        return TrainingRecord.model_validate_json(path.read_bytes())
    return None


def new_record(
    job: TrainJob, name: str | None = None, environment: Environment | None = None, program: Path | None = None
) -> TrainingRecord:
    """Return the record of a new training. Without a `program`, it uses the plain program on its environment."""
    played, playing = None, None
    if name is not None and environment is not None:
        files = {known_as: _digest_file(path) for known_as, path in files_of(name).items()}
        played = EnvironmentOnRecord(name=name, digest=environment.digest, files=files)
        source = PLAIN_NAME.encode() if program is None else program.read_bytes()
        playing = ProgramOnRecord(name=PLAIN_NAME if program is None else program.name, digest=_digest(source))
    return TrainingRecord(
        key=f"{job.experiment_name}/{uuid4().hex}",
        job=job.resolve(),
        environment=played,
        program=playing,
        model_files=_digest_model(job.model),
    )


def differences(known: TrainingRecord, wanted: TrainingRecord) -> list[str]:
    """Return the differences that make `wanted` another training, in words.

    A larger `total_steps` is no difference, unless the learning rate has a schedule.
    """
    found: list[str] = []
    if known.environment is None or wanted.environment is None:
        if known.environment != wanted.environment:
            before, now = (each.environment.name if each.environment else "none" for each in (known, wanted))
            found.append(f"environment {before} -> {now}")
    elif known.environment.digest != wanted.environment.digest:
        found += _differences_of_environment(known.environment, wanted.environment)
    if known.program is not None and wanted.program is not None and known.program.digest != wanted.program.digest:
        before, now = known.program.name, wanted.program.name
        found.append(f"the program {now} was changed" if before == now else f"program {before} -> {now}")
    if known.job.model == wanted.job.model and known.model_files != wanted.model_files:
        found.append(f"the files of the model {wanted.job.model} were changed")
    return found + _differences_of_job(known.job, wanted.job)


def _differences_of_job(known: TrainJob, wanted: TrainJob) -> list[str]:
    if wanted.means(known) or wanted.extends(known):
        return []
    before, now = known.resolve().model_dump(mode="json"), wanted.resolve().model_dump(mode="json")
    found = [
        f"{name} {_shown(before[name])} -> {_shown(now[name])}"
        for name in TrainJob.model_fields
        if before[name] != now[name] and not (name == "total_steps" and _is_longer(before[name], now[name]))
    ]
    # If nothing else differs, the learning rate has a schedule over `total_steps`, so more steps change every step.
    return found or [
        f"total_steps {before['total_steps']} -> {now['total_steps']}, which changes the learning rate of every step"
    ]


def _is_longer(before: int | None, now: int | None) -> bool:
    return before is not None and (now is None or now > before)


def _differences_of_environment(known: EnvironmentOnRecord, wanted: EnvironmentOnRecord) -> list[str]:
    found = [] if known.name == wanted.name else [f"environment {known.name} -> {wanted.name}"]
    # If only one of the environments has files, the difference of the names is enough.
    names = sorted(known.files.keys() | wanted.files.keys()) if known.files and wanted.files else []
    changed = [name for name in names if known.files.get(name) != wanted.files.get(name)]
    found += [_change_of(name, known.files, wanted.files) for name in changed[:SHOWN_FILES]]
    if len(changed) > SHOWN_FILES:
        found.append(f"{len(changed) - SHOWN_FILES} more files of the environment")
    return found or [f"the tasks or grades of the environment {wanted.name} were changed"]


def _change_of(name: str, known: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    kind = {"grade.py": "grader", "environment.toml": "settings file"}.get(name)
    if kind is None:
        is_tasks = Path(name).suffix in {".jsonl", ".parquet"} or name == "tasks.py"
        kind = "task file" if is_tasks else "file"
    became = "is new" if name not in known else "is gone" if name not in wanted else "was changed"
    return f"the {kind} {name} {became}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _digest_model(model: str) -> str | None:
    directory = directory_of(model)
    if model in LR_OF_BUNDLED_MODELS or not directory.is_dir():
        return None
    return digest_of_files(files_below(directory), whole_up_to=READ_WHOLE_BYTES)


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def digest_of_files(files: Sequence[Path], *, whole_up_to: int) -> str:
    """Return the digest of the content of files. Of a file with more than `whole_up_to` bytes only the ends count."""
    whole = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        whole.update(f"{path.name}\n{size}\n".encode())
        with path.open("rb") as file:
            if size <= whole_up_to:
                whole.update(hashlib.file_digest(file, "sha256").digest())
                continue
            whole.update(file.read(END_BYTES))
            file.seek(size - END_BYTES)
            whole.update(file.read(END_BYTES))
    return whole.hexdigest()[:DIGITS]


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


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
def open_named_folder(home: Path | None, name: str, *, fresh: bool) -> Generator[TrainingFolder]:
    """Yield the folder `home`, by default that of the training's name, for exclusive use, as `open_folder` does."""
    directory = home or training_folder(name)
    other = free_name(directory, "-", first=2)
    with open_folder(directory, f"--name {other.name}" if home is None else f"--home {other}", fresh=fresh) as folder:
        yield folder


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
