"""The question of a study as a language model frames it, with what arms get, and how runs are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from researcher.charter import (
    Asked,
    Charter,
    ComparedAt,
    Design,
    Factor,
    FrameRequest,
    JudgedBy,
    Question,
    SearchRules,
    StudyKind,
)
from researcher.equal_amounts import (
    describe_inequality,
    episodes_per_step,
    hold_equal,
)
from researcher.errors import TopicInvalid
from researcher.plan import Arm
from researcher.planner.designs import BASELINE, DEFAULT_TASK, default_job, draw_up_charter, lay_out, refuse_equal_arms
from researcher.planner.language_model.answers import MAX_ARMS, FrameAnswer, Unusable, is_arm_name, parse_answer
from researcher.planner.language_model.arms import MAX_EPISODES_PER_STEP
from researcher.planner.language_model.briefing import TUNABLE
from researcher.program_parts import PROGRAM_PARTS
from researcher.question.asking import METRICS_OF, QuestionFlags, build_question, check_asked
from researcher.question.flags import read_fixed
from researcher.question.reader import read_topic
from researcher.question.scopes import describe_excess, describe_scope, read_scope
from researcher.question.wording import state_question
from researcher.scope import Scope
from researcher.search.rules import search_rules
from swarm.environments import is_bundled
from swarm.model_path import has_name
from swarm.tasks import TASK_FAMILIES

MAX_TOPIC_CHARS = 4_000


def check_request(request: FrameRequest) -> None:
    """Raise TopicInvalid if no answer could make a study of the topic or of the person's factors."""
    topic, family = request.topic.strip(), request.family
    if not topic:
        raise TopicInvalid("the topic is empty: say what to study, such as 'Does group size matter for word reversal?'")
    if len(topic) > MAX_TOPIC_CHARS:
        raise TopicInvalid(f"the topic has {len(topic)} characters, at most {MAX_TOPIC_CHARS} are read: shorten it")
    if family is not None and family not in TASK_FAMILIES:
        raise TopicInvalid(f"unknown environment {family!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    if request.question.factors:
        _check_arms(draw_up_charter(request, request.question, family or DEFAULT_TASK))


def parse_frame(text: str, request: FrameRequest, author: str) -> Charter | FrameAnswer:
    """Return the charter that an answer frames, or the answer itself if it refuses the topic.

    What a person fixed by flags stands, whatever the answer says of it. Raises Unusable if the answer is invalid.
    """
    answer = parse_answer(text, FrameAnswer)
    if answer.infeasible and not request.assume:
        return answer
    if missing := [name for name in ("question", "family") if getattr(answer, name) is None]:
        raise Unusable("; ".join(f"{name}: Field required" for name in missing))
    _check_family(answer, request)
    try:
        measured = read_measuring(answer, request)
        question = _read_question(answer, request.question)
        measured = complete_metric(measured, question)
        charter = draw_up_charter(measured, question, str(answer.family))
        arms = _check_arms(charter)
    except TopicInvalid as error:
        raise Unusable(str(error)) from error
    if not request.question.factors:
        _check_choice(question, request, arms)
        _check_scope(question.scope, request.question.scope)
    _check_model(answer, charter)
    check_measuring(charter, request)
    baseline = next(arm.name for arm in arms if arm.is_baseline)
    has_factors = bool(request.question.factors)
    return replace(
        charter,
        question=state_question(question, charter.environment_name) if has_factors else str(answer.question),
        # The model must be able to write the name in its plans.
        baseline=baseline if is_arm_name(baseline) else BASELINE,
        planner=author,
        assumptions=(
            *answer.assumptions,
            *charter.assumptions,
            *describe_inequality(arms, ComparedAt(charter.compared_at)),
        ),
        not_studied=tuple(item.what for item in answer.infeasible),
    )


def _check_family(answer: FrameAnswer, request: FrameRequest) -> None:
    fixed = request.family if request.environment is None else request.environment.name
    if fixed is None and answer.family not in TASK_FAMILIES:
        raise Unusable(f"there is no task family {answer.family!r}; choose one of: {', '.join(TASK_FAMILIES)}")
    if fixed is not None and answer.family != fixed:
        raise Unusable(f"the task family is fixed: {fixed}")


def _read_question(answer: FrameAnswer, given: Question) -> Question:
    """Return the question of an answer, in which everything that a person asked stands.

    The answer may name a baseline for a person's factors. `effect` is a default that no flag states, and so is
    `compare` without factors: a model may choose other values that fit the topic. Raises Unusable or TopicInvalid.
    """
    asked = answer.ask or given.asked if given.asked is Asked.EFFECT else given.asked
    if given.factors:
        check_asked(asked, given.factors)
        factors = tuple(_with_baseline(factor, answer.baseline) for factor in given.factors)
        return replace(given, asked=asked, factors=factors)
    if answer.programs and len(set(answer.programs)) < max(2, len(answer.programs)):
        raise Unusable("programs: name two or more different ones, or none")
    kind = given.kind if given.kind is StudyKind.OPTIMIZE else answer.kind or given.kind
    if kind is StudyKind.OPTIMIZE and answer.design is not None:
        raise Unusable("design: a search chooses its arms as it goes: leave it out")
    said = read_scope(",".join(answer.scope)) if answer.scope else None
    parts = [part for part in PROGRAM_PARTS if (said or given.scope).allows(part)]
    if answer.programs and not parts:
        raise Unusable(f"programs: arms may differ in {describe_scope(said or given.scope)} alone: leave programs out")
    question = build_question(
        QuestionFlags(
            kind=kind,
            asked=asked,
            margin=given.margin,
            vary=answer.vary,
            fix=[text for text in answer.fix if not read_fixed([text]).keys() & given.fixed.keys()],
            design=answer.design,
            baseline=answer.baseline,
            programs=answer.programs,
            job=given.fixed,
            scope=said,
            program_parts=parts,
        )
    )
    return question if question.factors or said is not None else replace(question, scope=given.scope)


def _check_scope(chosen: Scope, given: Scope) -> None:
    """Raise Unusable if a model widens the scope that flags or the topic's words give."""
    if excess := describe_excess(chosen, given):
        raise Unusable(f"scope: arms may differ in {describe_scope(given)} alone, and the answer adds {excess}")


def _check_model(answer: FrameAnswer, charter: Charter) -> None:
    """Raise Unusable if the answer speaks of another model than the study trains, or of one that nobody has here."""
    trained = str(charter.job["model"])
    if answer.fix and "model" in read_fixed(answer.fix) and not (has_name(trained) or Path(trained).is_dir()):
        raise Unusable(f"fix: there is no model {trained!r} here: name it in infeasible")
    for sentence in () if "model" in charter.asks.varied else (answer.question or "", *answer.assumptions):
        named = read_topic(sentence).values.get("model", ()) if sentence else ()
        if len(named) == 1 and named[0] != trained:
            raise Unusable(f"the answer speaks of {named[0]}, and the study trains {trained}: say fix model={named[0]}")


def _with_baseline(factor: Factor, names: Sequence[str]) -> Factor:
    """Return a person's factor, with the answer's baseline if the person named none."""
    if factor.compared_with is not None:
        return factor
    return replace(factor, compared_with=next((level.name for level in factor.levels if level.name in names), None))


def _check_arms(charter: Charter) -> tuple[Arm, ...]:
    """Return the arms of the question.

    Raises TopicInvalid if a plan has no place for all of them, one is impossible, or two are the same. A search chooses
    arms from its space, so its number of arms is not checked.
    """
    count = _count_arms(charter.asks)
    if charter.asks.kind is StudyKind.COMPARE and count > MAX_ARMS:
        raise TopicInvalid(
            f"--vary: the question takes {count} arms, and a plan of a language model has at most {MAX_ARMS}: give "
            "fewer values, or say --design one-at-a-time"
        )
    arms = hold_equal(lay_out(charter.asks, charter.job), ComparedAt(charter.compared_at), charter.amount)
    refuse_equal_arms(arms, charter)
    return arms


def _count_arms(question: Question) -> int:
    counts = [len(factor.levels) for factor in question.factors]
    return prod(counts) if question.design is Design.FACTORIAL else 1 + sum(count - 1 for count in counts)


def _check_choice(question: Question, request: FrameRequest, arms: tuple[Arm, ...]) -> None:
    """Raise Unusable for a choice that only a person may make, and that no person made."""
    given = request.question
    chosen = {*question.varied, *(question.fixed.keys() - given.fixed.keys())}
    # A topic may name the model that is trained, and no arm another one.
    allowed = {*TUNABLE, *given.scope.settings, *({"model"} - {*question.varied})}
    if foreign := sorted(chosen - allowed):
        raise Unusable(
            f"vary, fix: a person alone may ask for {', '.join(foreign)}, by flags: choose from the settings of the "
            "list, or name that part of the topic in infeasible"
        )
    if large := [arm.name for arm in arms if episodes_per_step(arm.job) > MAX_EPISODES_PER_STEP]:
        raise Unusable(f"{', '.join(large)}: batch_size * num_repeat is above {MAX_EPISODES_PER_STEP}")


MOST_STEPS = 10
"""A model may train for at most this many times the usual number of steps; a person may ask for any number."""
_SAME_NAMES = (*("amount", "steps", "eval_every", "eval_episodes", "attempt_calls", "attempt_tokens", "judged_level"),)
"""Fields of an answer that a request has by the same name; None there means that no person fixed it."""


def read_measuring(answer: FrameAnswer, request: FrameRequest) -> FrameRequest:
    """Return the request with what the answer chooses where the person left it open. Raises Unusable."""
    chosen: dict[str, Any] = {
        name: getattr(answer, name) if (fixed := getattr(request, name)) is None else fixed for name in _SAME_NAMES
    }
    chosen["equal"] = request.equal or answer.compared_at
    is_open = "judged_by" not in request.fixed and request.judged_by is JudgedBy.FINAL
    chosen["judged_by"] = answer.judged_by or request.judged_by if is_open else request.judged_by
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


def _read_search(answer: FrameAnswer, request: FrameRequest) -> SearchRules | None:
    """Return the rules of exploration; None for a study that compares given arms. Raises Unusable."""
    given = {"policy": answer.policy, "rungs": tuple(answer.rungs) or None}
    asked = {name: value for name, value in given.items() if value is not None and name not in request.fixed}
    if StudyKind.OPTIMIZE not in (answer.kind, request.question.kind):
        if asked:
            raise Unusable(f"{', '.join(asked)}: only a study of the kind optimize explores: leave it out")
        return None
    rules = request.search or search_rules(
        StudyKind.OPTIMIZE, request.budget, by_rules=False, eval_episodes=request.eval_episodes
    )
    assert rules is not None, "a search has rules"
    rungs = asked.get("rungs", rules.rungs)
    if list(rungs) != sorted(set(rungs)) or rungs[-1] != 1:
        raise Unusable("rungs: they rise from a part of the training up to 1, as in [0.25, 0.5, 1]")
    return replace(rules, **asked)
