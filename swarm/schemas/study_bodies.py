"""Bodies of what a researcher asks of a server beyond training: its lease, and runs that are started only once.

Place in the flow: the gateway's study routes, and the client's calls of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from swarm.schemas.base import Body

MAX_LEASE_S = 3600.0

Text = Annotated[str, Field(min_length=1, max_length=500)]
LaunchKey = Annotated[str, Field(min_length=1, max_length=500)]
"""A name that its caller gives to one start of a job: any text."""


class LeaseRequest(Body):
    """PUT lease: the sole use of the server by one study, for `ttl_s` seconds from this call on.

    `holder` tells processes apart: the same study and holder again renew the lease. `replaces` is the fence of a lease
    whose holder is known to be gone; it is taken over although it has not run out.
    """

    study_id: Text
    holder: Text
    host: Text
    pid: int = Field(ge=0, le=2**31)
    database: str = Field(default="", max_length=1000)
    ttl_s: float = Field(default=60.0, gt=0, le=MAX_LEASE_S)
    replaces: int | None = Field(default=None, ge=1, le=2**63 - 1)


class LeaseView(Body):
    """Who uses the server, since when, in seconds since the epoch. `fence` grows with every holder; `ends_in_s` is what
    is left unless the lease is renewed."""

    study_id: str
    holder: str
    host: str
    pid: int
    database: str
    since: float
    fence: int
    ends_in_s: float


class LaunchRequest(Body):
    """POST launch: start this job as a new run, once. `job` is checked by TrainJob."""

    key: LaunchKey
    job: dict[str, Any]


class LaunchView(Body):
    """What became of a launch: its run is `running`, `done`, `failed` for a `reason`, `stopped`, or `replaced` by a
    later run of the server. `step` counts its finished steps; `is_new` says that this very call has started it."""

    key: str
    outcome: Literal["running", "done", "failed", "stopped", "replaced"]
    step: int
    total_steps: int
    reason: str | None
    began_at: float
    is_new: bool = False


class LaunchPage(Body):
    """GET launches?key=K: what the server knows of that run, or of the newest ones, newest first."""

    launches: list[LaunchView]
