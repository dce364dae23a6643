"""The note of a verdict, and the parts that agent and training have in a difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from experiments_db import IN_MEAN, Verdict
from researcher.analysis import GainPart
from researcher.charter import Charter
from researcher.judge.samples import (
    NOT_ESTIMATED,
    ArmSample,
    Estimate,
    Range,
    ScoredRun,
    contrast_of,
    noise_of,
    sample_of,
)
from researcher.judge.worst_case import Runs, largest_share

MOST_LISTED = 3
"""The largest number of seeds that a note names one by one."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One comparison with the checks of its verdict.

    `by_test` is the verdict of the test, and `verdict` is the one after the checks. `outlier` is the arm and the seed
    of a run that lies apart from the arm's others. `is_kept_at_worst` is whether the arm would be kept in the worst
    case. `training_gain` is what training added, or with `is_of_weights` the gain with the baseline's agent.
    """

    arm: str
    runs: Runs
    baseline: Runs
    by_test: Verdict
    verdict: Verdict
    missing: Mapping[int, str]
    outlier: tuple[str, int] | None
    is_kept_at_worst: bool
    training_gain: GainPart
    is_of_weights: bool = False


def count_failures(runs: Runs) -> int:
    return sum(bool(run.failure) for run in runs.values())


def describe(charter: Charter, item: Weighed) -> list[str]:
    notes = [*_failures(charter, item), *_unknown(item), *_outlier(charter, item), *_training(charter, item)]
    if item.verdict in (Verdict.KEEP, Verdict.EQUAL):
        failures, runs = count_failures(item.runs), len(item.runs)
        share = largest_share(failures, runs, charter.rule.alpha)
        seen = f"none of {runs} runs" if not failures else f"{failures} of {runs} runs"
        about = "is about a typical run" if charter.about == IN_MEAN else f"holds {charter.about}"
        notes.append(
            f"this {about}: {seen} failed or collapsed, which leaves it possible that up to {100 * share:.0f} % of all "
            "runs do"
        )
    return notes


def _failures(charter: Charter, item: Weighed) -> list[str]:
    failures, against = count_failures(item.runs), count_failures(item.baseline)
    if not failures:
        return []
    kinds = ", ".join(sorted({run.failure for run in item.runs.values() if run.failure}))
    notes = [
        f"{failures} of {len(item.runs)} runs failed ({kinds}), {against} of {len(item.baseline)} of {charter.baseline}"
    ]
    trained = [run.score for run in item.runs.values() if not run.failure]
    if trained and against < len(item.baseline):
        difference = fmean(trained) - fmean(run.score for run in item.baseline.values() if not run.failure)
        is_better = charter.sign * difference > 0
        notes.append(f"{'better' if is_better else 'not better'} where it trained ({difference:+.3f})")
    return notes


def _unknown(item: Weighed) -> list[str]:
    notes: list[str] = []
    if item.missing:
        planned = len(item.runs) + len(item.missing)
        notes.append(f"{len(item.missing)} of {planned} seeds have no score ({_list(item.missing.items())})")
    retried = {seed: run.retries[-1] for seed, run in item.runs.items() if run.retries}
    if retried:
        notes.append(f"{len(retried)} of {len(item.runs)} runs were trained again ({_list(retried.items())})")
    if notes and item.by_test is Verdict.KEEP:
        at_worst = " and ".join(
            (["missing seeds at the worst value"] if item.missing else [])
            + (["as many failed trainings as these retries leave possible"] if retried else [])
        )
        notes.append(f"{'kept also' if item.is_kept_at_worst else 'not kept'} with {at_worst}")
    return notes


def _list(reasons: Iterable[tuple[int, str]]) -> str:
    known = sorted(reasons)
    listed = [f"seed {seed}: {reason}" for seed, reason in known[:MOST_LISTED]]
    return "; ".join([*listed, *(["and others"] if len(known) > MOST_LISTED else [])])


def _outlier(charter: Charter, item: Weighed) -> list[str]:
    if item.outlier is None:
        return []
    arm, seed = item.outlier
    runs = item.runs if arm == item.arm else item.baseline
    rest = [run.score for other, run in runs.items() if other != seed]
    return [
        f"the run of {arm} with seed {seed} ({runs[seed].score:.3f}) lies far from its others ({min(rest):.3f} to "
        f"{max(rest):.3f}), and so few runs do not say how often that happens: more runs would"
    ]


def _training(charter: Charter, item: Weighed) -> list[str]:
    """Return a note on a kept arm whose training is not shown to have added more than the baseline's."""
    part = item.training_gain
    gain = charter.sign * part.value
    if item.verdict is not Verdict.KEEP or math.isnan(part.p) or (part.p < charter.rule.alpha and gain > 0):
        return []
    if item.is_of_weights:
        return [f"better trained is not shown: with the agent of {charter.baseline} its weights gain {part.value:+.3f}"]
    return [f"better trained is not shown: training added {part.value:+.3f} more to it than to {charter.baseline}"]


