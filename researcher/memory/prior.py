"""The number of runs of a study whose question was asked before, by what earlier studies found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from experiments_db import ExperimentStore, Finding, Verdict
from researcher.charter import Charter, SampleSizeGoal, StudyKind
from researcher.judge import Runs
from researcher.judge.power import MOST_SEEDS, Spread, assume_spread, finds_worse, measure_spread, power_of
from researcher.judge.samples import SHRINKAGE, ScoredRun, headroom_at
from researcher.memory.recipe import make_recipe
from researcher.memory.standing import KnownFinding, describe_effect, find_alike, list_known, weigh
from researcher.plan import Plan, SampleSize
from researcher.record.scores import read_scores


@dataclass(frozen=True, slots=True)
class Prior:
    """The findings of earlier studies about every arm of a plan.

    `findings` has one finding per arm. `baselines` and `arms` are the scored runs behind them, one arm of a study each.
    `first_seed` is larger than every seed of an earlier study of these questions.
    """

    findings: tuple[KnownFinding, ...]
    baselines: tuple[tuple[ScoredRun, ...], ...]
    arms: tuple[tuple[ScoredRun, ...], ...]
    first_seed: int

    @property
    def runs_per_arm(self) -> int:
        return min(item.recipe.runs for item in self.findings)

    @property
    def studies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(item.finding.study_id for item in self.findings))


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The number of runs that confirms a prior, with the sentence for people.

    `size` is None if half as many runs would find too little, so that the question is studied anew.
    """

    sentence: str
    size: SampleSize | None


def find_prior(store: ExperimentStore, study_id: str, charter: Charter, planned: Plan) -> Prior | None:
    """Return what other studies found about the arms of a plan; None unless they decided on every one of them."""
    arms = {item.name: item for item in store.list_experiments(study_id)}
    baseline = arms.get(charter.baseline)
    compared = [arms[arm.name] for arm in planned.arms if arm.name != charter.baseline]
    if charter.asks.kind is not StudyKind.COMPARE or baseline is None or not compared:
        return None
    recipes = [make_recipe(charter, arm, baseline, 0) for arm in compared]
    known = list_known(store, {recipe.question for recipe in recipes})
    others = [item for item in known if item.finding.study_id != study_id]
    standings = {item.known.finding.id: item for item in weigh(others)}
    found: list[KnownFinding] = []
    alike: list[KnownFinding] = []
    for recipe in recipes:
        same = find_alike(others, recipe)
        usable = [item for item in same if standings[item.finding.id].is_prior and item.finding.effect is not None]
        if not usable:
            return None
        alike += same
        # The one that rests on most runs, so that a question asked for the third time needs no fewer runs again.
        found.append(max(usable, key=lambda item: item.recipe.runs))
    scores = {item.finding.study_id: read_scores(store, item.finding.study_id, charter).runs for item in found}
    return Prior(
        findings=tuple(found),
        baselines=_runs_behind(scores, [(item, item.recipe.baseline.name) for item in found]),
        arms=_runs_behind(scores, [(item, item.recipe.arm.name) for item in found]),
        first_seed=_first_seed(store, alike),
    )


