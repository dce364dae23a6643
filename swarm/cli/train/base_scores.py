"""The base scores of earlier trainings, so that an unchanged model is not measured again on an unchanged environment.

Place in the flow: `swarm train` looks here before it measures a base score, and stores the one that it measures. Each
score is a file that is named by the digest of everything that decides the score. The module knows nothing of servers.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel, ConfigDict, ValidationError

from swarm import __version__
from swarm.cli.held_out_score import HeldOutScore
from swarm.cli.train.training_record import TrainingRecord
from swarm.digest import DIGITS, digest_of
from swarm.errors import EngineFailure
from swarm.job import NOT_OF_SAMPLING
from swarm.model_path import resolve_model
from swarm.processes.flush import flush
from swarm.program.training import EVAL_TEMPERATURE

FOLDER = "base-scores"
"""The folder of the scores, beside the folders of the trainings."""
DIGESTED_BYTES = 2**30
"""The size up to which a model is read for its digest, which takes about a second. A larger one is measured anew."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BaseScoreKey(_Part):
    """Everything that decides a base score. `model`, `environment` and `program` are digests of their content.

    `settings` are those of the job that may change what the untrained model says, its seed among them. The model counts
    by its content.
    """

    version: str
    model: str
    environment_name: str
    environment: str
    program: str
    episodes: int
    temperature: float
    settings: dict[str, Any]


class StoredBaseScore(_Part):
    """A base score with its key and the time of its measurement."""

    measured_at: datetime
    score: HeldOutScore
    key: BaseScoreKey


class RememberedScore:
    """The place of one base score, which may have been stored there by an earlier training.

    A file that cannot be read or written costs a measurement, and ends no training.
    """

    def __init__(self, folder: Path, key: BaseScoreKey) -> None:
        self._key = key
        self._path = folder / f"{digest_of(key.model_dump(mode='json'))}.json"

    def find(self) -> StoredBaseScore | None:
        """Return the stored score, or None if there is none. Report a file that cannot be read."""
        try:
            stored = StoredBaseScore.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is damaged or of another version"
            typer.echo(f"swarm: {self._path} cannot be read: {reason}; the score is measured anew", err=True)
            return None
        return stored if stored.key == self._key and _is_whole(stored.score) else None

    def keep(self, score: HeldOutScore) -> None:
        """Store a score that was just measured, if it is whole. Report a file that cannot be written."""
        if not _is_whole(score):
            return
        stored = StoredBaseScore(measured_at=datetime.now(UTC), score=score, key=self._key)
        try:
            self._path.parent.mkdir(exist_ok=True)
            self._replace(stored.model_dump_json(indent=2))
        except OSError as error:
            reason = f"{self._path} cannot be written: {error.strerror}"
            typer.echo(f"swarm: {reason}; the next training measures the score anew", err=True)

    def _replace(self, text: str) -> None:
        """Replace the file atomically. Two trainings may do so at the same time, each with a draft of its own."""
        descriptor, draft = tempfile.mkstemp(suffix=".new", dir=self._path.parent)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
        flush(self._path.parent)


def remembered_score(trainings: Path, record: TrainingRecord, episodes: int) -> RememberedScore | None:
    """Return the place of the base score of a training. Return None for a model that is too large to be digested.

    `trainings` is the folder that has the folders of the trainings.
    """
    model = _digest_of_model(record.job.model)
    if model is None:
        return None
    key = BaseScoreKey(
        version=__version__,
        model=model,
        environment_name=record.environment.name,
        environment=record.environment.digest,
        program=record.program.digest,
        episodes=episodes,
        temperature=EVAL_TEMPERATURE,
        settings=record.job.model_dump(mode="json", exclude={*NOT_OF_SAMPLING, "model"}),
    )
    return RememberedScore(trainings / FOLDER, key)


def _is_whole(score: HeldOutScore) -> bool:
    """Return whether every attempt was scored, and none was broken by the program. No other score is kept."""
    return score.mean is not None and not score.failures and not score.broken


def _digest_of_model(name: str) -> str | None:
    """Return the digest of all files of a model. Return None if they are too large, or cannot be read here."""
    try:
        files = sorted(path for path in resolve_model(name).rglob("*") if path.is_file())
        if sum(path.stat().st_size for path in files) > DIGESTED_BYTES:
            return None
        whole = hashlib.sha256()
        for path in files:
            whole.update(f"{path.name}\n{path.stat().st_size}\n".encode())
            with path.open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
    except (OSError, EngineFailure):
        return None
    return whole.hexdigest()[:DIGITS]