ARM, BASELINE = "arm", "baseline"
WEIGHTS = {ARM: 1.0, BASELINE: -1.0}


def divide_gain(runs: Runs, baseline: Runs, metric_range: Range, alpha: float) -> tuple[GainPart, GainPart]:
    """Return the agent's part and training's part of the difference, in this order.

    Only runs with both a base score and a final score count for training's part.

    The base weights of one model score the same in every run. They are often measured once, and every run gets a copy
    of that score. A copy is no further evidence, so only measurements that differ are counted. A single measurement has
    the uncertainty of its finite number of episodes.
    """
    agent = _agent_part(runs, baseline, metric_range)
    trained = {
        name: sample_of([run for run in each.values() if run.base is not None], metric_range)
        for name, each in ((ARM, runs), (BASELINE, baseline))
    }
    if math.isnan(agent.value) or min(sample.n for sample in trained.values()) < 2:
        return _as_part(agent, alpha), GainPart()
    return _as_part(agent, alpha), _as_part(_less(contrast_of(WEIGHTS, trained), agent), alpha)


def gain_of_weights(runs: Runs, baseline: Runs, metric_range: Range, alpha: float) -> GainPart:
    """Return the difference of trained weights where the baseline's agent plays with both."""
    if not any(run.with_plain for run in runs.values()):
        return GainPart()
    samples = {
        ARM: sample_of([_with_plain(run, baseline) for run in runs.values()], metric_range),
        BASELINE: sample_of(list(baseline.values()), metric_range),
    }
    if min(sample.n for sample in samples.values()) < 2:
        return GainPart()
    return _as_part(contrast_of(WEIGHTS, samples), alpha)


def _with_plain(run: ScoredRun, baseline: Runs) -> ScoredRun:
    """Return a run as the baseline's agent scores it; one that failed and counts as untrained does so there too."""
    bases = [each.base for each in baseline.values() if each.base is not None]
    if run.with_plain is not None or run.score != run.base or not bases:
        return run.with_plain or run
    return replace(run, score=fmean(bases))


def _agent_part(runs: Runs, baseline: Runs, metric_range: Range) -> Estimate:
    measured = {ARM: _measurements(runs), BASELINE: _measurements(baseline)}
    if not all(measured.values()):
        return NOT_ESTIMATED
    if measured[ARM] == measured[BASELINE]:
        # The same measurements come from the same agent.
        return Estimate(0.0, 0.0, math.inf)
    samples = {name: _sample(scores, metric_range) for name, scores in measured.items()}
    if min(sample.n for sample in samples.values()) > 1:
        return contrast_of(WEIGHTS, samples)
    return noise_of(WEIGHTS, samples)


def _measurements(runs: Runs) -> set[tuple[float, float]]:
    return {(run.base, run.base_noise or 0.0) for run in runs.values() if run.base is not None}


def _sample(measured: set[tuple[float, float]], metric_range: Range) -> ArmSample:
    return sample_of([ScoredRun("", score, noise) for score, noise in sorted(measured)], metric_range)


def _less(total: Estimate, part: Estimate) -> Estimate:
    """Return the difference of two estimates, taken to be independent."""
    final, base = total.stderr**2, part.stderr**2
    below = final**2 / total.df + base**2 / part.df
    df = (final + base) ** 2 / below if below else math.inf
    return Estimate(total.value - part.value, math.sqrt(final + base), df)


def _as_part(estimate: Estimate, alpha: float) -> GainPart:
    if math.isnan(estimate.value):
        return GainPart()
    low, high = estimate.interval(alpha)
    return GainPart(estimate.value, low, high, estimate.p_two_sided())
