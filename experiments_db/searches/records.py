"""The questions and the answers of searches that are not records of a table.

Place in the flow: the explorer builds filters and shows servers. This module knows nothing of SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EpisodeOrder(StrEnum):
    """The order of the episodes that a search finds."""

    NEWEST = "newest step"
    OLDEST = "oldest step"
    HIGHEST = "highest reward"
    LOWEST = "lowest reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFilter:
    """The conditions of a search. None, or an empty text, is no condition. Both ends of a range belong to it.

    `text` is a part of the conversation as it is stored. That is JSON, so it also finds names of roles and tools. For
    ASCII letters, case does not matter.
    """

    kind: str | None = None
    reward_from: float | None = None
    reward_to: float | None = None
    step_from: int | None = None
    step_to: int | None = None
    text: str = ""
    order: EpisodeOrder = EpisodeOrder.NEWEST


@dataclass(frozen=True, slots=True)
class RecordedServer:
    """A server as records show it.

    A server that records its trainings has a `home`. One that records nothing is known by the runs of the study
    `study_id`. `url` is where a study launched runs on it, or None if no study did. `project`, `experiment`, `model`
    and `status` are those of its newest training. `trainings` is their number, and `steps` the sum of their steps.
    """

    home: str | None
    study_id: str | None
    url: str | None
    project: str
    experiment: str
    model: str
    status: str
    trainings: int
    steps: int
    last_seen_at: float
