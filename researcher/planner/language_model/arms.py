"""An arm as a language model answers it: what it changes of its parent, checked and completed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments_db import Operator
from researcher.charter import Charter, Factor, Level, Question
from researcher.equal_amounts import episodes_per_step, setting_of
from researcher.execution.preflight import contradict_name
from researcher.plan import Arm
from researcher.planner.designs import contents_of, lay_out, program_of
from researcher.planner.language_model.answers import ArmAnswer, Unusable
from researcher.planner.language_model.briefing import TUNABLE, list_open_settings
from researcher.program_parts import PROGRAM_PARTS
from researcher.question.factors import PROGRAM
from researcher.question.needs import acting
from researcher.question.scopes import describe_scope
from researcher.search.rules import PLAIN_PROGRAM
from researcher.tree import SearchTree
from swarm import TrainJob
from swarm.errors import JobInvalid
from swarm.job import build_job

MAX_EPISODES_PER_STEP = 2_048
"""The largest number of tasks times repeats, sixteen times the usual one.

With more, an arm would simply buy its score with data."""
AS_PARENT = "as parent"
"""The name that stands for the program of the parent."""


def find_baseline(charter: Charter) -> Arm:
    """Return the arm that the others are compared with, under the charter's name for it."""
    arm = next(arm for arm in lay_out(charter.asks, charter.job) if arm.is_baseline)
    return replace(arm, name=charter.baseline, rationale="the baseline")


def start_job(charter: Charter) -> dict[str, Any]:
    """Return the settings that every arm starts from, including those that the factors need."""
    needs = {name: value for factor in charter.asks.factors for name, value in factor.needs.items()}
    return {**charter.job, **{name: value for name, value in needs.items() if name not in charter.asks.fixed}}


def read_arms(answers: Sequence[ArmAnswer], charter: Charter, earlier: Mapping[str, Arm]) -> list[Arm]:
    """Return the arms of an answer, each with its parent and with its program among its factors.

    An arm may derive from an earlier one, from the baseline, or from one before it in the same answer. Raises Unusable.
    """
    if len({item.name for item in answers}) < len(answers):
        raise Unusable("two arms have the same name")
    known = {charter.baseline: find_baseline(charter), **earlier}
    read: list[Arm] = []
    for item in answers:
        arm = _repeated(item, earlier) or _read_arm(item, charter, known)
        known.setdefault(arm.name, arm)
        read.append(arm)
    return read


def check_names(arms: Sequence[Arm], earlier: Mapping[str, Arm]) -> None:
    """Raise Unusable for duplicates, misleading names, or a name that was used for another arm."""
    for arm in arms:
        if arm.name in earlier and contents_of(earlier[arm.name]) != contents_of(arm):
            raise Unusable(
                f"arm {arm.name!r} has run with other settings: use another name, or its settings and program as they "
                "were"
            )
        if problem := contradict_name(arm.name, arm.job):
            raise Unusable(f"arm {arm.name!r}: {problem}")
    seen: dict[str, str] = {}
    for arm in {**earlier, **{arm.name: arm for arm in arms}}.values():
        other = seen.setdefault(contents_of(arm), arm.name)
        if other != arm.name:
            raise Unusable(f"arms {other!r} and {arm.name!r} have the same settings and the same program")


def check_operators(arms: Iterable[Arm], charter: Charter, earlier: Mapping[str, Arm], tree: SearchTree) -> None:
    """Raise Unusable for an arm that is not what its operator says."""
    known = {charter.baseline: find_baseline(charter), **earlier}
    for arm in arms:
        if problem := _misuse(arm, charter, known, tree):
            raise Unusable(f"arm {arm.name}: operator {arm.operator}: {problem}")
        known.setdefault(arm.name, arm)


