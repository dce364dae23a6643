"""The bank of cases: shapes of scores under which a rule of decision is wrong more often than it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.random import default_rng

from bench.judge.many_studies import EvaluatedRuns, decide, measure
from bench.judge.policies import fixed_seeds
from bench.judge.shapes import (
    BASE,
    TAILS,
    Drawn,
    Shape,
    beta,
    choosy,
    clipped,
    failing,
    heavy_tailed,
    hiding,
    level_with,
    normal,
    tailed,
    two_groups,
)
from bench.judge.simulation import Truth, play_studies
from experiments_db import Verdict
from researcher.charter import Charter
from researcher.judge import Family, Runs, judge
from researcher.judge.samples import ScoredRun

ARMS = 4
EFFECT = 0.10
ALL_SEEDS = (3, 6, 9)
SKEWED_SEEDS = (6, 9, 12)
FAMILIES = (1, 3, 4)
BASELINE = "baseline"
LOST = "the system lost it"


@dataclass(frozen=True, slots=True)
class Case:
    """The distributions of the runs of the arms and of the baseline.

    Every arm has the true mean of the baseline, or beats it in as many pairs of runs as it loses, so a verdict for or
    against it is false. In the cases of power one arm is better by `EFFECT`.

    The first `arms` of the arms have the shape `arm`, the others that of the baseline.

    `impossible_with` lists the numbers of seeds for which no test can hold, because the decisive runs are likely not to
    be seen. `why` gives the reason. `is_better` says that the first arm is better, so that keeping it is right.
    `families` are the numbers of arms with which the rates are measured.
    """

    name: str
    arm: Shape
    baseline: Shape
    arms: int = ARMS
    seeds: tuple[int, ...] = ALL_SEEDS
    impossible_with: tuple[int, ...] = ()
    why: str = ""
    is_better: bool = False
    families: tuple[int, ...] = (ARMS,)

    @property
    def holding_with(self) -> tuple[int, ...]:
        return tuple(seeds for seeds in self.seeds if seeds not in self.impossible_with)


@dataclass(frozen=True, slots=True)
class Rates:
    """The counts over simulated studies.

    `kept` counts studies in which some arm was kept, `worse` those in which some arm was called worse or no better, and
    `first_kept` those in which the first arm was kept.
    """

    studies: int
    kept: int
    worse: int
    first_kept: int


def cases() -> tuple[Case, ...]:
    return (*_symmetric(), *_ends(), *_spreads(), *_skewed(), *_groups(), *_selected(), *_better())


def _symmetric() -> list[Case]:
    return [Case(f"symmetric, sd {sd:g}", normal(0.5, sd), normal(0.5, sd)) for sd in (0.03, 0.05, 0.08)]


def _ends() -> list[Case]:
    steady = [(0.90, 0.02, 0.10), (0.93, 0.015, 0.08), (0.97, 0.01, 0.04), (0.10, 0.02, 0.10), (0.07, 0.015, 0.08)]
    shown = [
        Case(f"mean {mean:g}, sd {sd:g} against {calm:g}", beta(mean, sd), beta(mean, calm))
        for mean, calm, sd in steady
    ]
    some = [
        Case(f"the same at {mean:g}, {count} of 4 arms", beta(mean, sd), beta(mean, calm), arms=count)
        for mean, calm, sd in steady[:2]
        for count in (1, 2)
    ]
    return [
        *shown,
        *some,
        Case("cut off at the ceiling, mean 0.9, sd 0.1 against 0.02", clipped(0.9, 0.1), clipped(0.9, 0.02)),
        Case("cut off at the floor, mean 0.1, sd 0.1 against 0.02", clipped(0.1, 0.1), clipped(0.1, 0.02)),
        Case("all near the ceiling, mean 0.95, sd 0.05", beta(0.95, 0.05), beta(0.95, 0.05)),
        Case("all near the floor, mean 0.05, sd 0.05", beta(0.05, 0.05), beta(0.05, 0.05)),
        Case("mean 0.8, sd 0.15 against 0.02", beta(0.8, 0.15), beta(0.8, 0.02)),
        Case("mean 0.7, sd 0.15 against 0.02", beta(0.7, 0.15), beta(0.7, 0.02)),
    ]


def _spreads() -> list[Case]:
    return [
        Case("arms sd 0.1, baseline 0.02", normal(0.5, 0.10), normal(0.5, 0.02)),
        Case("arms sd 0.02, baseline 0.1", normal(0.5, 0.02), normal(0.5, 0.10)),
        Case("steady arms at 0.9, sd 0.02 against 0.1", beta(0.9, 0.02), beta(0.9, 0.10)),
        Case("heavy tails (t, 3 df), sd 0.05", heavy_tailed(0.5, 0.05), heavy_tailed(0.5, 0.05)),
        Case("heavy tails in the arms, sd 0.08 against 0.03", heavy_tailed(0.5, 0.08), normal(0.5, 0.03)),
        Case("heavy tails in the baseline, sd 0.08 against 0.03", normal(0.5, 0.03), heavy_tailed(0.5, 0.08)),
    ]


def _skewed() -> list[Case]:
    """Return the cases of skewed runs, once with equal means and once with a median pair of equal runs.

    With equal means, an arm with a tail of bad runs wins most pairs, so keeping it is right by the words of the verdict
    and wrong about the mean. The same holds for a baseline with a tail of good runs.
    """
    calm, found = normal(0.5, 0.02), list[Case]()
    for tail in TAILS:
        found += [
            _of_means(f"left tail, {tail}, sd {sd:g} against 0.02", tailed(tail, 0.5, -sd), calm)
            for sd in (0.04, 0.08, 0.12)
        ]
        found.append(_level(f"right tail, {tail}, sd 0.08 against 0.02", tailed(tail, 0.5, 0.08), calm))
    wide = normal(0.5, 0.05)
    for tail in ("exponential", "lognormal 0.75"):
        bad, good, high = tailed(tail, 0.5, -0.08), tailed(tail, 0.5, 0.08), tailed(tail, 0.75, -0.08)
        found += [
            _of_means(f"baseline with a right tail, {tail}, sd 0.08 against 0.02", calm, good),
            _of_means(f"left tail against a right tail, {tail}, sd 0.08", bad, good),
            _of_means(f"left tail at 0.75, {tail}, sd 0.08 against 0.02", high, normal(0.75, 0.02)),
            _level(f"baseline with a left tail, {tail}", calm, bad),
            _level(f"right tail against a left tail, {tail}", good, bad),
            _level(f"left tail, {tail}, sd 0.08 against 0.02", bad, calm),
            _level(f"right tail, {tail}, sd 0.08 against 0.05", good, wide),
        ]
    return found


def _of_means(name: str, arm: Shape, baseline: Shape) -> Case:
    why = "the arm wins most pairs of runs, which the verdict is about, though the means are equal"
    return Case(name, arm, baseline, seeds=SKEWED_SEEDS, impossible_with=SKEWED_SEEDS, why=why, families=FAMILIES)


def _level(name: str, arm: Shape, baseline: Shape) -> Case:
    moved = level_with(arm, baseline)
    return Case(f"level pairs, {name}", moved, baseline, seeds=SKEWED_SEEDS, families=FAMILIES)


def _groups() -> list[Case]:
    few = "all runs of an arm may fall into one of two groups: of 3 with probability 0.25, of 6 with 0.03"
    rare = "none of an arm's runs may be among those that collapse: of 9 with probability 0.13, of 3 with 0.51"
    rarer = "none of an arm's runs may be among those that collapse: of 9 with probability 0.39, of 3 with 0.73"
    halves = two_groups(0.7, 0.3, 0.5, 0.03)
    collapsing, steady = two_groups(0.9, 0.5, 0.2, 0.03), normal(0.82, 0.03)
    return [
        Case("two groups, 0.7 and 0.3, against 0.5", halves, normal(0.5, 0.03), impossible_with=(3, 6), why=few),
        Case("two groups, 0.7 and 0.3, in all arms", halves, halves, impossible_with=(3,), why=few),
        Case("a baseline of two groups, 0.7 and 0.3", normal(0.5, 0.03), halves, impossible_with=(3,), why=few),
        Case(
            *("two groups, 40 % of the runs in the lower", two_groups(0.7, 0.3, 0.4, 0.03), normal(0.54, 0.03)),
            impossible_with=(3, 6),
            why="all runs of an arm may fall into the higher group: of 9 with probability 0.01, of 3 with 0.22",
        ),
        Case("20 % collapse unlabelled", collapsing, steady, impossible_with=ALL_SEEDS, why=rare),
        Case("20 % collapse unlabelled, 2 of 4 arms", collapsing, steady, 2, impossible_with=ALL_SEEDS, why=rare),
        Case(
            *("10 % collapse unlabelled", two_groups(0.9, 0.3, 0.1, 0.03), normal(0.84, 0.03)),
            impossible_with=ALL_SEEDS,
            why=rarer,
        ),
        Case(
            *("20 % fail and count with the base score", failing(normal(0.65, 0.03), 0.2), normal(0.56, 0.03)),
            impossible_with=ALL_SEEDS,
            why=rare,
        ),
        Case(
            *("10 % fail and count with the base score", failing(normal(0.65, 0.03), 0.1), normal(0.605, 0.03)),
            impossible_with=ALL_SEEDS,
            why=rarer,
        ),
    ]


def _selected() -> list[Case]:
    """Return the cases of programs that choose which of their runs are seen.

    Thresholds are quantiles of a normal distribution.
    """
    even, calm = normal(0.5, 0.05), normal(0.5, 0.05)
    found: list[Case] = []
    for share, z in (("lowest tenth", -1.28), ("lower third", -0.43), ("lower half", 0.0), ("all but a tenth", 1.28)):
        below = 0.5 + 0.05 * z
        found.append(Case(f"seeds left out: {share}", hiding(even, below), calm))
        found.append(Case(f"trained until liked: {share}", choosy(even, below), calm))
        found.append(Case(f"trained twice at most: {share}", choosy(even, below, 2), calm))
    skewed, steady = beta(0.9, 0.1), beta(0.9, 0.02)
    apart = two_groups(0.9, 0.2, 0.5, 0.03)
    return [
        *found,
        Case("trained until liked, where training adds little", choosy(normal(0.22, 0.05), 0.22), normal(0.22, 0.05)),
        Case(
            "trained until above 0.25, where training adds little", choosy(normal(0.22, 0.05), 0.25), normal(0.22, 0.05)
        ),
        *(
            Case(f"two groups, 0.9 and 0.2, the lower {what}", of(apart, 0.5), normal(0.55, 0.03), seeds=(9,))
            for what, of in (("left out", hiding), ("trained again", choosy))
        ),
        Case("seeds left out below 0.85 at mean 0.9", hiding(skewed, 0.85), steady),
        Case("trained until above 0.85 at mean 0.9", choosy(skewed, 0.85), steady),
        Case("trained until above 0.95 at mean 0.9", choosy(skewed, 0.95), steady),
        Case("seeds left out, by 1 of 4 arms", hiding(even, 0.5), calm, arms=1),
        Case("trained until liked, by 1 of 4 arms", choosy(even, 0.5), calm, arms=1),
    ]


def _better() -> list[Case]:
    return [
        Case(f"better by 0.10, sd {sd:g}", normal(0.5 + EFFECT, sd), normal(0.5, sd), 1, is_better=True)
        for sd in (0.03, 0.05, 0.08)
    ]


def play(case: Case, seeds: int, studies: int, seed: int, arms: int = ARMS) -> Rates:
    """Play this many studies of one plan, as arrays."""
    charter = fixed_seeds(arms, seeds).charter
    drawn, of_baseline = draw(case, charter, seeds, studies, seed, arms)
    with np.errstate(divide="ignore", invalid="ignore"):
        is_kept, is_worse = decide(charter.rule, drawn, of_baseline)
    counts = (is_kept.any(axis=-1), is_worse.any(axis=-1), is_kept[:, 0])
    return Rates(studies, *(int(each.sum()) for each in counts))


def draw(
    case: Case, charter: Charter, seeds: int, studies: int, seed: int, arms: int = ARMS
) -> tuple[EvaluatedRuns, EvaluatedRuns]:
    """Draw the runs of the arms and of the baseline, as the evaluator gives them."""
    random = default_rng(seed)
    by_arm = [_shape_of(case, index)(random, (studies, seeds)) for index in range(arms)]
    together = Drawn(*(np.stack([getattr(each, name) for each in by_arm], axis=1) for name in Drawn.__slots__))
    of_baseline = case.baseline(random, (studies, 1, seeds))
    return measure(together, random, charter.eval_episodes), measure(of_baseline, random, charter.eval_episodes)


def judge_one(charter: Charter, drawn: EvaluatedRuns, of_baseline: EvaluatedRuns, study: int) -> dict[str, Verdict]:
    """Return the verdicts of `judge` for one of the studies."""
    runs: dict[str, Runs] = {BASELINE: _runs_of(BASELINE, of_baseline, study, 0)}
    missing: dict[str, Mapping[int, str]] = {}
    for index in range(drawn.scores.shape[1]):
        name = f"arm-0-{index}"
        runs[name] = _runs_of(name, drawn, study, index)
        missing[name] = {int(seed): LOST for seed in np.flatnonzero(drawn.missing[study, index])}
    family = Family(0, runs, size=drawn.scores.shape[1], missing=missing)
    return {item.arm: item.verdict for item in judge(charter, runs, family).comparisons}


def _runs_of(name: str, measured: EvaluatedRuns, study: int, arm: int) -> Runs:
    return {
        int(seed): ScoredRun(
            run_id=f"{name}/{seed}",
            score=float(measured.scores[study, arm, seed]),
            noise=float(measured.noise[study, arm, seed]),
            base=BASE,
            failure="not_finite" if measured.failed[study, arm, seed] else "",
            retries=(LOST,) if measured.retried[study, arm, seed] else (),
        )
        for seed in np.flatnonzero(measured.shown[study, arm])
    }


def play_real(case: Case, seeds: int, studies: int, seed: int, arms: int = ARMS) -> Rates:
    """Play a case through the real plan, analyze and decide nodes, on a real store."""
    policy = fixed_seeds(arms, seeds)
    shapes = {BASELINE: case.baseline, **{f"arm-0-{index}": _shape_of(case, index) for index in range(arms)}}
    played = play_studies(policy.charter, policy.make_planner, Truth(shapes=shapes), studies, seed)
    return Rates(
        studies=studies,
        kept=sum(Verdict.KEEP in each.verdicts.values() for each in played),
        worse=sum(Verdict.WORSE in each.verdicts.values() for each in played),
        first_kept=sum(each.verdicts["arm-0-0"] == Verdict.KEEP for each in played),
    )


def _shape_of(case: Case, index: int) -> Shape:
    return case.arm if index < case.arms else case.baseline
