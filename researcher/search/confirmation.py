"""The confirmation of explored arms, with the ablations of the first one, by code on fresh seeds and tasks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments_db import IN_MEDIAN_PAIR, Author, Experiment, ExperimentStatus, Operator
from prompts import load
from researcher.charter import Charter, ComparedAt, Factor, Level, SampleSizeGoal
from researcher.equal_amounts import give_episodes_of, hold_equal
from researcher.history import History
from researcher.plan import Arm, ArmProgram, Contrast, Hypothesis, Plan, Relation, Stage
from researcher.question.factors import PROGRAM, TRAIN_ENV
from researcher.question.needs import acting
from researcher.record.log import AUTOMATIC
from researcher.search.hypotheses import is_of_better
from researcher.search.kinds import NO_PARTS
from swarm.environments import with_options
from swarm.job import build_job
from swarm.program import is_program

MOST_ABLATIONS = 4
FUNCTIONS = ("agent", "reward", "schedule")
"""The functions of a program that are parts of an arm."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """An arm without one part; `program` is None for an arm that has run already."""

    arm: Arm
    program: ArmProgram | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """An arm with its program, as it is on record."""

    arm: Arm
    code: str
    is_trusted: bool

    @classmethod
    def of(cls, arm: Arm, experiment: Experiment) -> Subject:
        return cls(arm, experiment.program_code, experiment.author is Author.PACKAGE)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an arm by name, and the arm without it; None if the part cannot be taken away by itself."""

    name: str
    without: Subject | None


def list_ablations(
    charter: Charter, winner: Subject, baseline: Subject, known: Mapping[str, Subject]
) -> tuple[Ablation, ...]:
    """Return the ablations of an arm, at most MOST_ABLATIONS; none if it has fewer than two parts.

    A part is a factor in which the arm differs from the baseline, a setting where the question names no factors, or a
    function of its program. A part that cannot be taken away by itself is left out.

    `known` are the other arms of the study that may run, by name. One that equals an ablation takes its place.
    """
    parts = [*_parts_of_program(winner, baseline), *_parts_of_settings(charter, winner, baseline)]
    if len(parts) < 2:
        return ()
    found: list[Ablation] = []
    for part in parts:
        if part.without is None or _is_same(part.without, baseline):
            continue
        twin = next((item for item in known.values() if _is_same(part.without, item)), None)
        if twin is not None:
            found.append(Ablation(twin.arm))
            continue
        name = _free_name(f"without {part.name}", {*known, winner.arm.name, baseline.arm.name})
        arm = replace(
            part.without.arm,
            name=name,
            rationale=f"{winner.arm.name} without its {part.name}",
            is_baseline=False,
            parent=winner.arm.name,
            second_parent=None,
            operator=Operator.ABLATE,
            manipulation=None,
            program_of=(winner.arm.program_of or winner.arm.name) if part.without.code == winner.code else None,
        )
        found.append(Ablation(arm, ArmProgram(name, part.without.code, part.without.is_trusted)))
    return tuple(found[:MOST_ABLATIONS])


def _free_name(wanted: str, taken: set[str]) -> str:
    number = 2
    name = wanted
    while name in taken:
        name, number = f"{wanted} {number}", number + 1
    return name


def _is_same(one: Subject, other: Subject) -> bool:
    is_alike = (one.code, one.arm.environment) == (other.code, other.arm.environment)
    return is_alike and build_job(dict(one.arm.job)) == build_job(dict(other.arm.job))


def _parts_of_program(winner: Subject, baseline: Subject) -> Iterator[_Part]:
    """Yield the functions in which the program differs from the baseline's, or all of it if they are the same."""
    if winner.code == baseline.code:
        return
    own, others = _functions_of(winner.code), _functions_of(baseline.code)
    changed = [name for name in own if ast.dump(own[name]) != _dump(others.get(name))]
    lost = [name for name in others if name not in own]
    if not changed and not lost:
        yield _Part(PROGRAM, _with_program(winner, baseline, None))
    for name in changed:
        if len(changed) == 1 and not lost:
            yield _Part(name, _with_program(winner, baseline, None))
        elif name in others or (code := drop_function(winner.code, name)) is None:
            yield _Part(name, None)
        else:
            yield _Part(name, _with_program(winner, baseline, (name, code)))
    for name in lost:
        yield _Part(name, None)


