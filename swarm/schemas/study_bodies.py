"""Bodies for the researcher: the lease of a server, and launches, which start a run exactly once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from swarm.schemas.base import Body

MAX_LEASE_S = 3600.0

Text = Annotated[str, Field(min_length=1, max_length=500)]
LaunchKey = Annotated[str, Field(min_length=1, max_length=500)]
"""The name that the caller gives to one start of a job: any text."""


class LeaseRequest(Body):
    """The request of PUT lease: only this study may use the server, for `ttl_s` seconds from this call on.

    `holder` identifies a process: the same study and holder renew the lease. `replaces` is the `fence` of a lease whose
    holder is known to be gone. That lease is taken over although it has not expired.
    """

    study_id: Text
    holder: Text
    host: Text
    pid: int = Field(ge=0, le=2**31)
    database: str = Field(default="", max_length=1000)
    ttl_s: float = Field(default=60.0, gt=0, le=MAX_LEASE_S)
    replaces: int | None = Field(default=None, ge=1, le=2**63 - 1)


class LeaseView(Body):
    """The lease of the server. `since` is in seconds since the epoch.

    `fence` is the fencing token: it grows with every new holder. The lease ends in `ends_in_s` seconds unless it is
    renewed.
    """

    study_id: str
    holder: str
    host: str
    pid: int
    database: str
    since: float
    fence: int
    ends_in_s: float


class LaunchRequest(Body):
    """The request of POST launch: start this job as a new run, once per key. `job` has the fields of TrainJob."""

    key: LaunchKey
    job: dict[str, Any]


class LaunchView(Body):
    """The outcome of a launch.

    A run that is `failed` has a `reason`; one that is `replaced` was followed by another run of the server. `step`
    counts its finished steps. `is_new` is true if this call started it. `began_at` is in seconds since the epoch.
    """

    key: str
    outcome: Literal["running", "done", "failed", "stopped", "replaced"]
    step: int
    total_steps: int
    reason: str | None
    began_at: float
    is_new: bool = False


class LaunchPage(Body):
    """The answer to GET launches: the run with the given key, or the newest launched runs, newest first."""

    launches: list[LaunchView]
