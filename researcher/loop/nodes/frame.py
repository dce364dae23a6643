"""Frame: the topic becomes a charter, frozen before anything runs."""

from __future__ import annotations

from dataclasses import replace

from researcher.execution.environments import count_tasks
from researcher.loop.deps import Deps
from researcher.loop.state import ResearchState
from researcher.question.wording import describe_question
from researcher.study.log import to_json
from researcher.types import Charter, FrameRequest, JudgedBy
from swarm.environments.registry import is_bundled


def frame(deps: Deps, state: ResearchState, request: FrameRequest) -> ResearchState:
    if deps.store.find_charter(deps.study_id) is None:
        charter = _on_environment(deps, deps.planner.frame(request), request)
        deps.store.freeze_charter(deps.study_id, to_json(charter))
        deps.log.note("charter.frozen", "; ".join(line.strip() for line in describe_question(charter)))
        for assumption in charter.assumptions:
            deps.log.note("charter.assumption", assumption)
    return state


def _on_environment(deps: Deps, charter: Charter, request: FrameRequest) -> Charter:
    """The charter with the environment that it is on, and with no more tasks per score than there are."""
    reference = charter.task if request.environment is None else request.environment.reference
    environment = deps.environments.open(reference)
    held_out = count_tasks(environment, charter.search_split, charter.eval_episodes)
    assumptions = charter.assumptions
    if held_out < charter.eval_episodes:
        assumptions += (f"The {charter.search_split} split has {held_out} tasks: a score is over all of them.",)
    return replace(
        charter,
        environment=reference,
        environment_digest=environment.digest,
        eval_episodes=held_out,
        eval_every=request.eval_every or 0,
        judged_by=request.judged_by,
        attempt_calls=request.attempt_calls,
        attempt_tokens=request.attempt_tokens,
        metric=charter.metric
        if request.judged_by is JudgedBy.FINAL
        else f"{charter.metric}, over all steps of training",
        # A grader that a person wrote may give any number; those of the bundled environments give 0 to 1.
        metric_range=(0.0, 1.0) if is_bundled(reference) else charter.metric_range,
        assumptions=assumptions,
    )