def _with_program(winner: Subject, baseline: Subject, dropped: tuple[str, str] | None) -> Subject:
    """Return the arm with the baseline's program, or with its own without a function."""
    arm = winner.arm
    if dropped is None:
        code, is_trusted = baseline.code, baseline.is_trusted
        label = baseline.arm.factors.get(PROGRAM, baseline.arm.name)
    else:
        name, code = dropped
        is_trusted = winner.is_trusted or code == load("program")
        label = f"{arm.factors.get(PROGRAM, arm.name)} without {name}"
    # Arms of equal settings are told apart by the name of their program.
    return Subject(replace(arm, factors={**arm.factors, PROGRAM: label}), code, is_trusted)


def drop_function(code: str, name: str) -> str | None:
    """Return a program without one of its functions; the plain program if no other function is left.

    Returns None if something else in the program uses the function.
    """
    tree = ast.parse(code)
    function = _functions_of(code)[name]
    rest = [node for node in tree.body if not (isinstance(node, ast.FunctionDef) and node.name == name)]
    used = {each.id for node in rest for each in ast.walk(node) if isinstance(each, ast.Name)}
    exported = {each.value for node in rest for each in ast.walk(node) if isinstance(each, ast.Constant)}
    if name in used or name in exported:
        return None
    first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
    lines = code.splitlines(keepends=True)
    left = "".join([*lines[: first - 1], *lines[function.end_lineno or function.lineno :]])
    return left if is_program(left) else load("program")


def _functions_of(code: str) -> dict[str, ast.FunctionDef]:
    found = (node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef))
    return {node.name: node for node in found if node.name in FUNCTIONS}


def _dump(function: ast.FunctionDef | None) -> str:
    return "" if function is None else ast.dump(function)


def _parts_of_settings(charter: Charter, winner: Subject, baseline: Subject) -> Iterator[_Part]:
    """Yield the factors in which the arm differs from the baseline, or its settings if the question has no factors."""
    arm, other = winner.arm, baseline.arm
    for factor in charter.asks.factors:
        mine, usual = _level_of(factor, arm), _level_of(factor, other)
        if factor.name != PROGRAM and mine is not None and usual is not None and mine != usual:
            yield _Part(factor.name, _with_level(charter, winner, other, factor, usual))
    if charter.asks.factors:
        return
    for name in sorted({*arm.job, *other.job} - NO_PARTS):
        if arm.job.get(name) != other.job.get(name):
            yield _Part(name, replace(winner, arm=_rebuild(charter, arm, other, [name])))
    if arm.environment != other.environment:
        yield _Part("training environment", replace(winner, arm=replace(arm, environment=other.environment)))


def _level_of(factor: Factor, arm: Arm) -> Level | None:
    return next((level for level in factor.levels if level.factors.items() <= arm.factors.items()), None)


def _with_level(charter: Charter, winner: Subject, baseline: Arm, factor: Factor, usual: Level) -> Subject | None:
    """Return the arm with the baseline's level of a factor; None if its environment cannot go back to it alone."""
    arm = _rebuild(charter, winner.arm, baseline, factor.varied)
    arm = replace(arm, factors={**arm.factors, **usual.factors})
    if factor.name == TRAIN_ENV:
        arm = replace(arm, environment=baseline.environment)
    elif factor.options:
        if {*usual.options} != {*factor.options} or arm.environment is None:
            return None
        arm = replace(arm, environment=with_options(arm.environment, usual.options))
    return replace(winner, arm=arm)


def _rebuild(charter: Charter, arm: Arm, baseline: Arm, settings: Sequence[str]) -> Arm:
    """Return the arm with the baseline's values of some settings, and with as much training as every arm gets."""
    # What the arm lacks of the baseline's settings acts only beside one of those that come back.
    kept = {name: value for name, value in arm.job.items() if name not in settings}
    job = acting({**baseline.job, **kept})
    if "total_steps" not in settings:
        if charter.compared_at == ComparedAt.EPISODES:
            job = give_episodes_of(baseline.job, job)
        elif charter.compared_at == ComparedAt.TOKENS:
            (held,) = hold_equal([replace(arm, job=job)], ComparedAt.TOKENS, charter.amount)
            job = dict(held.job)
    return replace(arm, job=job)


