"""The error rates of the researcher: false keeps by policy and by shape of scores, power, and diverging arms.

2,000 studies of each policy that does not search take `--seconds 900` on an idle core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from scipy import stats

from bench.judge.bank import cases, play
from bench.judge.policies import FIVE_RATES, Policy, policies
from bench.judge.searches import SearchTruth, play_searches
from bench.judge.simulation import Played, Truth, play_studies
from bench.results import Result
from researcher.search.hypotheses import MOST_CONFIRMED

__all__ = [
    "FIVE_RATES",
    "Played",
    "Policy",
    "SearchTruth",
    "Truth",
    "play_searches",
    "play_studies",
    "policies",
    "run",
    "upper_bound",
]

STUDIES_AT_ONCE = 10
BANK_STUDIES = 10_000
SEARCHES = 2_000
BETTER = "lr=0.003"
"""The arm that the truth makes better, or makes diverge."""


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    policy: str
    truth: Truth
    metric: str
    counts: Callable[[Played], bool]


def run(seconds: float) -> list[Result]:
    found: list[Result] = []
    known = policies()
    for number, case in enumerate(_cases(list(known))):
        policy, played, started = known[case.policy], list[Played](), time.monotonic()
        while not played or time.monotonic() - started < seconds:
            seed = 1000 * number + len(played)
            played += play_studies(policy.charter, policy.make_planner, case.truth, STUDIES_AT_ONCE, seed)
        count = sum(case.counts(each) for each in played)
        rows = {
            case.metric: count / len(played),
            f"{case.metric}, 95 % upper bound": upper_bound(count, len(played)),
            "runs per arm": sum(each.seeds for each in played) / len(played),
        }
        found += [Result("judge", case.name, metric, value, "share") for metric, value in list(rows.items())[:2]]
        found.append(Result("judge", case.name, "runs per arm", rows["runs per arm"], "runs"))
        found.append(Result("judge", case.name, "studies", len(played), "studies"))
    return found + _searches() + _bank()


def _searches() -> list[Result]:
    """Return how often a search in which no arm is better keeps one, by the most arms that it confirms."""
    found: list[Result] = []
    for most in range(1, MOST_CONFIRMED + 1):
        played = play_searches(SearchTruth(), most, SEARCHES, seed=most)
        count = sum(bool(each.kept) for each in played)
        rows = {"false keeps": count / len(played), "95 % upper bound": upper_bound(count, len(played))}
        name = f"a search that confirms up to {most}, no arm is better"
        found += [Result("judge", name, what, value, "share") for what, value in rows.items()]
    return found


def _bank() -> list[Result]:
    """Return the rates of each case with each number of seeds: false keeps and false worse verdicts, or the power."""
    found: list[Result] = []
    for case in cases():
        for seeds, arms in product(case.seeds, case.families):
            rates = play(case, seeds, BANK_STUDIES, seed=1, arms=arms)
            counts = {"kept": rates.kept, "called worse": rates.worse}
            if case.is_better:
                counts = {"power": rates.first_kept}
            name = f"{case.name}, {seeds} seeds, {arms} arms"
            found += [Result("judge", name, what, count / rates.studies, "share") for what, count in counts.items()]
    return found


def upper_bound(count: int, total: int, confidence: float = 0.95) -> float:
    """Return the one-sided upper bound of a share (Clopper & Pearson 1934, Biometrika 26:404-413)."""
    return 1.0 if count == total else float(stats.beta.ppf(confidence, count + 1, total - count))


def _cases(names: list[str]) -> list[_Case]:
    def is_kept(played: Played) -> bool:
        return BETTER in played.kept

    null = [
        _Case(f"{name}, no arm is better", name, Truth(), "false keeps", lambda each: bool(each.kept)) for name in names
    ]
    wild = Truth(means={BETTER: 0.8}, failures={BETTER: 0.3})
    return [
        *null,
        *(
            _Case(
                f"one arm is better by 0.10, deviation {sd:g}",
                "fixed",
                Truth({BETTER: 0.6}, deviation=sd),
                "power",
                is_kept,
            )
            for sd in (0.02, 0.05)
        ),
        _Case("one arm is better by 0.30 and diverges in 30 % of its runs", "fixed", wild, "kept", is_kept),
    ]
