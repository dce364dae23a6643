"""The rules that tell from the metrics of a training's steps that it is not worth going on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean, pvariance
from typing import Self

REWARD, SPREAD = "critic/score/mean", "critic/score/std"
SUCCESS = "batch/success_rate"
"""Share of the batch's episodes that the environment counts as solved, whatever their reward in training."""
AGREEMENT, GRADED_GROUPS = "batch/reward_success_correlation", "batch/graded_groups"
"""The correlation of return and success within groups, and the number of groups in which both differ."""
ENTROPY, KL = "actor/entropy", "actor/ppo_kl"
GROUPS, SILENT_GROUPS = "rollout/groups", "rollout/groups_zero_advantage"
"""The number of groups in a batch, and of those whose advantages are all zero, which teach nothing."""
BATCH_GROUPS = "batch/groups"
"""The number of groups as the server counts them, whatever the engine reports."""
UPDATES, SKIPPED_UPDATES = "actor/updates", "actor/updates_not_finite"
"""The number of a step's optimizer updates, and of those that were skipped because a gradient was not finite."""
WATCHED = (REWARD, SPREAD, SUCCESS, AGREEMENT, GRADED_GROUPS, ENTROPY, KL, GROUPS, SILENT_GROUPS, BATCH_GROUPS)

StepMetrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class StepRow:
    """The metrics of one step. Its rewards were earned with the weights of the step before."""

    step: int
    metrics: StepMetrics


def mean(rows: Sequence[StepRow], name: str) -> float | None:
    """Return the mean of a metric over the rows that have it, or None if none has."""
    values = [value for row in rows if (value := row.metrics.get(name)) is not None]
    return fmean(values) if values else None


def groups_of(rows: Sequence[StepRow]) -> float | None:
    """Return the mean number of groups of these steps, or None if it is unknown."""
    return mean(rows, GROUPS) or mean(rows, BATCH_GROUPS)


def silent_share(metrics: StepMetrics) -> float | None:
    """Return the share of groups that taught nothing."""
    groups, silent = metrics.get(GROUPS), metrics.get(SILENT_GROUPS)
    return silent / groups if groups and silent is not None else None


MARGIN = 2
"""A limit is at least so many times the largest value in trainings that went well."""


@dataclass(frozen=True, slots=True)
class MetricLimits:
    """The limits beyond which a training is not worth going on.

    collapse_*: over one of the `windows`, in steps, the mean fell below `fraction` of the best such window, which was
    at least `floor`. The fall is larger than `deviations` standard errors, with every group counted as one episode.
    So a few groups need a long window, and many groups a short one. `reward_fraction` is the fraction for the training
    reward of a program whose success rate is known, because a program may change its reward on the way.
    dead_steps: steps in a row without any reward. At 128 episodes a step, no skill that rare can be learned.
    kl_limit: the largest absolute KL divergence of one step.
    silent_*: over so many steps the rewards were equal in at least this share of all groups, while at most `solved` of
    the episodes are successes. Nothing is learned any more, and the task is not learned yet.
    evidence_groups: the least number of groups behind `dead_steps` and `silent_steps`. With small batches, more steps
    are needed.
    entropy_fraction: over `silent_steps` the entropy stayed below this fraction of its mean in the first `window`,
    with the task likewise unsolved. The policy has settled on one answer.
    gap_*: from the first to the last `window` steps the training reward rose by at least `rise` standard
    deviations of an episode's reward, while the success rate fell by at least `fall`. The program's reward is then
    learned at the cost of the task.
    contrary_*: in the newest `steps` or more, with at least `groups` graded groups, the correlation of reward and
    success is at most `correlation`. The reward then teaches to fail.
    """

    windows: tuple[int, ...] = (3, 5, 10, 20)
    collapse_fraction: float = 1 / 3
    collapse_reward_fraction: float = 0.1
    collapse_floor: float = 0.1
    collapse_deviations: float = 4.0
    dead_steps: int = 12
    window: int = 5
    kl_limit: float = 10.0
    silent_steps: int = 12
    silent_share: float = 0.98
    solved: float = 0.9
    evidence_groups: int = 100
    entropy_fraction: float = 0.01
    gap_rise: float = 1.0
    gap_fall: float = 0.1
    contrary_steps: int = 3
    contrary_groups: int = 12
    contrary_correlation: float = -0.5

    def learned_from(self, healthy: Iterable[Sequence[StepMetrics]]) -> Self:
        """Return limits that are wider where healthy runs came close to these; each run is given as its steps in order.

        The baseline shows how late the first reward may come and for how long steps may teach nothing. It also shows
        how far one step may move the policy.
        """
        limits = self
        for steps in healthy:
            moved = [abs(value) for step in steps if (value := step.get(KL)) is not None]
            limits = replace(
                limits,
                dead_steps=max(limits.dead_steps, MARGIN * _longest(steps, lambda step: step.get(REWARD) == 0)),
                silent_steps=max(
                    limits.silent_steps,
                    MARGIN * _longest(steps, lambda step: (silent_share(step) or 0.0) >= self.silent_share),
                ),
                kl_limit=max(limits.kl_limit, MARGIN * max(moved, default=0.0)),
            )
        return limits


