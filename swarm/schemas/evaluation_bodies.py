"""Bodies about held-out scores of a run: which weights are due, who scores them, and what they scored.

Place in the flow: the gateway's routes of evaluations, and the client's calls of them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swarm.schemas.base import Body, Identifier

MAX_EVALUATION_EPISODES = 100_000
Step = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ClaimEvaluationRequest(Body):
    """POST evaluations/claim: this client scores the weights that are due, now or within `wait_s` seconds. It keeps the
    evaluation for `lease_s` seconds from its last sign of life."""

    client_id: Identifier
    lease_s: float = Field(default=30.0, ge=1, le=3600)
    wait_s: float = Field(default=0.0, ge=0, le=60)


class RenewEvaluationRequest(Body):
    """POST evaluations/heartbeat: the evaluator of a step lives."""

    client_id: Identifier
    step: Step


class EndEvaluationRequest(Body):
    """POST evaluations/end: the eval episodes that score the weights of a step; the server reads their rewards
    from its record. `failures` counts attempts that brought none. Without episodes there is no score, for a `reason`.
    """

    client_id: Identifier
    step: Step
    episode_ids: list[Identifier] = Field(max_length=MAX_EVALUATION_EPISODES)
    failures: int = Field(default=0, ge=0, le=MAX_EVALUATION_EPISODES)
    reason: str | None = Field(default=None, min_length=1, max_length=1000)


class EvaluationView(Body):
    """The held-out score of the weights after `step` steps. `state` is due, running, done, abandoned (no score came of
    it, for a `reason`), or rewound if older weights were loaded since.

    `episodes` is how many are wanted, `scored` how many there are; `mean` is that of their rewards, with its `stderr`
    between tasks. Times are seconds since the epoch.
    """

    step: int
    weight_version: int
    state: Literal["due", "running", "done", "abandoned", "rewound"]
    episodes: int
    due_at: float
    evaluator: str | None = None
    claimed_at: float | None = None
    ended_at: float | None = None
    reason: str | None = None
    scored: int | None = None
    successes: int | None = None
    failures: int | None = None
    mean: float | None = None
    stderr: float | None = None


class ClaimedEvaluation(Body):
    """What the caller is to score; null while nothing is due. `is_over`: nothing will be, the job is complete."""

    evaluation: EvaluationView | None
    is_over: bool = False


class EvaluationPage(Body):
    """GET evaluations?after_step=N: of the present job, by step."""

    evaluations: list[EvaluationView]