def confirm(
    charter: Charter, goal: SampleSizeGoal, prior: Prior, arms: int, *, max_runs: int | None = None
) -> Confirmation:
    """Return the number of runs per arm that confirms a prior, in a plan of so many arms.

    It is the smallest that finds again every effect with the charter's power. The verdicts rest on the new runs alone,
    at the charter's alpha, on seeds that no earlier study used. As the number is fixed before the first new run, it
    changes no error rate.
    """
    spread = _measure(charter, prior)
    least = max(charter.rule.min_seeds, 2)
    most = max(least, prior.runs_per_arm // 2)
    if max_runs is not None:
        most = max(1, min(most, max_runs // arms))
    powers = {n: _power(charter, spread, prior, arms - 1, n) for n in range(min(least, most), most + 1)}
    seeds = next((n for n, power in powers.items() if power >= goal.target_power), most)
    asked = f"Asked before: {_describe(prior)}."
    if powers[seeds] < goal.min_power and not goal.is_underpowered:
        return Confirmation(
            f"{asked} {seeds} runs per arm would find that again with probability {powers[seeds]:.2f} only, so the "
            "question is studied anew.",
            None,
        )
    sentence = (
        f"{asked} This study confirms it with {seeds} runs per arm ({arms * seeds} in all; {prior.runs_per_arm} per "
        f"arm before), which find it again with probability {powers[seeds]:.2f}."
    )
    size = SampleSize(
        seeds=seeds,
        wanted=next(
            (n for n in range(least, MOST_SEEDS) if _power(charter, spread, prior, arms - 1, n) >= goal.target_power),
            MOST_SEEDS,
        ),
        power=powers[seeds],
        comparisons=max(arms - 1, 1),
        seed_variance=spread.seed_variance,
        noise_variance=spread.noise_variance,
        basis=spread.basis,
        runs=arms * seeds,
        finds_worse=all(finds_worse(charter, spread, effect) for effect in _effects(charter, prior)),
        confirms=sentence,
    )
    return Confirmation(sentence, size)


def conservative_effect(finding: Finding, sign: float, min_effect: float) -> float:
    """Return the size of the effect that a repetition must be able to find.

    Of an arm that was better or worse it is the bound of the interval nearer to 0. Of one that was no better it is the
    distance of its effect from `min_effect`.
    """
    if finding.effect is None or finding.ci_low is None or finding.ci_high is None:
        return 0.0
    if finding.verdict is Verdict.NO_BETTER:
        return max(0.0, min_effect - sign * finding.effect)
    bound = finding.ci_low if finding.effect > 0 else -finding.ci_high
    return max(0.0, bound)


def _power(charter: Charter, spread: Spread, prior: Prior, comparisons: int, seeds: int) -> float:
    """Return the least probability with which one of the prior's findings is found again."""
    return min(power_of(charter, spread, comparisons, seeds, effect) for effect in _effects(charter, prior))


def _effects(charter: Charter, prior: Prior) -> list[float]:
    return [conservative_effect(item.finding, charter.sign, charter.rule.min_effect) for item in prior.findings]


def _measure(charter: Charter, prior: Prior) -> Spread:
    """Return the spread of a run as if every arm were at the mean of the baseline.

    Arms of large effects lie far apart, and scores near an end of the range vary less. Each arm's deviations from its
    own mean are therefore scaled to the room that the baseline has.
    """
    if not prior.baselines:
        return assume_spread(charter, "an assumption: the earlier runs are not on record")
    level = fmean(run.score for group in prior.baselines for run in group)
    room = headroom_at(level, charter.headroom_range, charter.eval_episodes)
    groups: list[list[ScoredRun]] = []
    for group in (*prior.baselines, *prior.arms):
        mean = fmean(run.score for run in group)
        ratio = room / headroom_at(mean, charter.headroom_range, charter.eval_episodes)
        scale = ratio ** (SHRINKAGE / 2)
        groups.append(
            [replace(run, score=level + scale * (run.score - mean), noise=ratio * run.noise) for run in group]
        )
    return measure_spread(charter, groups, f"the runs of {', '.join(prior.studies)}")


def _runs_behind(
    scores: Mapping[str, Mapping[str, Runs]], behind: Sequence[tuple[KnownFinding, str]]
) -> tuple[tuple[ScoredRun, ...], ...]:
    """Return the scored runs of arms on which findings rest, each arm of a study once."""
    groups: dict[tuple[str, str], tuple[ScoredRun, ...]] = {}
    for item, arm in behind:
        runs = scores[item.finding.study_id].get(arm, {}).values()
        groups[item.finding.study_id, arm] = tuple(run for run in runs if run.run_id in item.finding.run_ids)
    return tuple(group for group in groups.values() if group)


def _first_seed(store: ExperimentStore, alike: Sequence[KnownFinding]) -> int:
    studies = dict.fromkeys(item.finding.study_id for item in alike)
    return 1 + max((run.seed for study in studies for run in store.list_runs(study_id=study)), default=-1)


def _describe(prior: Prior) -> str:
    by_study = (
        f"study {study} found "
        + ", ".join(
            f"{item.recipe.arm.name} {describe_effect(item.finding)} ({item.finding.verdict.value})"
            for item in prior.findings
            if item.finding.study_id == study
        )
        for study in prior.studies
    )
    return "; ".join(by_study)