def _longest(steps: Iterable[StepMetrics], is_so: Callable[[StepMetrics], bool]) -> int:
    """Return the length of the longest run of consecutive steps for which `is_so` holds."""
    longest = present = 0
    for step in steps:
        present = present + 1 if is_so(step) else 0
        longest = max(longest, present)
    return longest


NOT_FINITE = "not_finite"
"""The kind of a fault after which the weights may be of no use at all."""
AS_GOOD = 0.8
"""A step counts as before the fall if it, and its window, reached this share of the best window."""
_CONTEXT = (ENTROPY, KL, "actor/grad_norm")


@dataclass(frozen=True, slots=True)
class TrainingFault:
    """A fault that the rules found at `step`, in one sentence.

    `good_step` is the newest step whose weights were good before the fault. It is None if they never were.
    """

    kind: str
    sentence: str
    step: int
    good_step: int | None


@dataclass(frozen=True, slots=True)
class _Series:
    """One metric of all rows, and the standard deviation of one group's value, or None if it is unknown."""

    values: Sequence[float]
    fraction: float
    deviation: Callable[[Sequence[StepRow], Sequence[StepRow]], float | None]


def find_fault(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    """Return the first fault that the rules find at the last of these rows, which are in the order of their steps."""
    if not rows:
        return None
    rules = (_not_finite, _contrary, _reward_gap, _collapsed, _dead, _diverged, _silent, _settled)
    return next((found for rule in rules if (found := rule(rows, limits)) is not None), None)


def _not_finite(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    last = rows[-1]
    broken = [name for name, value in last.metrics.items() if value is None or not math.isfinite(value)]
    if broken:
        sentence = f"{', '.join(sorted(broken)[:3])} is not a finite number at step {last.step}."
    elif last.metrics.get(SKIPPED_UPDATES) and not last.metrics.get(UPDATES):
        sentence = f"No gradient of step {last.step} is finite: the step changed nothing."
    else:
        return None
    return TrainingFault(NOT_FINITE, sentence, last.step, last.step - 1)


def _collapsed(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    for series in _series(rows, limits):
        for window in limits.windows:
            if len(rows) >= 2 * window and (found := _fall(rows, series, window, limits)) is not None:
                return found
    return None


def _series(rows: Sequence[StepRow], limits: MetricLimits) -> list[_Series]:
    """Return the success rate and the reward, as far as every row has them."""
    found: list[_Series] = []
    solved = [value for row in rows if (value := row.metrics.get(SUCCESS)) is not None]
    if len(solved) == len(rows):
        found.append(_Series(solved, limits.collapse_fraction, _binary_deviation))
    rewards = [value for row in rows if (value := row.metrics.get(REWARD)) is not None]
    if len(rewards) == len(rows):
        fraction = limits.collapse_reward_fraction if found else limits.collapse_fraction
        found.append(_Series(rewards, fraction, _spread))
    return found


def _fall(rows: Sequence[StepRow], series: _Series, window: int, limits: MetricLimits) -> TrainingFault | None:
    values = series.values
    if sum(values[-window:]) > series.fraction * window * max(values):
        return None
    means = _window_means(values, window)
    recent, earlier = means[-1], means[:-window]
    best = max(earlier)
    if best < limits.collapse_floor or recent > series.fraction * best:
        return None
    end = earlier.index(best) + window
    groups, deviation = groups_of(rows[-window:]), series.deviation(rows[end - window : end], rows[-window:])
    if groups and deviation is not None:
        # Rewards of one group are alike, so a group counts as one episode. Both windows have noise.
        error = deviation * math.sqrt(2 / (window * groups))
        if best - recent <= limits.collapse_deviations * error:
            return None
    name = "success rate" if series.deviation is _binary_deviation else "reward"
    sentence = (
        f"The mean {name} fell from {best:.3f} to {recent:.3f} by step {rows[-1].step}"
        f"{_context(rows[-1].metrics)}: the policy collapsed."
    )
    return TrainingFault("collapse", sentence, rows[-1].step, _as_good(rows, values, window))


def _as_good(rows: Sequence[StepRow], values: Sequence[float], window: int) -> int:
    """Return the step whose weights made the last row that was about as good as the best window."""
    means = _window_means(values, window)[:-1]
    best = max(means)
    good = [
        place
        for place, value in enumerate(means, start=window - 1)
        if value >= AS_GOOD * best and values[place] >= AS_GOOD * best
    ]
    return rows[good[-1] if good else means.index(best) + window - 1].step - 1


def _window_means(values: Sequence[float], window: int) -> list[float]:
    sums = [0.0, *accumulate(values)]
    return [(sums[place] - sums[place - window]) / window for place in range(window, len(sums))]


def _binary_deviation(before: Sequence[StepRow], after: Sequence[StepRow]) -> float | None:
    rate = mean([*before, *after], SUCCESS)
    return None if rate is None else math.sqrt(max(0.0, rate * (1 - rate)))


def _spread(before: Sequence[StepRow], after: Sequence[StepRow]) -> float | None:
    """Return the standard deviation of all rewards of these steps, or None if it is unknown.

    Small batches often have equal rewards, so the differences between steps count as well.
    """
    rows = [*before, *after]
    within = [value**2 for row in rows if (value := row.metrics.get(SPREAD)) is not None]
    rewards = [row.metrics.get(REWARD) or 0.0 for row in rows]
    return math.sqrt(fmean(within) + pvariance(rewards)) if within else None


def _dead(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    count = _enough(rows, limits.dead_steps, limits)
    rewards = _recent(rows, lambda step: step.get(REWARD), count)
    if not rewards or any(rewards):
        return None
    sentence = f"No episode earned a reward in {count} steps up to step {rows[-1].step}."
    return TrainingFault("dead_reward", sentence, rows[-1].step, _before(rows, lambda step: step.get(REWARD) == 0))


def _diverged(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    last = rows[-1]
    kl = last.metrics.get(KL)
    if kl is None or abs(kl) <= limits.kl_limit:
        return None
    sentence = f"One step moved the policy by a KL of {kl:.1f} at step {last.step}: it left its old self."
    return TrainingFault("kl_divergence", sentence, last.step, last.step - 1)


def _silent(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    count = _enough(rows, limits.silent_steps, limits)
    shares = _recent(rows, silent_share, count)
    if not shares or min(shares) < limits.silent_share or _is_solved(rows, limits):
        return None
    sentence = (
        f"In {count} steps up to step {rows[-1].step} at least {min(shares):.0%} of all groups had rewards without a "
        "difference: nothing is learned any more."
    )
    good = _before(rows, lambda step: (silent_share(step) or 0.0) >= limits.silent_share)
    return TrainingFault("no_signal", sentence, rows[-1].step, good)


def _settled(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    entropies = _recent(rows, lambda step: step.get(ENTROPY), limits.silent_steps)
    first = mean(rows[: limits.window], ENTROPY)
    if not entropies or first is None or max(entropies) >= limits.entropy_fraction * first or _is_solved(rows, limits):
        return None
    sentence = (
        f"The entropy fell from {first:.3g} to {entropies[-1]:.3g} by step {rows[-1].step}: the policy has settled on "
        "its answers."
    )
    floor = limits.entropy_fraction * first
    good = _before(rows, lambda step: (step.get(ENTROPY) or 0.0) < floor)
    return TrainingFault("entropy_collapse", sentence, rows[-1].step, good)


def _reward_gap(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    window = limits.window
    if len(rows) < 2 * window:
        return None
    first, last = rows[:window], rows[-window:]
    was, now, spread = mean(first, REWARD), mean(last, REWARD), mean(first, SPREAD)
    solved, still = mean(first, SUCCESS), mean(last, SUCCESS)
    if was is None or now is None or spread is None or solved is None or still is None:
        return None
    if now - was <= limits.gap_rise * spread or solved - still < limits.gap_fall:
        return None
    sentence = (
        f"The training reward rose from {was:.3f} to {now:.3f} by step {rows[-1].step} while the share of solved tasks "
        f"fell from {solved:.3f} to {still:.3f}: the reward is learned at the cost of the task."
    )
    rates = [row.metrics.get(SUCCESS) or 0.0 for row in rows]
    return TrainingFault("reward_gap", sentence, rows[-1].step, _as_good(rows, rates, window))


def _contrary(rows: Sequence[StepRow], limits: MetricLimits) -> TrainingFault | None:
    newest: list[tuple[float, float]] = []
    for row in reversed(rows):
        agreement, groups = row.metrics.get(AGREEMENT), row.metrics.get(GRADED_GROUPS)
        if agreement is None or not groups:
            continue
        newest.append((agreement, groups))
        count = sum(groups for _, groups in newest)
        if len(newest) >= limits.contrary_steps and count >= limits.contrary_groups:
            break
    else:
        return None
    found = sum(agreement * groups for agreement, groups in newest) / count
    if found > limits.contrary_correlation:
        return None
    sentence = (
        f"Within groups the training reward has a correlation of {found:.2f} with success up to step {rows[-1].step}: "
        "it teaches to fail."
    )
    good = _before(rows, lambda step: (step.get(AGREEMENT) or 0.0) <= limits.contrary_correlation)
    return TrainingFault("contrary_reward", sentence, rows[-1].step, good)


def _enough(rows: Sequence[StepRow], steps: int, limits: MetricLimits) -> int:
    """Return the number of steps that a rule looks at: `steps`, or more if they have too few groups."""
    groups = groups_of(rows[-steps:])
    return steps if not groups else max(steps, math.ceil(limits.evidence_groups / groups))


def _recent(rows: Sequence[StepRow], value_of: Callable[[StepMetrics], float | None], count: int) -> list[float]:
    """Return the values of the last `count` steps; an empty list unless all of these steps have one."""
    values = [value_of(row.metrics) for row in rows[-count:]]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) == count else []


def _before(rows: Sequence[StepRow], is_bad: Callable[[StepMetrics], bool]) -> int | None:
    """Return the step whose weights made the last row that is not bad, or None if all rows are bad."""
    good = next((row.step for row in reversed(rows) if not is_bad(row.metrics)), None)
    return None if good is None else good - 1


def _is_solved(rows: Sequence[StepRow], limits: MetricLimits) -> bool:
    """Return whether there is nothing left to learn, by the success rate or else by the reward."""
    last = rows[-limits.window :]
    rate = mean(last, SUCCESS)
    rate = mean(last, REWARD) if rate is None else rate
    return rate is not None and rate > limits.solved


def _context(metrics: StepMetrics) -> str:
    known = [(name.partition("/")[2], metrics.get(name)) for name in _CONTEXT]
    parts = [f"{name} {value:.3g}" for name, value in known if value is not None]
    return f" ({', '.join(parts)})" if parts else ""
