"""The common parts of all bodies of the control API: base class, field types, states and their legal transitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, Literal

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


@dataclass(frozen=True, slots=True)
class StopRuleTraits:
    """The traits of a rule that makes a batch complete; `complete_when` is for readers.

    The rule counts episodes or tasks, or else a batch is complete when one of its clients agrees, or every live one.
    """

    complete_when: str
    unit: Literal["episodes", "tasks"] | None = None
    agreeing: Literal["any", "all"] | None = None
    needs_contrast: bool = False
    """True if groups whose rewards are all equal do not count (dynamic sampling)."""

    @property
    def is_grouped(self) -> bool:
        """True if a batch has a fixed number of groups with a fixed number of episodes each."""
        return self.unit == "tasks"


STOP_RULES: Final[Mapping[str, StopRuleTraits]] = MappingProxyType(
    {
        "enough_tasks": StopRuleTraits("`batch_size` groups are done", unit="tasks"),
        "enough_non_constant_tasks": StopRuleTraits(
            "the same, without groups whose rewards are all equal (dynamic sampling)", unit="tasks", needs_contrast=True
        ),
        "enough_episodes": StopRuleTraits(
            "`batch_size * num_repeat` episodes are admitted, of whatever tasks", unit="episodes"
        ),
        "any_client_agrees": StopRuleTraits("one client says so", agreeing="any"),
        "all_clients_agree": StopRuleTraits("every client that is alive says so", agreeing="all"),
    }
)

if TYPE_CHECKING:
    StopRule = str
else:
    StopRule = Literal[tuple(STOP_RULES)]
"""The type of a job's field `stop_rule`. Its values are the names in the table, which type checkers cannot read."""


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


_ENDS = frozenset({EngineState.BOOTING, EngineState.FAILED, EngineState.OFFLINE})
"""The states to which a running engine may move at any time."""

LEGAL_ENGINE_MOVES: dict[EngineState, frozenset[EngineState]] = {
    EngineState.OFFLINE: frozenset({EngineState.BOOTING}),
    EngineState.BOOTING: frozenset(
        {EngineState.ROLLING, EngineState.COMPLETE, EngineState.FAILED, EngineState.OFFLINE}
    ),
    EngineState.ROLLING: _ENDS | {EngineState.DRAINING, EngineState.EXPORTING, EngineState.COMPLETE},
    EngineState.DRAINING: _ENDS | {EngineState.TRAINING, EngineState.ROLLING, EngineState.COMPLETE},
    EngineState.TRAINING: _ENDS | {EngineState.ROLLING, EngineState.EXPORTING, EngineState.COMPLETE},
    EngineState.EXPORTING: _ENDS | {EngineState.ROLLING, EngineState.COMPLETE},
    EngineState.COMPLETE: _ENDS | {EngineState.ROLLING, EngineState.EXPORTING},
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
