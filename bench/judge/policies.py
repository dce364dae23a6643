"""The policies whose error rates are measured: how a study chooses its arms, its runs and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from experiments_db import Verdict
from researcher.analysis import Analysis
from researcher.charter import Budget, Charter, DecisionRule, FrameRequest
from researcher.claims import Claim
from researcher.history import Action, Decision, History
from researcher.plan import Arm, ArmProgram, Plan, ProgramProblem
from researcher.planner.base import Planner
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request

FIVE_RATES = "learning rate 1e-4, 3e-4, 1e-3, 3e-3 or 1e-2 for word reversal"
"""Four comparisons with lr=0.001."""
SEARCH = "default design"
"""The policy that explores."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A charter and how to make the planner that follows it; a planner belongs to one study."""

    charter: Charter
    make_planner: Callable[[], Planner]


class OneMoreTry:
    """A planner that tries until something is kept: each plan has new arms, or the same ones again."""

    name = "one more try"

    def __init__(self, *, arms: int, seeds: int, plans: int, repeats: bool) -> None:
        self._arms, self._seeds, self._plans, self._repeats = arms, seeds, plans, repeats

    def frame(self, request: FrameRequest) -> Charter:
        charter = RulesPlanner().frame(read_request(request.topic, StudySettings()))
        return replace(charter, baseline="baseline", rule=DecisionRule(), sample_size=None, search=None)

    def plan(self, charter: Charter, history: History) -> Plan:
        iteration = len(history.plans)
        series = 0 if self._repeats else iteration
        names = ["baseline", *(f"arm-{series}-{index}" for index in range(self._arms))]
        job = {"model": "nano", "total_steps": 1}
        arms = tuple(Arm(name, {}, job, "simulated", is_baseline=name == "baseline") for name in names)
        seeds = tuple(range(iteration * self._seeds, (iteration + 1) * self._seeds))
        return Plan(iteration, (), arms, seeds, "one more try")

    def write_program(self, charter: Charter, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        raise NotImplementedError("a simulated run has no program")

    def repair_program(
        self, charter: Charter, arm: Arm, program: ArmProgram, problems: tuple[ProgramProblem, ...]
    ) -> ArmProgram:
        raise NotImplementedError("a simulated run has no program")

    def interpret(self, charter: Charter, analysis: Analysis, history: History) -> tuple[Claim, ...]:
        return ()

    def decide(self, charter: Charter, analysis: Analysis, history: History) -> Decision:
        kept = [item.arm for item in analysis.comparisons if item.verdict is Verdict.KEEP]
        is_over = bool(kept) or len(history.plans) >= self._plans
        return Decision(Action.STOP if is_over else Action.REFINE, "simulated")


def policies() -> Mapping[str, Policy]:
    """Return the policies by name.

    fixed: one plan whose number of runs a pilot chose. top-up: open arms get as many runs again. default design: a
    search, and the confirmation of its best arms. new arms: two more in each of up to eight plans, which stop at the
    first keep. same arms: the same four again on fresh seeds, likewise.
    """
    new = {"arms": 2, "seeds": 4, "plans": 8, "repeats": False}
    same = {"arms": 4, "seeds": 3, "plans": 8, "repeats": True}
    return {
        "fixed": _of_rules(FIVE_RATES),
        "top-up": _of_rules(FIVE_RATES, Budget(max_runs=200)),
        SEARCH: _of_rules("Which settings train word reversal best?"),
        "new arms": _of_one_more_try(**new),
        "same arms": _of_one_more_try(**same),
    }


def fixed_seeds(arms: int, seeds: int) -> Policy:
    """Return the policy of one plan with this many arms and seeds, which has all of alpha."""
    policy = _of_one_more_try(arms=arms, seeds=seeds, plans=1, repeats=False)
    return replace(policy, charter=replace(policy.charter, rule=DecisionRule(shares=())))


def _of_rules(topic: str, budget: Budget | None = None) -> Policy:
    request = replace(read_request(topic, StudySettings()), budget=budget or Budget())
    charter = replace(RulesPlanner().frame(request), metric_range=(0.0, 1.0))
    # The refusal of a study with little power is switched off, so that each simulated study ends in verdicts.
    assert charter.sample_size is not None, "the rules planner asks for power"
    return Policy(replace(charter, sample_size=replace(charter.sample_size, is_underpowered=True)), RulesPlanner)


def _of_one_more_try(*, arms: int, seeds: int, plans: int, repeats: bool) -> Policy:
    def make() -> OneMoreTry:
        return OneMoreTry(arms=arms, seeds=seeds, plans=plans, repeats=repeats)

    charter = make().frame(FrameRequest("Which settings train word reversal best?"))
    return Policy(replace(charter, metric_range=(0.0, 1.0)), make)
