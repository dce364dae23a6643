"""The search of an exploring study: its rounds, its tree, and the confirmation of what it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from experiments_db import Operator, Outcome, SearchArm, StoredDecision
from researcher.analysis import Analysis, Comparison
from researcher.charter import Charter
from researcher.judge import Runs, compare_on_test
from researcher.plan import Arm, Plan, Relation, Stage
from researcher.record.costs import ArmCost
from researcher.record.scores import choose_for_plan
from researcher.search.hypotheses import is_of_better


@dataclass(frozen=True, slots=True)
class ExplorationRound:
    """One plan of exploration.

    `added` are its new arms, and `promoted` the older ones, each with the part of the full training that it is to
    reach. `decision` is what followed; None while the round goes on.
    """

    iteration: int
    author: str
    reason: str
    added: Mapping[str, float]
    promoted: Mapping[str, float]
    decision: StoredDecision | None = None


@dataclass(frozen=True, slots=True)
class Exploration:
    """The exploration of a study.

    `episodes` is the number of held-out tasks of an exploring score. `costs` are those of attempts of the explored
    arms, over all their runs.
    """

    episodes: int
    rounds: tuple[ExplorationRound, ...] = ()
    tree: tuple[SearchArm, ...] = field(default=())
    costs: Mapping[str, ArmCost] = field(default_factory=dict[str, ArmCost])

    @property
    def explored(self) -> tuple[SearchArm, ...]:
        """The arms of the rounds, in the order in which they were planned."""
        return tuple(arm for arm in self.tree if arm.is_explored)

    @property
    def short_runs(self) -> int:
        """The number of exploring runs that were begun."""
        return sum(item.cost > 0 for arm in self.tree for item in arm.runs)

    @property
    def cost(self) -> float:
        """The full runs that exploration took."""
        return sum(arm.cost for arm in self.tree)

    def leaders(self, sign: float) -> tuple[SearchArm, ...]:
        """Return the explored arms that are in, best first: a higher rung goes before a lower one."""
        ranked = [
            (last.share, sign * last.score, arm)
            for arm in self.explored
            if arm.failure is None and (last := arm.last) is not None and last.score is not None
        ]
        return tuple(arm for _, _, arm in sorted(ranked, key=lambda item: (-item[0], -item[1])))


def gather_exploration(
    charter: Charter,
    tree: tuple[SearchArm, ...],
    plans: Sequence[Plan],
    decisions: Iterable[StoredDecision],
    costs: Mapping[str, ArmCost],
) -> Exploration | None:
    """Return the exploration of a study; None for a study without any."""
    if charter.search is None:
        return None
    rounds = _rounds(plans, {decision.iteration: decision for decision in decisions})
    explored = {arm.name for arm in tree if arm.is_explored}
    return Exploration(
        charter.search.episodes,
        tuple(rounds),
        tree,
        {name: cost for name, cost in costs.items() if name in explored},
    )


def _rounds(plans: Iterable[Plan], decisions: Mapping[int, StoredDecision]) -> Iterable[ExplorationRound]:
    known: set[str] = set()
    for plan in plans:
        if plan.stage is not Stage.EXPLORE:
            continue
        shares = {
            arm.name: plan.rungs.get(arm.name, 0) / int(arm.job["total_steps"]) if arm.job.get("total_steps") else 1.0
            for arm in plan.arms
        }
        yield ExplorationRound(
            plan.iteration,
            plan.author,
            plan.rationale,
            {name: share for name, share in shares.items() if name not in known},
            {name: share for name, share in shares.items() if name in known},
            decisions.get(plan.iteration),
        )
        known |= shares.keys()


@dataclass(frozen=True, slots=True)
class JudgedAblation:
    """The winner without one of its parts.

    `part` says what was taken away. `difference` is the winner less this arm, over the runs of the confirmation; its
    interval is not corrected. It is None without runs. `outcome` is that of the hypothesis that the winner is better;
    None if it was not judged.
    """

    name: str
    part: str
    difference: Comparison | None = None
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class ConfirmedSearch:
    """The arm that a plan is to confirm as better, with its ablations; `iteration` is that of the plan.

    `winner` is empty if no hypothesis of the plan is that an arm is better. `others` are the further arms that have a
    hypothesis of their own.
    """

    winner: str
    iteration: int
    ablations: tuple[JudgedAblation, ...] = ()
    others: tuple[str, ...] = ()


def gather_confirmation(
    charter: Charter, plans: Sequence[Plan], analyses: Mapping[int, Analysis], scores: Mapping[str, Runs]
) -> ConfirmedSearch | None:
    """Return the newest confirmation; None before the first. `analyses` are by iteration."""
    plan = next((plan for plan in reversed(plans) if plan.stage is Stage.CLAIM and plan.primary), None)
    if plan is None:
        return None
    first = plan.hypotheses[0] if plan.hypotheses else None
    winner = plan.primary[0] if first is None or is_of_better(first) else ""
    runs = choose_for_plan(plan, [each for each in plans if each.iteration < plan.iteration], scores)
    ablated = [arm for arm in plan.arms if arm.operator is Operator.ABLATE and arm.name != winner]
    analysis = analyses.get(plan.iteration)
    return ConfirmedSearch(
        winner,
        plan.iteration,
        tuple(_ablation(charter, winner, arm, runs, analysis) for arm in ablated),
        tuple(arm for arm in plan.primary if arm != winner),
    )


def _ablation(
    charter: Charter, winner: str, arm: Arm, runs: Mapping[str, Runs], analysis: Analysis | None
) -> JudgedAblation:
    has_runs = bool(runs.get(winner)) and bool(runs.get(arm.name))
    judged = () if analysis is None else analysis.contrasts
    outcome = next(
        (
            item.outcome
            for item in judged
            if item.contrast.relation is Relation.BETTER
            and (item.contrast.arms, item.contrast.against) == ((winner,), (arm.name,))
        ),
        None,
    )
    # The judge's own comparison of two arms, with the arm without the part in the place of the baseline.
    against = replace(charter, baseline=arm.name)
    return JudgedAblation(
        arm.name,
        arm.rationale,
        compare_on_test(against, winner, {name: runs[name] for name in (winner, arm.name)}) if has_runs else None,
        outcome,
    )
