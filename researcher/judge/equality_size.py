"""The runs and the episodes that a question for equality takes, as far as they can be known before the first run."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from scipy import special

from researcher.charter import Charter, SampleSizeGoal
from researcher.judge.power import Spread, find_size, largest_noise, level_of, power_for, power_of_equality, scale_of

DEVIATIONS = (0.01, 0.02, 0.04)
"""Standard deviations between runs, as shares of the range, for which the number of runs is said beforehand."""
NOISE_SHARE = 0.25
"""The part of the variance that a margin allows which evaluation noise may take."""
MOST_EPISODES = 10_000
"""The most episodes per score that a study chooses by itself."""
MOST_GIVEN = 100
"""The most runs per arm that --seeds takes."""
_CERTAIN = 1e6
"""Degrees of freedom of a variance that is taken as known."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The power and the runs that a margin takes, before anything is measured.

    `power` is that of the study if its runs are much alike, and `need` is what would then be enough.
    """

    sentence: str
    power: float
    need: str


def choose_episodes(charter: Charter, comparisons: int, seeds: int) -> int:
    """Return the number of episodes per score, in hundreds, whose noise leaves room for the variance between seeds.

    With so many seeds, the margin allows some variance of a score. Noise may take a part of it (`NOISE_SHARE`).
    """
    margin, seeds = charter.margin, max(seeds, charter.rule.min_seeds, 2)
    assert margin is not None, "the caller asks for a question for equality"
    critical = float(special.stdtrit(2 * (seeds - 1), 1 - level_of(charter, comparisons)))
    # Of arms with the same mean, 80 % lie within 1.28 standard errors of each other.
    allowed = seeds / 2 * (margin / (critical + float(special.ndtri(0.9)))) ** 2
    episodes = largest_noise(charter) * charter.eval_episodes / (NOISE_SHARE * allowed)
    return 100 * math.ceil(episodes / 100)


def forecast(charter: Charter, goal: SampleSizeGoal, arms: int, seeds: int) -> Forecast:
    """Return how many runs the margin takes if runs differ little or much, for a study of at most so many seeds."""
    comparisons, scale = max(arms - 1, 1), scale_of(charter)
    spreads = [Spread((share * scale) ** 2, _CERTAIN, largest_noise(charter), "") for share in DEVIATIONS]
    sizes = [find_size(charter, goal, spread, comparisons) for spread in spreads]
    listed = ", ".join(
        f"{_runs(size, arms)} at {share * scale:g}" for share, size in zip(DEVIATIONS, sizes, strict=True)
    )
    power = power_for(charter, goal, spreads[0], comparisons, seeds)
    given = f"{seeds} runs per arm" if goal.seeds is not None else f"up to {seeds} runs per arm"
    sentences = [
        f"An arm as good as the baseline is called equal within {charter.margin:g} with probability "
        f"{goal.target_power:g} if it gets, at {charter.eval_episodes} episodes per score and by the standard "
        f"deviation between runs: {listed}.",
        f"This study has {given}, which reach {power:.2f} at {DEVIATIONS[0] * scale:g}.",
    ]
    noise_alone = find_size(charter, goal, replace(spreads[0], seed_variance=0.0), comparisons)
    if noise_alone is None or noise_alone > seeds:
        sentences.append(
            f"Evaluation noise alone takes {_runs(noise_alone, arms)}: --eval-episodes "
            f"{choose_episodes(charter, comparisons, seeds)} makes it small enough for {seeds}."
        )
    if goal.seeds is None and power >= goal.min_power:
        sentences.append(f"A pilot of {goal.pilot_seeds} runs of the baseline shows how runs differ.")
    return Forecast(" ".join(sentences), power, describe_need(charter, goal, spreads[0], arms))


def describe_need(charter: Charter, goal: SampleSizeGoal, spread: Spread, arms: int) -> str:
    """Return the runs and episodes that reach the goal, with the flags that ask for them.

    If no number of runs does, it is the margin that the most runs of the study reach.
    """
    comparisons, episodes = max(arms - 1, 1), charter.eval_episodes
    if spread.noise_variance > spread.seed_variance:
        wanted = choose_episodes(charter, comparisons, goal.max_seeds)
        noise = spread.noise_variance * episodes
        if spread.seed_variance > 0:
            wanted = min(wanted, 100 * math.ceil(noise / spread.seed_variance / 100))
        episodes = max(episodes, wanted)
        spread = replace(spread, noise_variance=noise / episodes)
    seeds = find_size(charter, goal, spread, comparisons)
    if seeds is None or seeds > MOST_GIVEN:
        margin = _margin_within_reach(charter, goal, spread, comparisons)
        return (
            f"more than {MOST_GIVEN} runs per arm at this margin; --seeds {goal.max_seeds} --eval-episodes {episodes} "
            f"reach it at --margin {margin:g}"
        )
    flags = f"--seeds {seeds} --eval-episodes {episodes}"
    if charter.budget.max_runs is not None:
        flags += f" --max-runs {max(arms * seeds, charter.budget.max_runs)}"
    return f"{_runs(seeds, arms)} at {episodes} episodes per score: {flags}"


def _margin_within_reach(charter: Charter, goal: SampleSizeGoal, spread: Spread, comparisons: int) -> float:
    """Return a margin of two digits that the study's most runs show with the goal's power, in steps of a tenth."""
    least = charter.margin or charter.rule.min_effect
    margins = [least * 1.1**step for step in range(100)]
    index = bisect_left(
        margins,
        goal.target_power,
        key=lambda margin: power_of_equality(charter, spread, comparisons, goal.max_seeds, margin),
    )
    found = margins[min(index, len(margins) - 1)]
    unit = 10.0 ** (math.floor(math.log10(found)) - 1)
    return float(f"{math.ceil(found / unit) * unit:.2g}")


def _runs(seeds: int | None, arms: int) -> str:
    if seeds is None or seeds > MOST_GIVEN:
        return f"more than {MOST_GIVEN} runs per arm"
    return f"{seeds} runs per arm ({arms * seeds} in all)"
