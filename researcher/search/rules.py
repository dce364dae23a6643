"""The rules, the space and the allowance of a search: what it may choose from, and what it may still use."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from experiments_db import BudgetKind, number_as_text
from prompts import load
from researcher.charter import (
    Budget,
    Charter,
    Factor,
    Level,
    PolicyName,
    ProposerName,
    SearchRules,
    StudyKind,
)
from researcher.errors import TopicInvalid
from researcher.program_parts import find_differing_parts
from researcher.programs import list_programs
from researcher.question.factors import PROGRAM, SPECS
from researcher.question.flags import make_factor
from researcher.record.runs import Trial, cost_of
from researcher.scope import Scope
from swarm import TrainJob

FLAGS_OF_RULES: Mapping[str, str] = MappingProxyType({"runs": "--explore-runs"})
"""The flags whose names are not those of the rules that they set."""
LEAST_EPISODES = 20
"""The fewest held-out tasks of an exploring score, and of one that a claim rests on."""


LEAST_RUNS = 2.0
"""The fewest full runs of an exploration: the baseline, and as much for all other arms."""


@dataclass(frozen=True, slots=True)
class SearchFlags:
    """The flags of a search; None leaves the choice to the usual rules."""

    policy: PolicyName | None = None
    proposer: ProposerName | None = None
    rungs: Sequence[float] | None = None
    runs: float | None = None

    @property
    def fixed(self) -> frozenset[str]:
        """The fields of the rules that a person chose."""
        return frozenset(item.name for item in fields(self) if getattr(self, item.name) is not None)


def search_rules(
    kind: StudyKind, budget: Budget, flags: SearchFlags = SearchFlags(), *, by_rules: bool, eval_episodes: int | None
) -> SearchRules | None:
    """Return the rules of a search; None for a comparing study.

    `by_rules` says that no language model plans. Raises TopicInvalid for flags of a search in a comparing study, and
    for impossible ones.
    """
    if kind is not StudyKind.OPTIMIZE:
        for name in sorted(flags.fixed):
            flag = FLAGS_OF_RULES.get(name, f"--{name}")
            raise TopicInvalid(f"{flag} is about a search: add --kind optimize, or leave it out")
        return None
    if by_rules and flags.policy is PolicyName.PLANNER:
        raise TopicInvalid("--policy planner leaves the choice to a language model: name another one, or its --planner")
    usual = SearchRules()
    runs = flags.runs
    if runs is None:
        runs = usual.runs if budget.max_runs is None else usual.split.exploration * budget.max_runs
        if runs < LEAST_RUNS:
            raise TopicInvalid(
                f"--max-runs {budget.max_runs} leaves {runs:g} runs for exploration: {LEAST_RUNS:g} are needed"
            )
    elif budget.max_runs is not None and runs >= budget.max_runs:
        raise TopicInvalid(f"--explore-runs {runs:g} leaves none of --max-runs {budget.max_runs} for a confirmation")
    return SearchRules(
        policy=flags.policy or (PolicyName.HALVING if by_rules else PolicyName.PLANNER),
        proposer=flags.proposer or usual.proposer,
        rungs=_read_rungs(flags.rungs) if flags.rungs is not None else usual.rungs,
        runs=runs,
        episodes=usual.episodes if eval_episodes is None else min(usual.episodes, eval_episodes),
    )


def _read_rungs(rungs: Sequence[float]) -> tuple[float, ...]:
    is_rising = all(before < after for before, after in zip((0.0, *rungs), rungs, strict=False))
    if not rungs or not is_rising or rungs[-1] != 1:
        raise TopicInvalid(
            f"--rungs {','.join(f'{rung:g}' for rung in rungs)}: give rising parts of the training that end with 1, as "
            "in 0.25,0.5,1"
        )
    return tuple(rungs)


PLAIN_PROGRAM = "plain"
"""The name of the program that an arm has if no other is written."""
RATES = (1, 3, 0.3, 10, 0.1)
"""The learning rates, as multiples of the job's."""
GROUPS = (2, 0.5)
"""The group sizes, as multiples of the job's."""
USUAL = ("mini_batch_num", "temperature", "algorithm", "use_kl_loss")
"""Further settings, with the job's value and the usual levels of each."""


