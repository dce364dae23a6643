"""The query strings of the control API. Like bodies, they are checked: an unknown parameter is refused by name."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from swarm.schemas import EpisodeState
from swarm.types import EpisodeType

MAX_ID = 2**63 - 1
"""The largest integer of SQLite."""

RowId = Annotated[int, Field(ge=0, le=MAX_ID)]
Name = Annotated[str, Field(max_length=500)]


class Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EpisodeQuery(Query):
    """The query of GET episodes. An episode must match all filters. `cursor` is the last page's `next_cursor`."""

    state: EpisodeState | None = None
    episode_type: EpisodeType | None = None
    client_id: Name | None = None
    task_id: Name | None = None
    batch_id: Name | None = None
    cursor: Annotated[str, Field(max_length=50)] | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class UsageQuery(Query):
    """The query of GET usage: the type of the episodes to sum up."""

    episode_type: EpisodeType = EpisodeType.TRAIN


class MetricsQuery(Query):
    """The query of GET metrics: steps after `after_step`."""

    after_step: RowId = 0
    limit: int = Field(default=1000, ge=1, le=10_000)


class EventQuery(Query):
    """The query of GET events: events after `after_id`, or the newest `last` events.

    `stream` asks for server-sent events, as does the header `Accept: text/event-stream`. `limit` is the size of a page.
    It cannot be combined with `last`.
    """

    after_id: RowId = 0
    last: int | None = Field(default=None, ge=1, le=1000)
    limit: int = Field(default=100, ge=1, le=1000)
    stream: bool = False


class LaunchQuery(Query):
    """The query of GET launches: the newest launches, or only the one with this `key`."""

    key: Name | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class AuditQuery(Query):
    """The query of GET audit: entries after `after_id`."""

    after_id: RowId = 0
    limit: int = Field(default=100, ge=1, le=1000)


class EvaluationQuery(Query):
    """The query of GET evaluations: evaluations of steps after `after_step`."""

    after_step: int = Field(default=-1, ge=-1, le=MAX_ID)
    limit: int = Field(default=1000, ge=1, le=10_000)


class BatchQuery(Query):
    """The query of GET batches: the newest `limit` batches."""

    limit: int = Field(default=100, ge=1, le=1000)
