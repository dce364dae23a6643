"""Query strings of the control API, checked like bodies: an unknown parameter is refused by name.

Place in the flow: the edge, beside the routes that read.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from swarm.schemas import EpisodeState
from swarm.types import EpisodeType

MAX_ID = 2**63 - 1
"""What SQLite holds."""

RowId = Annotated[int, Field(ge=0, le=MAX_ID)]
Name = Annotated[str, Field(max_length=500)]


class Query(BaseModel):
    model_config = ConfigDict(extra="forbid")


class EpisodeQuery(Query):
    """Filters must all hold; `cursor` is the `next_cursor` of the page before."""

    state: EpisodeState | None = None
    episode_type: EpisodeType | None = None
    client_id: Name | None = None
    task_id: Name | None = None
    batch_id: Name | None = None
    cursor: Annotated[str, Field(max_length=50)] | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class UsageQuery(Query):
    """Of episodes of this kind."""

    episode_type: EpisodeType = EpisodeType.TRAIN


class MetricsQuery(Query):
    """Steps beyond `after_step`."""

    after_step: RowId = 0
    limit: int = Field(default=1000, ge=1, le=10_000)


class EventQuery(Query):
    """Events beyond `after_id`, or the newest `last`. `stream` asks for server-sent events, as does
    `Accept: text/event-stream`; `limit` is that of a page, and not for `last`."""

    after_id: RowId = 0
    last: int | None = Field(default=None, ge=1, le=1000)
    limit: int = Field(default=100, ge=1, le=1000)
    stream: bool = False


class LaunchQuery(Query):
    """`key` is that of the run, if only one is asked for."""

    key: Name | None = None
    limit: int = Field(default=100, ge=1, le=1000)


class AuditQuery(Query):
    """Entries beyond `after_id`."""

    after_id: RowId = 0
    limit: int = Field(default=100, ge=1, le=1000)


class EvaluationQuery(Query):
    """Evaluations of steps beyond `after_step`."""

    after_step: int = Field(default=-1, ge=-1, le=MAX_ID)
    limit: int = Field(default=1000, ge=1, le=10_000)


class BatchQuery(Query):
    """The newest `limit`."""

    limit: int = Field(default=100, ge=1, le=1000)