def default_space(
    job: Mapping[str, Any], programs: Sequence[str], fixed: Collection[str], scope: Scope
) -> tuple[Factor, ...]:
    """Return the factors of a search that names none, within its scope and without the settings that a person fixed.

    The first level of each factor is what the job has. `programs` are the names of the programs to choose from, that of
    the baseline first; a single one is no factor. Settings that the scope names have their usual levels.
    """
    values = {name: _usual_values(job, name) for name in scope.settings} | dict(_values(job))
    names = [name for name in values if name not in fixed and scope.allows_setting(name)]
    settings = tuple(make_factor(SPECS[name], values[name], explicit=False) for name in names)
    if len(programs) < 2:
        return settings
    levels = tuple(Level(name, {PROGRAM: name}, {}) for name in dict.fromkeys(programs))
    return (*settings, Factor(PROGRAM, levels, explicit=False))


def programs_of(given: Mapping[str, str], scope: Scope, *, runs_own_agent: bool) -> dict[str, str]:
    """Return the programs that a search chooses from, with their code by name, that of the baseline first.

    `given` are the programs of a person or of the environment; without any, the plain program comes first. Programs of
    the library differ from the first one only within the scope. If the environment runs an agent of its own, those
    with an agent are left out.
    """
    found = dict(given) or {PLAIN_PROGRAM: load("program")}
    first = next(iter(found.values()))
    for program in list_programs():
        parts = find_differing_parts(program.code, first)
        if parts and all(map(scope.allows, parts)) and not (program.has_agent and runs_own_agent):
            found.setdefault(program.name, program.code)
    return found


def _values(job: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each setting with its values, that of the job first."""
    lr = job.get("lr") or TrainJob(model=job["model"]).resolve().lr
    assert lr is not None, "a resolved job has a learning rate"
    yield "lr", [float(number_as_text(times * lr)) for times in RATES]
    group = int(job["num_repeat"])
    yield "num_repeat", [group, *(size for times in GROUPS if (size := round(times * group)) > 1)]
    yield from ((name, _usual_values(job, name)) for name in USUAL)


def _usual_values(job: Mapping[str, Any], name: str) -> list[Any]:
    return [job.get(name, SPECS[name].default), *SPECS[name].usual]


ARMS_OF_CLAIM = 2
"""The fewest arms of a confirmation: the baseline and the arm that was found."""


def count_explored(trials: Iterable[Trial]) -> float:
    """Return the cost of all exploring runs in full runs; a trial costs as much as its last attempt."""
    return sum(cost_of(trial.runs[-1], trial.experiment) for trial in trials if trial.rung and trial.runs)


def runs_left(charter: Charter, rules: SearchRules, *, explored: float, used: float, claims: int) -> float:
    """Return the full runs that exploration may still use.

    After a first confirmation the reserve is added. The runs of a smallest confirmation stay untouched.
    """
    split = rules.split
    allowed = rules.runs if not claims else rules.runs * (1 + split.reserve / split.exploration)
    left = allowed - explored
    if charter.budget.max_runs is not None:
        left = min(left, charter.budget.max_runs - used - ARMS_OF_CLAIM * charter.rule.min_seeds)
    return max(0.0, left)


def runs_for_claim(charter: Charter, rules: SearchRules, *, used: float, claims: int) -> int | None:
    """Return the most runs of the next confirmation; None without a limit. The first one leaves the reserve."""
    most = charter.budget.max_runs
    if most is None:
        return None
    kept = rules.split.reserve * most if not claims else 0.0
    return max(0, math.floor(most - kept - used + 1e-9))


def find_time_used_up(
    charter: Charter, rules: SearchRules, used: Mapping[BudgetKind, float], *, claims: int
) -> str | None:
    """Return why exploration has no time left, if its part of the hours or GPU-hours is used; else None.

    After a confirmation, half of the reserve is for exploring and half for confirming what it finds.
    """
    split = rules.split
    part = split.exploration if not claims else split.exploration + split.confirmation + split.reserve / 2
    limits = (
        (BudgetKind.WALL_CLOCK_S, charter.budget.max_wall_s, "wall clock"),
        (BudgetKind.GPU_HOURS, charter.budget.max_gpu_hours, "GPU-hours"),
        (BudgetKind.MONEY, charter.budget.max_money, "money"),
    )
    for kind, limit, name in limits:
        if limit is not None and used[kind] >= part * limit:
            return f"the part of the {name} that belongs to exploration is used"
    return None