def plan_confirmation(
    charter: Charter,
    history: History,
    hypotheses: Sequence[Hypothesis],
    experiments: Iterable[Experiment],
    *,
    most_runs: int | None = None,
) -> Plan:
    """Return the plan that confirms the arms of these hypotheses, one arm each.

    The arms are primary, in the order of their hypotheses. The first one has ablations if it is expected to be better.
    The number of seeds is that of a pilot, until the design node chooses it. With less than `most_runs` for everything,
    ablations are left out first, and then the last of the arms.
    """
    claims = [plan for plan in history.plans if plan.stage is Stage.CLAIM]
    arms, baseline = history.arms, history.arms[charter.baseline]
    count = _count_seeds(charter)
    if most_runs is not None:
        hypotheses = hypotheses[: max(1, most_runs // count - 1)]
    winner = arms[hypotheses[0].arms[0]]
    ablations = _ablations(charter, history, winner.name, experiments) if is_of_better(hypotheses[0]) else ()
    ablated = [item.arm for item in ablations if item.arm.name not in {each.arms[0] for each in hypotheses}]
    if most_runs is not None:
        ablated = ablated[: max(0, most_runs // count - 1 - len(hypotheses))]
        count = max(1, min(count, most_runs // 2))
    confirmed = tuple(arms[item.arms[0]] for item in hypotheses)
    first = history.next_seed
    return Plan(
        iteration=len(history.plans),
        hypotheses=(*hypotheses, *(_expect_part(winner, arm) for arm in ablated)),
        arms=(baseline, *confirmed, *ablated),
        seeds=tuple(range(first, first + count)),
        rationale=_describe_order([arm.name for arm in confirmed], has_ablations=bool(ablated)),
        author=AUTOMATIC,
        stage=Stage.CLAIM,
        claim=len(claims),
        primary=tuple(arm.name for arm in confirmed),
    )


def _describe_order(names: Sequence[str], *, has_ablations: bool) -> str:
    """Return what is confirmed, and in which order it is tested."""
    behind = f" The arms that lack a part of {names[0]} are tested once {names[0]} is kept." if has_ablations else ""
    if len(names) == 1:
        return f"Fresh seeds on fresh tasks confirm the hypothesis about {names[0]} or not.{behind}"
    return (
        f"Fresh seeds on fresh tasks confirm the hypotheses about {', '.join(names)} or not. These arms share alpha "
        f"equally, and one that is decided passes its part on.{behind}"
    )


def ablated_programs(
    charter: Charter, history: History, planned: Plan, experiments: Iterable[Experiment]
) -> Mapping[str, ArmProgram]:
    """Return the programs of the ablations in a confirmation, by the name of the arm."""
    if not is_of_better(planned.hypotheses[0]):
        return {}
    before = [item for item in experiments if item.iteration < planned.iteration]
    earlier = tuple(plan for plan in history.plans if plan.iteration < planned.iteration)
    found = _ablations(charter, History(plans=earlier), planned.primary[0], before)
    return {item.arm.name: item.program for item in found if item.program is not None}


def _ablations(
    charter: Charter, history: History, winner: str, experiments: Iterable[Experiment]
) -> tuple[Ablation, ...]:
    arms = history.arms
    ready = {
        item.name: Subject.of(arms[item.name], item)
        for item in experiments
        if item.name in arms and item.status is ExperimentStatus.READY
    }
    others = {name: subject for name, subject in ready.items() if name not in (winner, charter.baseline)}
    return list_ablations(charter, ready[winner], ready[charter.baseline], others)


def _count_seeds(charter: Charter) -> int:
    goal = charter.sample_size
    if goal is None:
        return charter.rule.min_seeds
    return goal.seeds or _pilot_of(goal, charter)


def _pilot_of(goal: SampleSizeGoal, charter: Charter) -> int:
    return max(goal.pilot_seeds, charter.rule.min_seeds)


def _expect_part(winner: Arm, ablation: Arm) -> Hypothesis:
    return Hypothesis(
        statement=f"{winner.name} is better {IN_MEDIAN_PAIR} than {ablation.name}, which lacks a part of it.",
        prediction=f"{winner.name} beats {ablation.name} on held-out episodes.",
        arms=(winner.name, ablation.name),
        contrast=Contrast(Relation.BETTER, (winner.name,), (ablation.name,)),
    )
