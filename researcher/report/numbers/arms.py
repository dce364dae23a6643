"""The judge's results for the arms of a study: ranks, comparisons and the test split, now and at each decision."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from statistics import fmean
from typing import TYPE_CHECKING

from experiments_db import ExperimentStore, SearchArm, StoredDecision
from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.charter import Charter, JudgedBy, SampleSizeGoal
from researcher.judge import Runs, compare_on_test, contradicts, summarize_arm
from researcher.judge.power import MOST_SEEDS, finds_worse, measure_spread, power_of, power_of_equality
from researcher.judge.samples import ScoredRun
from researcher.plan import Plan, Stage
from researcher.record.log import JUDGED, analysis_from_json
from researcher.record.scores import find_excluded, read_test_scores
from researcher.report.numbers.counts import RunCounts, list_outcomes

if TYPE_CHECKING:
    from researcher.report.numbers.facts import ArmFacts, StudyFacts

MOST_REPEATED = 100
"""The most seeds of a study that repeats a finding."""
SAME = 1e-9
"""The largest difference between two ways of adding the same scores."""


def rank_arms(arms: Iterable[ArmFacts], charter: Charter) -> tuple[ArmFacts, ...]:
    sign = -charter.sign
    return tuple(
        sorted(
            arms,
            key=lambda arm: (
                not arm.has_rank,
                not arm.search.scores,
                sign * arm.search.mean if arm.search.scores else 0,
            ),
        )
    )


def judge_arms(
    arms: Iterable[ArmFacts],
    charter: Charter,
    analysis: Analysis | None,
    ruled_out: Mapping[str, str],
) -> tuple[ArmFacts, ...]:
    """Return the arms, ranked, with the results of an analysis."""
    values = {item.run.id: item.value for arm in arms for item in arm.runs if item.value is not None}
    names = {item.run.id: arm.name for arm in arms for item in arm.runs}
    comparisons = {item.arm: item for item in (analysis.comparisons if analysis is not None else ())}
    judged: list[ArmFacts] = []
    for arm in arms:
        found = comparisons.get(arm.name)
        judged.append(
            replace(
                arm,
                comparison=found,
                compared_means=(nan, nan) if found is None else _means_of(found, values, names),
                disqualified=ruled_out.get(arm.name, ""),
            )
        )
    return rank_arms(judged, charter)


def _means_of(comparison: Comparison, values: Mapping[str, float], names: Mapping[str, str]) -> tuple[float, float]:
    own = [values[run] for run in comparison.run_ids if run in values and names[run] == comparison.arm]
    others = [values[run] for run in comparison.run_ids if run in values and names[run] == comparison.baseline]
    if not own or not others or abs(fmean(own) - fmean(others) - comparison.difference) > SAME:
        return nan, nan
    return fmean(own), fmean(others)


def compare_tested_arms(
    store: ExperimentStore, study_id: str, charter: Charter, arms: Sequence[ArmFacts]
) -> tuple[Comparison, ...]:
    """Return the comparison of each arm with the baseline on the test split, then of the best with the second.

    The best arm comes first.
    """
    scores = read_test_scores(store, study_id, charter)
    tested = sorted(
        (arm for arm in arms if arm.name in scores and arm.name != charter.baseline), key=lambda arm: not arm.is_kept
    )
    found = [compare_on_test(charter, arm.name, scores) for arm in tested if charter.baseline in scores]
    if len(tested) > 1:
        found.append(compare_on_test(replace(charter, baseline=tested[1].name), tested[0].name, scores))
    return tuple(found)


def find_contradicted(charter: Charter, arms: Iterable[ArmFacts], tested: Sequence[Comparison]) -> str | None:
    """Return the arm that the test split speaks against.

    That split has only scores at the end of training, which contradict no result by another number.
    """
    best = next((arm.name for arm in arms if arm.has_rank and arm.is_kept), None)
    if not tested or tested[0].arm != best or charter.judged_by is not JudgedBy.FINAL:
        return None
    return best if contradicts(charter, tested[0]) else None


def facts_at_decisions(
    store: ExperimentStore,
    facts: StudyFacts,
    everything: Sequence[ArmFacts],
    analyses: Mapping[int, Analysis],
    plans: Iterable[Plan],
    search: Mapping[str, Runs],
) -> dict[int, StudyFacts]:
    """Return the facts at each decision; after a round of exploration, these are its exploring scores."""
    exploring = {plan.iteration for plan in plans if plan.stage is Stage.EXPLORE}
    found: dict[int, StudyFacts] = {}
    for decision in facts.decisions:
        judged = decision.details.get(JUDGED)
        analysis = analyses.get(decision.iteration) if judged is None else analysis_from_json(judged)
        if decision.iteration in exploring:
            arms = _exploring_arms(everything, decision, facts.charter)
            found[decision.iteration] = replace(
                facts, arms=arms, test_comparisons=(), contradicted=None, is_of_exploration=True
            )
        elif analysis is not None:
            out = find_excluded(store, facts.study.id, decision.iteration - 1)
            found[decision.iteration] = _at_decision(facts, decision, analysis, search, out)
    return found


def _at_decision(
    facts: StudyFacts,
    decision: StoredDecision,
    analysis: Analysis,
    scored: Mapping[str, Runs],
    ruled_out: Mapping[str, str],
) -> StudyFacts:
    """Return the facts at a decision, before the test split was opened."""
    seeds = {item.arm: item.scores.keys() for item in analysis.arms}
    arms: list[ArmFacts] = []
    for arm in facts.arms:
        if arm.experiment.iteration > decision.iteration:
            continue
        search = {seed: run for seed, run in scored[arm.name].items() if seed in seeds.get(arm.name, ())}
        runs = tuple(item for item in arm.runs if item.run.created_at <= decision.created_at)
        arms.append(
            replace(
                arm,
                search=summarize_arm(arm.name, search, facts.charter),
                base=summarize_base(arm.name, search, facts.charter),
                test=None,
                runs=runs,
                counts=RunCounts(list_outcomes(arm.experiment, [item.run for item in runs], search)),
            )
        )
    return replace(
        facts, arms=judge_arms(arms, facts.charter, analysis, ruled_out), test_comparisons=(), contradicted=None
    )


def _exploring_arms(arms: Iterable[ArmFacts], decision: StoredDecision, charter: Charter) -> tuple[ArmFacts, ...]:
    """Return the arms that had been planned by a decision, ranked by their exploring scores."""
    finals = charter.of_scores
    found: list[ArmFacts] = []
    for arm in arms:
        if arm.in_search is None or not arm.in_search.is_explored or arm.experiment.iteration > decision.iteration:
            continue
        scored = _scored_by(arm.in_search, decision.created_at)
        untrained = {seed: replace(run, score=run.base) for seed, run in scored.items() if run.base is not None}
        begun = [item.run for item in arm.in_search.runs if item.run.created_at <= decision.created_at]
        found.append(
            replace(
                arm,
                search=summarize_arm(arm.name, scored, finals),
                base=summarize_arm(arm.name, untrained, finals),
                test=None,
                runs=(),
                counts=RunCounts(list_outcomes(arm.experiment, begun, scored)),
            )
        )
    return rank_arms(found, finals)


def _scored_by(arm: SearchArm, at: float) -> Runs:
    """Return the score at the highest rung that was known at a time, by its seed."""
    known = [item for item in arm.scored if item.run.finished_at is not None and item.run.finished_at <= at]
    if not known or known[-1].score is None:
        return {}
    last = known[-1]
    noise = (last.stderr or 0.0) ** 2
    return {last.run.seed: ScoredRun(last.run.id, known[-1].score, noise, base=last.base, base_noise=noise)}


def summarize_base(arm: str, search: Runs, charter: Charter) -> ArmSummary:
    """Return the summary of the arm's scores before training."""
    untrained = {seed: replace(run, score=run.base, failure="") for seed, run in search.items() if run.base is not None}
    return summarize_arm(arm, untrained, charter.of_scores)


