"""Bodies about evaluations of a run on held-out tasks: which weights are due, who evaluates them, and their scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from swarm.pass_at_k import PassAtK
from swarm.schemas.base import Body, Identifier

MAX_EVALUATION_EPISODES = 100_000
Step = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ClaimEvaluationRequest(Body):
    """The request of POST evaluations/claim: this client evaluates the weights that are due within `wait_s` seconds.

    The claim expires `lease_s` seconds after the client's last call about it.
    """

    client_id: Identifier
    lease_s: float = Field(default=30.0, ge=1, le=3600)
    wait_s: float = Field(default=0.0, ge=0, le=60)


class RenewEvaluationRequest(Body):
    """The request of POST evaluations/heartbeat: the evaluator of this step is alive."""

    client_id: Identifier
    step: Step


class EndEvaluationRequest(Body):
    """The request of POST evaluations/end: the eval episodes of the weights of a step.

    The server reads the rewards of the episodes from its ledger. `failures` counts attempts that got no score. Without
    any episode there is no score, and `reason` says why.
    """

    client_id: Identifier
    step: Step
    episode_ids: list[Identifier] = Field(max_length=MAX_EVALUATION_EPISODES)
    failures: int = Field(default=0, ge=0, le=MAX_EVALUATION_EPISODES)
    reason: str | None = Field(default=None, min_length=1, max_length=1000)


class RecordEvaluationRequest(Body):
    """The request of POST evaluations/record: eval episodes that score the weights of a step, which were not due.

    The server reads the rewards of the episodes from its ledger. `failures` counts attempts that got no score.
    """

    client_id: Identifier
    step: Step
    episode_ids: list[Identifier] = Field(min_length=1, max_length=MAX_EVALUATION_EPISODES)
    failures: int = Field(default=0, ge=0, le=MAX_EVALUATION_EPISODES)


class EvaluationView(Body):
    """The evaluation of the weights after `step` steps on held-out tasks.

    An evaluation that is `abandoned` has no score, for a `reason`. One is `rewound` if older weights were loaded later.
    `episodes` is the number of episodes wanted, `scored` the number of episodes in the score. `mean` is the mean of
    their rewards, and `stderr` its standard error between tasks. `pass_at_k` is empty
    unless tasks had several attempts. Times are seconds since the epoch.
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
    pass_at_k: tuple[PassAtK, ...] = ()

    @property
    def attempts(self) -> int:
        """The number of attempts at each task."""
        return max((each.k for each in self.pass_at_k), default=1)


class ClaimedEvaluation(Body):
    """The evaluation that the caller has claimed, or null while none is due.

    `is_over` is true if no evaluation will be due any more, because the job is complete.
    """

    evaluation: EvaluationView | None
    is_over: bool = False


class EvaluationPage(Body):
    """The answer to GET evaluations: evaluations of the present job, in order of their step."""

    evaluations: list[EvaluationView]
