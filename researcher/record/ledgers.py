"""The ledgers of a study's own servers, read once the servers have ended, by a process of the service."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from researcher.errors import ResearchError
from swarm.processes import python_module
from swarm.schemas import EpisodeDetail, EpisodeView


@dataclass(slots=True)
class StoredLedger:
    """The content of one ledger.

    `damage` says why it cannot be read, and `digest` is that of all rows that a compaction leaves. `jobs` are the names
    of its jobs by id. `details` are eval episodes with their turns, if these were asked for.
    """

    path: Path
    digest: str | None = None
    damage: str | None = None
    jobs: dict[int, str] = field(default_factory=dict[int, str])
    episodes: list[EpisodeView] = field(default_factory=list[EpisodeView])
    details: dict[str, EpisodeDetail] = field(default_factory=dict[str, EpisodeDetail])


def read_ledgers(paths: Sequence[Path], *, has_episodes: bool = True, has_turns: bool = False) -> list[StoredLedger]:
    """Return what ledgers have. Raises ResearchError if the process that reads them fails."""
    if not paths:
        return []
    options = [*(["--episodes"] if has_episodes else []), *(["--turns"] if has_turns else [])]
    command = python_module("swarm.recorder.stored", *options, *(str(path) for path in paths))
    found: list[StoredLedger] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            _add(found, json.loads(line))
        reason = process.stderr.read().decode(errors="replace").strip()
    if process.returncode:
        raise ResearchError(f"the ledgers of the study cannot be read: {reason[-300:]}")
    return found


def _add(found: list[StoredLedger], line: dict[str, Any]) -> None:
    match line:
        case {"ledger": path, "damage": reason}:
            found.append(StoredLedger(Path(path), damage=reason))
        case {"ledger": path}:
            jobs = {int(number): name for number, name in line["jobs"].items()}
            found.append(StoredLedger(Path(path), line["digest"], jobs=jobs))
        case {"detail": document}:
            detail = EpisodeDetail.model_validate(document)
            found[-1].details[detail.episode.episode_id] = detail
            found[-1].episodes.append(detail.episode)
        case _:
            found[-1].episodes.append(EpisodeView.model_validate(line["episode"]))
