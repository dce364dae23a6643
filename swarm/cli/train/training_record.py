"""The record of a training: its job, the digests of its environment and program, and its base score.

Place in the flow: `swarm train` compares its arguments with the record in the training's folder (training_folder.py).
It resumes only if job, environment and program are all the same. The module knows nothing of servers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field

from swarm.cli.held_out_score import HeldOutScore
from swarm.digest import DIGITS
from swarm.environments import Environment
from swarm.environments.registry import files_of
from swarm.job import LR_OF_BUNDLED_MODELS, TrainJob

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

    `key` is the launch key of its run on the server. `model_files` is the digest of a model directory. It is None for a
    bundled model or a model on another machine. `base_score` is measured before the first step, and None until then.
    `base_score_remembered_from` is when an earlier training measured it, and None if this one did.
    """

    key: str
    job: TrainJob
    environment: EnvironmentOnRecord
    program: ProgramOnRecord
    model_files: str | None = None
    base_score: HeldOutScore | None = None
    base_score_remembered_from: datetime | None = None


def new_record(job: TrainJob, name: str, environment: Environment, program: Path | None) -> TrainingRecord:
    """Return the record of a new training. Without a `program`, it uses the plain program."""
    files = {known_as: _digest(path.read_bytes()) for known_as, path in files_of(name).items()}
    source = PLAIN_NAME.encode() if program is None else program.read_bytes()
    return TrainingRecord(
        key=f"{job.experiment_name}/{uuid4().hex}",
        job=job.resolve(),
        environment=EnvironmentOnRecord(name=name, digest=environment.digest, files=files),
        program=ProgramOnRecord(name=PLAIN_NAME if program is None else program.name, digest=_digest(source)),
        model_files=_digest_model(job.model),
    )


def differences(known: TrainingRecord, wanted: TrainingRecord) -> list[str]:
    """Return the differences that make `wanted` another training, in words.

    A larger `total_steps` is no difference, unless the learning rate has a schedule.
    """
    found: list[str] = []
    if known.environment.digest != wanted.environment.digest:
        found += _differences_of_environment(known.environment, wanted.environment)
    if known.program.digest != wanted.program.digest:
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
    directory = Path(model).expanduser()
    if model in LR_OF_BUNDLED_MODELS or not directory.is_dir():
        return None
    whole = hashlib.sha256()
    for path in sorted(each for each in directory.iterdir() if each.is_file()):
        size = path.stat().st_size
        whole.update(f"{path.name}\n{size}\n".encode())
        with path.open("rb") as file:
            if size <= READ_WHOLE_BYTES:
                whole.update(file.read())
                continue
            whole.update(file.read(END_BYTES))
            file.seek(size - END_BYTES)
            whole.update(file.read(END_BYTES))
    return whole.hexdigest()[:DIGITS]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]
