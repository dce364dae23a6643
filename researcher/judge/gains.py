"""The two parts of a difference: the effect of the arm's agent on the base weights, and the effect of training.

Place in the flow: judgement.py asks for both parts of every comparison. This module knows nothing of verdicts.

The base weights of one model score the same in every run. They are often measured once, and every run gets a copy of
that score. A copy is no further evidence, so only measurements that differ are counted. A single measurement has the
uncertainty of its finite number of episodes.
"""

from __future__ import annotations

import math

from researcher.analysis import GainPart
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
from researcher.judge.worst_case import Runs

ARM, BASELINE = "arm", "baseline"
WEIGHTS = {ARM: 1.0, BASELINE: -1.0}


def divide_gain(runs: Runs, baseline: Runs, metric_range: Range, alpha: float) -> tuple[GainPart, GainPart]:
    """Return the agent's part and training's part of the difference, in this order.

    Only runs with both a base score and a final score count for training's part.
    """
    agent = _agent_part(runs, baseline, metric_range)
    trained = {
        name: sample_of([run for run in each.values() if run.base is not None], metric_range)
        for name, each in ((ARM, runs), (BASELINE, baseline))
    }
    if math.isnan(agent.value) or min(sample.n for sample in trained.values()) < 2:
        return _as_part(agent, alpha), GainPart()
    return _as_part(agent, alpha), _as_part(_less(contrast_of(WEIGHTS, trained), agent), alpha)


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
