"""What arms get, how runs are measured and how a study explores, as a language model frames it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from researcher.charter import (
    Charter,
    ComparedAt,
    FrameRequest,
    JudgedBy,
    PolicyName,
    Question,
    SearchRules,
    StudyKind,
)
from researcher.planner.designs import default_job
from researcher.planner.language_model.answers import FrameAnswer, Unusable
from researcher.question.asking import METRICS_OF
from swarm.environments import is_bundled

MOST_STEPS = 10
"""A model may train for at most this many times the usual number of steps; a person may ask for any number."""
_SAME_NAMES = (*("amount", "steps", "eval_every", "eval_episodes", "attempt_calls", "attempt_tokens", "judged_level"),)
"""Fields of an answer that a request has by the same name; None there means that no person fixed it."""


def read_measuring(answer: FrameAnswer, request: FrameRequest) -> FrameRequest:
    """Return the request with what the answer chooses where the person left it open.

    Raises Unusable if the answer contradicts the person.
    """
    chosen: dict[str, Any] = {}
    for name in _SAME_NAMES:
        chosen[name] = _choose(name, getattr(answer, name), getattr(request, name))
    chosen["equal"] = _choose("compared_at", answer.compared_at, request.equal)
    fixed = request.judged_by if "judged_by" in request.fixed or request.judged_by is not JudgedBy.FINAL else None
    chosen["judged_by"] = _choose("judged_by", answer.judged_by, fixed) or request.judged_by
    if chosen["amount"] is not None and chosen["equal"] not in (ComparedAt.TOKENS, ComparedAt.TIME):
        raise Unusable("amount: it is a number of tokens or seconds: say compared_at tokens or time, or leave it out")
    is_fixed = "judged_by" in request.fixed or answer.judged_by is not None
    fixed_names = request.fixed | {"judged_by"} if is_fixed else request.fixed
    return replace(request, **chosen, search=_read_search(answer, request), fixed=fixed_names)


def complete_metric(request: FrameRequest, question: Question) -> FrameRequest:
    """Return the request with the number that its question is judged by, if nobody has chosen one.

    Raises Unusable for a number that does not answer the question.
    """
    metrics = METRICS_OF.get(question.asked)
    if metrics is None:
        return request
    if "judged_by" not in request.fixed and request.judged_by not in metrics:
        request = replace(request, judged_by=metrics[0])
    if request.judged_by not in metrics:
        raise Unusable(f"ask: {question.asked} is judged by {' or '.join(metrics)}, not by {request.judged_by}")
    return request


def check_measuring(charter: Charter, request: FrameRequest) -> None:
    """Raise Unusable if the numbers of a charter do not fit together, or cost more than a model may choose."""
    steps, usual = int(charter.job["total_steps"]), default_job(charter.environment_name, steps=None, base={})
    if request.steps is None and "total_steps" not in request.question.fixed:
        most = MOST_STEPS * int(usual["total_steps"])
        if steps > most:
            raise Unusable(f"steps: at most {most}, got {steps}: only a person may ask for more")
    if charter.judged_by.needs_curve and not charter.eval_every:
        raise Unusable(f"judged_by: {charter.judged_by} needs scores in mid-training: give eval_every")
    if charter.eval_every > steps:
        raise Unusable(f"eval_every: a run has {steps} steps: give fewer between two scores")
    if charter.eval_every and charter.compared_at in (ComparedAt.TOKENS, ComparedAt.TIME):
        raise Unusable(
            f"eval_every: compared_at {charter.compared_at} ends runs at unknown steps: leave one of both out"
        )
    _check_level(charter, request)


def _check_level(charter: Charter, request: FrameRequest) -> None:
    level = charter.judged_level
    if (charter.judged_by is JudgedBy.STEPS_TO) != (level is not None):
        raise Unusable("judged_level: it is the score that judged_by steps-to counts steps to: give both or neither")
    if level is None:
        return
    if charter.compared_at != ComparedAt.STEPS:
        raise Unusable("judged_by: steps-to needs arms of equally many steps: say compared_at steps, or judged_by area")
    reference = request.environment.reference if request.environment else charter.environment_name
    # Scores of a grader that a person wrote may lie anywhere.
    if is_bundled(reference) and not 0 < level <= 1:
        raise Unusable(f"judged_level: scores on {reference} lie from 0 to 1, got {level:g}")


def _choose(name: str, answered: Any, fixed: Any) -> Any:
    if answered is not None and fixed is not None and answered != fixed:
        raise Unusable(f"{name}: the person fixed {fixed}, got {answered}: leave it out")
    return answered if fixed is None else fixed


def _read_search(answer: FrameAnswer, request: FrameRequest) -> SearchRules | None:
    """Return the rules of exploration; None for a study that compares given arms. Raises Unusable."""
    kind = answer.kind or request.question.kind
    given = {"policy": answer.policy, "rungs": tuple(answer.rungs) or None}
    asked = {name: value for name, value in given.items() if value is not None}
    if kind is not StudyKind.OPTIMIZE:
        if asked:
            raise Unusable(f"{', '.join(asked)}: only a study of the kind optimize explores: leave it out")
        return None
    rules = request.search or _usual_rules(request)
    for name, value in asked.items():
        if name in request.fixed and value != getattr(rules, name):
            raise Unusable(f"{name}: the person fixed {getattr(rules, name)}, got {value}: leave it out")
    rungs = asked.get("rungs", rules.rungs)
    if list(rungs) != sorted(set(rungs)) or rungs[-1] != 1:
        raise Unusable("rungs: they rise from a part of the training up to 1, as in [0.25, 0.5, 1]")
    return replace(rules, **asked)


def _usual_rules(request: FrameRequest) -> SearchRules:
    """Return the rules of exploration if the person has not asked for one."""
    rules = SearchRules(policy=PolicyName.PLANNER)
    runs = request.budget.max_runs
    return rules if runs is None else replace(rules, runs=rules.split.exploration * runs)
