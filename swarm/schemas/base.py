"""The common parts of all bodies of the control API: base class, field types, states and their legal transitions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

API_PREFIX = "/v1/swarm"

LEASE_HEADER = "x-swarm-lease"
"""The header in which a commander's call gives the fencing token of its lease."""


Identifier = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w.:/@+-]+$")]
"""A name that the caller chooses: letters, digits and `_ . : / @ + -`."""


MAX_REWARD = 1e6
"""The largest absolute reward. Rewards are compared as 32-bit floats, which lose the differences of larger ones."""


Reward = Annotated[FiniteFloat, Field(ge=-MAX_REWARD, le=MAX_REWARD)]
NamedRewards = Annotated[dict[Identifier, Reward], Field(max_length=100)]
"""Several rewards of one episode, by name."""


StopRule = Literal[
    "enough_episodes", "enough_tasks", "enough_non_constant_tasks", "any_client_agrees", "all_clients_agree"
]
"""The rule that makes a batch complete.

`enough_episodes` counts episodes, `enough_tasks` counts tasks with a full group. `enough_non_constant_tasks` counts
only groups whose rewards differ and drops the others (dynamic sampling). `any_client_agrees` needs the agreement of one
client, `all_clients_agree` that of every live client.
"""

GROUPED_RULES: Final[frozenset[StopRule]] = frozenset({"enough_tasks", "enough_non_constant_tasks"})
"""The stop rules under which a batch has a fixed number of groups with a fixed number of episodes each."""


class EngineState(StrEnum):
    """The state of the engine.

    OFFLINE means that no engine runs. FAILED has a reason; a start or a stop leaves it. A running engine goes back to
    BOOTING if its worker dies and a new one takes over. COMPLETE means that all `total_steps` are done: the engine
    serves the model and eval episodes, but no train episodes.
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
    """The state of an episode.

    An episode is RUNNING until it ends, is aborted or expires. A COMPLETED train episode becomes TRAINED or DROPPED
    with its batch. A PREPARED episode has its result and waits for the commit of its transaction, which ends episodes
    of several servers together.
    """

    RUNNING = "running"
    PREPARED = "prepared"
    COMPLETED = "completed"
    ABORTED = "aborted"
    EXPIRED = "expired"
    TRAINED = "trained"
    DROPPED = "dropped"


class Body(BaseModel):
    """The base class of all bodies. An unknown field is refused by name."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str


class ErrorBody(BaseModel):
    """The body of every error response, in the OpenAI shape."""

    error: ErrorDetail
