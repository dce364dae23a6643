"""The files and checkpoints that a run or a training left, with the commands that load them.

A path in the database is not trusted: only below the folder of the database is a path looked at.
"""

from __future__ import annotations

import json
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from experiments_db import FILE_LOGGED, Artifact, JsonObject, RecordedTraining, Run, ServerEvent
from ui import study_files

CHECKPOINT, ADAPTER = "checkpoint", "adapter"
LORA = ("lora_rank", "lora_alpha", "lora_target_modules")
MORE_STEPS = 20


class Presence(StrEnum):
    """The place of a recorded file: where it was recorded, or not. Only below the database's folder is looked."""

    HERE = "here"
    GONE = "gone"
    REMOVED = "removed by the study"
    ELSEWHERE = "not looked at"


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A recorded file or checkpoint. `path` is where it lies, or was recorded if it is not here.

    `job` is that of the training which wrote a checkpoint after `step` steps.
    """

    kind: str
    path: str
    presence: Presence
    size_bytes: int | None = None
    recorded_at: float | None = None
    step: int | None = None
    job: JsonObject = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class LoadingCommand:
    """A way to load a file: what it does, and the text to copy, in bash, Python or YAML."""

    title: str
    text: str


def files_of_run(home: Path | None, run: Run, artifacts: Iterable[Artifact]) -> list[RecordedFile]:
    """Return the checkpoints that a run of a study names, the newest first, and then its other files."""
    removed = set(run.external_ids.get("pruned") or ())
    places: dict[str, int | None] = {}
    # In the middle of a training some are kept to be scored, by step.
    between = run.external_ids.get("checkpoints")
    if isinstance(between, Mapping):
        places |= {str(path): int(step) if str(step).isdecimal() else None for step, path in between.items()}
    if last := run.external_ids.get("checkpoint"):
        places[str(last)] = run.final_weight_version
    checkpoints = [
        _checkpoint(home, path, step, run.job, None, is_removed=path in removed) for path, step in places.items()
    ]
    files = [_file_of_study(home, run.study_id, item) for item in artifacts]
    return [*sorted(checkpoints, key=lambda item: -(item.step or 0)), *files]


def files_of_training(
    home: Path | None, training: RecordedTraining, events: Iterable[ServerEvent]
) -> list[RecordedFile]:
    """Return the checkpoints that a training has kept and the files that were logged, the newest first.

    Copies for crash recovery are left out.
    """
    found: dict[str, RecordedFile] = {}
    for event in events:
        path, step = event.detail.get("path"), event.detail.get("step")
        if event.kind == "checkpoint.saved" and event.detail.get("kept") and isinstance(path, str) and path:
            step = step if isinstance(step, int) else None
            found.setdefault(path, _checkpoint(home, path, step, training.settings, event.recorded_at))
        if event.kind == FILE_LOGGED and isinstance(path, str) and path:
            found[path] = _logged_file(home, path, step if isinstance(step, int) else None, event)
    return sorted(found.values(), key=lambda item: -(item.step or 0))


def commands_of(file: RecordedFile) -> list[LoadingCommand]:
    """Return how a checkpoint or a job is loaded; nothing for another file or a path that cannot be copied."""
    if not file.path.isprintable():
        return []
    if file.kind in (CHECKPOINT, ADAPTER):
        return _commands_of_checkpoint(file, shlex.quote(file.path), json.dumps(file.path, ensure_ascii=False))
    if file.kind == "job":
        return [LoadingCommand("Start a server with this job", f"swarm start --job {shlex.quote(file.path)}")]
    return []


def _commands_of_checkpoint(file: RecordedFile, quoted: str, literal: str) -> list[LoadingCommand]:
    name = f"model-step-{file.step}" if file.step is not None else "model"
    job = {"resume_from": file.path, "total_steps": (file.step or 0) + MORE_STEPS}
    job |= {each: file.job[each] for each in ("engine", "model") if file.job.get(each)}
    job |= {each: file.job[each] for each in LORA if file.kind == ADAPTER and each in file.job}
    library, model = ("transformers", "AutoModelForCausalLM")
    export = f"swarm export {quoted} {name}"
    if file.kind == ADAPTER:
        library, model = ("peft", "AutoPeftModelForCausalLM")
        export += f"\nswarm export {quoted} {name}-merged --merge-lora"
    return [
        LoadingCommand("Export it for transformers and vLLM", export),
        LoadingCommand(
            "Load it in Python", f"from {library} import {model}\n\nmodel = {model}.from_pretrained({literal})"
        ),
        LoadingCommand(
            "Go on from it: a job.yaml for `swarm start --job job.yaml`",
            yaml.safe_dump(job, sort_keys=False, allow_unicode=True, width=10_000).rstrip(),
        ),
    ]


def _checkpoint(
    home: Path | None,
    path: str,
    step: int | None,
    job: JsonObject,
    recorded_at: float | None,
    *,
    is_removed: bool = False,
) -> RecordedFile:
    kind = ADAPTER if job.get("lora_rank") else CHECKPOINT
    folder = locate_folder(home, path)
    if folder is not None:
        return RecordedFile(kind, str(folder), Presence.HERE, _size_of(folder), recorded_at, step, job)
    presence = Presence.REMOVED if is_removed else Presence.GONE if _is_below(home, path) else Presence.ELSEWHERE
    return RecordedFile(kind, path, presence, None, recorded_at, step, job)


def _logged_file(home: Path | None, path: str, step: int | None, event: ServerEvent) -> RecordedFile:
    kind = str(event.detail.get("media_type") or "file")
    found = locate_file(home, path)
    if found is not None:
        return RecordedFile(kind, str(found), Presence.HERE, found.stat().st_size, event.recorded_at, step)
    presence = Presence.GONE if _is_below(home, path) else Presence.ELSEWHERE
    return RecordedFile(kind, path, presence, None, event.recorded_at, step)


def _file_of_study(home: Path | None, study_id: str, item: Artifact) -> RecordedFile:
    found = None if home is None else study_files.locate(home, study_id, item.path)
    presence = Presence.HERE if found else Presence.ELSEWHERE if home is None else Presence.GONE
    return RecordedFile(item.kind, str(found or item.path), presence, item.size_bytes, item.created_at)


def locate_folder(home: Path | None, stored: str) -> Path | None:
    """Return the folder that `stored` names, if it lies below the folder of the database, links followed."""
    found = _locate(home, stored)
    return found if found is not None and found.is_dir() else None


def locate_file(home: Path | None, stored: str) -> Path | None:
    """Return the plain file that `stored` names, if it lies below the folder of the database, links followed."""
    found = _locate(home, stored)
    return found if found is not None and found.is_file() else None


def _locate(home: Path | None, stored: str) -> Path | None:
    if home is None:
        return None
    try:
        found = Path(stored).resolve() if _is_below(home, stored) else None
        return found if found and found.is_relative_to(home.resolve()) and found.exists() else None
    except (OSError, ValueError, RuntimeError):
        # The text is no valid path: it has a null byte, a name too long or a loop of links.
        return None


def _is_below(home: Path | None, stored: str) -> bool:
    """Return whether a path is written as one below the folder of the database. Nothing is looked at."""
    return home is not None and Path(stored).is_relative_to(home) and ".." not in Path(stored).parts


def _size_of(folder: Path) -> int | None:
    """Return the size of the plain files in a folder; a checkpoint has no folders in it."""
    try:
        statuses = [path.lstat() for path in folder.iterdir()]
    except OSError:
        return None
    return sum(status.st_size for status in statuses if stat.S_ISREG(status.st_mode))