@dataclass(frozen=True, slots=True)
class SeedsNeeded:
    """The number of runs per arm with which an arm that is better by `effect` is kept with probability `power`.

    `seeds` is that number; None if even `most` is too few. `has` is the smallest number of runs that an arm has now. If
    `finds_worse` is true, no arm can be better by that much, and the numbers are for finding a worse one.
    """

    has: int
    seeds: int | None
    effect: float
    power: float
    most: int = MOST_SEEDS
    finds_worse: bool = False


def estimate_seeds(charter: Charter, scored: Mapping[str, Runs], open_arms: Sequence[str]) -> SeedsNeeded | None:
    """Return the number of runs that the open arms need.

    The effect is the one that the study was planned for. If there are enough runs for that, it is the smallest effect
    that counts. In a question for equality it is the margin. Returns None if no arm is open, or if no arm has two runs.
    """
    if not open_arms or all(len(runs) < 2 for runs in scored.values()):
        return None
    goal = charter.sample_size or SampleSizeGoal()
    spread = measure_spread(charter, [list(runs.values()) for runs in scored.values()], "the runs of this study")
    comparisons = max(len(scored) - 1, 1)
    has = min(len(scored.get(arm, {})) for arm in (*open_arms, charter.baseline))
    find_power = power_of if charter.margin is None else power_of_equality
    effects = (goal.target_effect, charter.rule.min_effect) if charter.margin is None else (charter.margin,)
    for effect in dict.fromkeys(effects):
        if effect <= 0:
            continue
        sizes = range(1, MOST_SEEDS + 1)

        def power(seeds: int, effect: float = effect) -> float:
            return find_power(charter, spread, comparisons, seeds, effect)

        index = bisect_left(sizes, goal.target_power, key=power)
        seeds = sizes[index] if index < len(sizes) else None
        if seeds is None or seeds > has:
            is_worse = charter.margin is None and finds_worse(charter, spread, effect)
            return SeedsNeeded(has, seeds, effect, goal.target_power, finds_worse=is_worse)
    return None


