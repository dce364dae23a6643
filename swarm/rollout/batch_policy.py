"""Live changes of the batch policy: merged with what is in force, checked as a whole, rendered.

Place in the flow: between the policy route and the pool. Pure functions; the rules of a policy are those of the job.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from swarm.batch.policy import BatchPolicy
from swarm.config import TrainJob, build_job
from swarm.errors import BadRequest, JobInvalid
from swarm.schemas import BatchPolicyView, UpdateBatchPolicyRequest


def merge_policy(job: TrainJob, present: BatchPolicy, request: UpdateBatchPolicyRequest) -> BatchPolicy:
    """`present` with what the request names changed; a mixture of {} ends the mixture.

    Raises BadRequest if the whole is not a policy that `job` could have been given.
    """
    changes: dict[str, Any] = request.model_dump(exclude_none=True)
    if request.mixture == {}:
        changes["mixture"] = None
    try:
        merged = build_job({**job.model_dump(), **asdict(present), **changes}, source="batch policy")
    except JobInvalid as error:
        raise BadRequest(error.message, param=error.param) from error
    return BatchPolicy.of(merged)


def view_policy(policy: BatchPolicy) -> BatchPolicyView:
    return BatchPolicyView.model_validate(asdict(policy))
