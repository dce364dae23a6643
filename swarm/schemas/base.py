"""What all bodies of the control API are made of: their base, names and rewards, the states and the legal moves.

Place in the flow: the modules beside this one build on it. It knows no route.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

API_PREFIX = "/v1/swarm"

LEASE_HEADER = "x-swarm-lease"
"""With it a commander's call names the lease that it is made under, by its fence."""


Identifier = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.:/@+-]+$")]
"""A caller-chosen name: letters, digits and `_ . : / @ + -`."""


MAX_REWARD = 1e6
"""Rewards are compared in 32-bit floats; beyond this, differences between them are lost."""


Reward = Annotated[FiniteFloat, Field(ge=-MAX_REWARD, le=MAX_REWARD)]
NamedRewards = Annotated[dict[Identifier, Reward], Field(max_length=100)]
"""Rewards of one episode by what they are for."""


StopRule = Literal[
    "enough_episodes", "enough_tasks", "enough_non_constant_tasks", "any_client_agrees", "all_clients_agree"
]
"""When a batch is complete: so many episodes; so many tasks with a full group; so many whose rewards differ (dynamic
sampling, the others are dropped); as soon as one client says so; as soon as every client that is alive says so."""

GROUPED_RULES: Final[frozenset[StopRule]] = frozenset({"enough_tasks", "enough_non_constant_tasks"})
"""Those by which a batch is so many groups of so many episodes each."""


class EngineState(StrEnum):
    """What the server is doing. OFFLINE has no job; FAILED carries a reason and is left by start or stop.

    A running engine goes back to BOOTING when its worker died and another one takes over. COMPLETE has done the
    `total_steps` of its job: it serves the model and eval episodes, and takes no train episodes.
    """

    OFFLINE = "OFFLINE"
    BOOTING = "BOOTING"
    ROLLING = "ROLLING"
    DRAINING = "DRAINING"
    TRAINING = "TRAINING"
    EXPORTING = "EXPORTING"
    COMPLETE = "COMPLETE"
    FAILED = "FAILED"


LEGAL_ENGINE_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.OFFLINE: frozenset({EngineState.BOOTING}),
    EngineState.BOOTING: frozenset(
        {EngineState.ROLLING, EngineState.COMPLETE, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.ROLLING: frozenset(
        {
            EngineState.DRAINING,
            EngineState.EXPORTING,
            EngineState.COMPLETE,
            EngineState.BOOTING,
            EngineState.FAILED,
            EngineState.OFFLINE,
        }
    ),
    EngineState.DRAINING: frozenset(
        {
            EngineState.TRAINING,
            EngineState.ROLLING,
            EngineState.COMPLETE,
            EngineState.BOOTING,
            EngineState.FAILED,
            EngineState.OFFLINE,
        }
    ),
    EngineState.TRAINING: frozenset(
        {
            EngineState.ROLLING,
            EngineState.EXPORTING,
            EngineState.COMPLETE,
            EngineState.BOOTING,
            EngineState.FAILED,
            EngineState.OFFLINE,
        }
    ),
    EngineState.EXPORTING: frozenset(
        {EngineState.ROLLING, EngineState.COMPLETE, EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.COMPLETE: frozenset(
        {EngineState.ROLLING, EngineState.EXPORTING, EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.FAILED: frozenset({EngineState.BOOTING, EngineState.OFFLINE}),
}


class EpisodeState(StrEnum):
    """RUNNING until it ends, is aborted or expires; an ended train episode is TRAINED or DROPPED with its batch.

    PREPARED episodes have their result and wait for the transaction that ends them together with those of other
    servers.
    """

    RUNNING = "running"
    PREPARED = "prepared"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    TRAINED = "trained"
    DROPPED = "dropped"


class Body(BaseModel):
    """Base of all bodies: unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """The body of every error response, in the OpenAI shape."""

    error: ErrorDetail