def set_factors(arms: Sequence[Arm], earlier: Mapping[str, Arm], question: Question) -> list[Arm]:
    """Return the arms with the factors that the study compares, whatever the model says about them.

    If the question leaves the factors open, they are the settings in which the arms differ, and the programs if they
    differ.
    """
    if question.factors:
        return list(arms)
    everything = [*earlier.values(), *arms]
    names = list_open_settings(question.scope)
    varied = [name for name in names if len({json.dumps(setting_of(arm.job, name)) for arm in everything}) > 1]
    is_compared = len({program_of(arm) for arm in everything}) > 1
    return [
        replace(
            arm,
            factors={name: setting_of(arm.job, name) for name in varied}
            | ({PROGRAM: program_of(arm)} if is_compared else {}),
        )
        for arm in arms
    ]


def _repeated(item: ArmAnswer, earlier: Mapping[str, Arm]) -> Arm | None:
    """Return the earlier arm that an answer names without any change."""
    is_bare = not (item.settings or item.program or item.parent or item.second_parent)
    return earlier.get(item.name) if is_bare else None


def _read_arm(item: ArmAnswer, charter: Charter, known: Mapping[str, Arm]) -> Arm:
    parent = known.get(item.parent or charter.baseline)
    if parent is None:
        raise Unusable(f"arm {item.name}: there is no arm {item.parent!r} to derive from: {_choice(known)}")
    if item.second_parent is not None and item.second_parent not in known:
        raise Unusable(f"arm {item.name}: there is no arm {item.second_parent!r} to combine with: {_choice(known)}")
    program, source = _read_program(item.program, parent, known)
    if source is None and not charter.asks.factors and not any(map(charter.asks.scope.allows, PROGRAM_PARTS)):
        raise Unusable(
            f"arm {item.name}: arms may differ in {describe_scope(charter.asks.scope)} alone: leave program out"
        )
    job = _read_job(item, parent, charter)
    is_baseline = item.name == charter.baseline
    arm = Arm(
        item.name,
        {PROGRAM: program},
        job,
        item.purpose,
        parent=None if is_baseline else parent.name,
        environment=parent.environment,
        operator=None if is_baseline else item.operator or _usual_operator(source, parent, charter),
        second_parent=item.second_parent,
        manipulation=None if item.manipulation is None else item.manipulation.to_check(),
        program_of=None if is_baseline else source,
    )
    return replace(arm, factors=_find_levels(arm, charter)) if charter.asks.factors else arm


def _choice(known: Mapping[str, Arm]) -> str:
    return f"choose from {', '.join(known)}"


def _read_program(name: str, parent: Arm, known: Mapping[str, Arm]) -> tuple[str, str | None]:
    """Return the name of the program, and the first arm that has it, or None if it is yet to be written."""
    if name in ("", AS_PARENT):
        return program_of(parent), parent.program_of or parent.name
    first = next((arm for arm in known.values() if program_of(arm) == name), None)
    return name, None if first is None else first.program_of or first.name


def _read_job(item: ArmAnswer, parent: Arm, charter: Charter) -> dict[str, Any]:
    """Return the parent's job with the changed settings.

    Raises Unusable if a setting is unknown, invalid or not open to a planner.
    """
    question = charter.asks
    open_settings = question.varied if question.factors else list_open_settings(question.scope)
    if foreign := sorted(item.settings.keys() - set(open_settings)):
        none = f"arms may differ in {describe_scope(question.scope)} alone"
        choice = f"choose from {', '.join(open_settings)}" if open_settings else none
        raise Unusable(f"arm {item.name}: {', '.join(foreign)} cannot be set; {choice}")
    job = {**start_job(charter), **parent.job}
    if "total_steps" not in question.varied:
        # The parent's number is already adjusted to its own batches.
        job["total_steps"] = charter.job["total_steps"]
    job |= item.settings
    try:
        checked = build_job({**TrainJob().model_dump(mode="json"), **job})
    except JobInvalid as error:
        raise Unusable(f"arm {item.name}: {error.message}") from error
    if reasons := [reason for name in item.settings if (reason := checked.why_without_effect(name))]:
        raise Unusable(f"arm {item.name}: {'; '.join(reasons)}")
    if not question.factors and episodes_per_step(job) > MAX_EPISODES_PER_STEP:
        raise Unusable(f"arm {item.name}: batch_size * num_repeat is above {MAX_EPISODES_PER_STEP}")
    # Keep the values as the job parsed them: "1e-3" in quotes becomes a number, a list becomes a tuple.
    return acting(job | {name: checked.model_dump(mode="json")[name] for name in item.settings})