@dataclass(frozen=True, slots=True)
class SeedsToDecide:
    """The number of fresh seeds of an arm and of the baseline that would likely decide which is better.

    `finding` is the id of the comparison that they repeat. `seeds` is None if even `most` are too few.
    """

    arm: str
    finding: str
    seeds: int | None
    most: int = MOST_REPEATED

    @property
    def command(self) -> str:
        """The command that repeats the comparison with so many seeds; empty if no number is enough."""
        return "" if self.seeds is None else f"researcher replicate {self.finding} --seeds {self.seeds}"


def find_seeds_to_decide(
    charter: Charter, scored: Mapping[str, Runs], found: Comparison | None, finding: str
) -> SeedsToDecide | None:
    """Return the number of seeds for a comparison that is to be made again by itself; None if nothing was compared.

    With that number the lead is found if it is as large as it seems, and an effect that counts is ruled out otherwise.
    """
    if found is None or math.isnan(found.difference):
        return None
    runs = [list(scored.get(name, {}).values()) for name in (found.arm, found.baseline)]
    alone = replace(charter, rule=replace(charter.rule, shares=(1.0,)))
    goal = charter.sample_size or SampleSizeGoal()
    spread = measure_spread(alone, runs, "the runs of this study")
    effect = max(abs(found.difference), charter.rule.min_effect)
    sizes = range(charter.rule.min_seeds, MOST_REPEATED + 1)

    def power(seeds: int) -> float:
        if charter.margin is not None:
            return power_of_equality(alone, spread, 1, seeds, charter.margin)
        return power_of(alone, spread, 1, seeds, effect)

    index = bisect_left(sizes, goal.target_power, key=power)
    return SeedsToDecide(found.arm, finding, sizes[index] if index < len(sizes) else None)