def _usual_operator(source: str | None, parent: Arm, charter: Charter) -> Operator:
    """Return the operator of an arm for which the answer names none."""
    if source is not None and source == (parent.program_of or parent.name):
        return Operator.TUNE
    return Operator.DRAFT if parent.name == charter.baseline else Operator.IMPROVE


def _misuse(arm: Arm, charter: Charter, known: Mapping[str, Arm], tree: SearchTree) -> str | None:
    """Return why an operator does not fit an arm; None if it does, or if the arm has none."""
    if arm.operator is None or arm.parent is None:
        return None
    node = tree.find(arm.parent)
    failure = node.failure if node is not None else ""
    if failure and arm.operator is not Operator.DEBUG:
        return f"{arm.parent} is out ({failure[:200]}): only debug derives from it"
    if arm.second_parent is not None and arm.operator is not Operator.COMBINE:
        return "only combine has a second parent: leave it out"
    parent = known[arm.parent]
    changed = _changed(arm, parent)
    has_parents_program = arm.program_of == (parent.program_of or parent.name)
    match arm.operator:
        case Operator.DRAFT if arm.parent != charter.baseline:
            return f"a draft derives from the baseline, {charter.baseline}"
        case Operator.DEBUG if not failure:
            return f"{arm.parent} has not failed: there is nothing to debug"
        case Operator.COMBINE if arm.second_parent in (None, arm.parent):
            return "it takes two different arms: give parent and second_parent"
        case Operator.TUNE if not has_parents_program or not changed:
            return f"it changes settings alone: give settings, and the program {AS_PARENT!r}"
        case Operator.ABLATE:
            return _what_is_added(arm, changed, has_parents_program, known[charter.baseline])
        case Operator.REPLICATE:
            return "it repeats an arm of another study: choose another operator"
        case _:
            return None


def _what_is_added(arm: Arm, changed: Mapping[str, Any], has_parents_program: bool, baseline: Arm) -> str | None:
    """Return why an ablation takes nothing away; None if it does.

    A setting is taken away if it gets the baseline's value. What a new program leaves out shows only in its code.
    """
    if added := [name for name, value in changed.items() if value != setting_of(baseline.job, name)]:
        return f"{', '.join(added)} does not return to the baseline's value, so nothing is taken away"
    if not changed and has_parents_program:
        return "nothing is taken away: set a setting back to the baseline's value, or give a program without a part"
    return None


def _changed(arm: Arm, parent: Arm) -> dict[str, Any]:
    """Return the settings of an arm that differ from its parent's."""
    return {
        name: setting_of(arm.job, name) for name in TUNABLE if setting_of(arm.job, name) != setting_of(parent.job, name)
    }


def _find_levels(arm: Arm, charter: Charter) -> dict[str, Any]:
    """Return the factors of an arm by its levels.

    Raises Unusable if the arm is outside the question.
    """
    factors: dict[str, Any] = {}
    for factor in charter.asks.factors:
        levels = [level for level in factor.levels if _has_level(arm, factor, level, charter)]
        if not levels:
            known = ", ".join(level.name for level in factor.levels)
            raise Unusable(f"arm {arm.name}: {factor.name} has one of the levels {known}")
        factors |= levels[0].factors
    if PROGRAM not in factors and program_of(arm) != PLAIN_PROGRAM:
        raise Unusable(f"arm {arm.name}: the question compares no programs: leave program out")
    return factors


def _has_level(arm: Arm, factor: Factor, level: Level, charter: Charter) -> bool:
    if factor.name == PROGRAM:
        return level.name == program_of(arm)
    start = start_job(charter)
    # A setting that only other levels of the factor set has the value that every arm starts from.
    wanted = {name: setting_of(start, name) for name in factor.varied} | dict(level.settings)
    return all(setting_of(arm.job, name) == value for name, value in wanted.items())
