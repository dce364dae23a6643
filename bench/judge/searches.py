"""Simulated searches: exploring scores are drawn, the rules name the arms to confirm, and fresh runs are judged.

The hypotheses, the number of runs and the verdicts are those of a study. There is no store, so thousands take minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from numpy.random import Generator, default_rng

from bench.judge.policies import SEARCH, policies
from bench.judge.shapes import BASE
from experiments_db import Verdict
from researcher.charter import Charter, SampleSizeGoal
from researcher.history import History
from researcher.judge import Family, Runs, judge
from researcher.judge.power import choose_size, measure_spread
from researcher.judge.samples import ScoredRun
from researcher.plan import Contrast, Hypothesis, Relation
from researcher.scope import ArmPart, Scope
from researcher.search.hypotheses import is_of_better, usual_hypotheses
from researcher.tree import RungScore, SearchNode, SearchTree

EXPLORED = 12
KINDS = (ArmPart.SETTINGS, ArmPart.REWARD, ArmPart.SCHEDULE, ArmPart.AGENT)
ABLATIONS = 2
MEAN = 0.5


@dataclass(frozen=True, slots=True)
class SearchTruth:
    """The gains of arms over the baseline by name, 0 for all others, and the deviation between runs.

    The explored arms are `arm 0` to `arm 11`, and each is of the next kind. An ablation has the mean of the baseline.
    """

    gains: Mapping[str, float] = field(default_factory=dict[str, float])
    deviation: float = 0.05


@dataclass(frozen=True, slots=True)
class PlayedSearch:
    """The end of a simulated search: the arms of its confirmation, those kept, and the runs per arm.

    All are empty if no arm explored better than the baseline.
    """

    confirmed: tuple[str, ...] = ()
    kept: frozenset[str] = frozenset()
    seeds: int = 0


def play_searches(truth: SearchTruth, most_confirmed: int, studies: int, seed: int) -> list[PlayedSearch]:
    """Play searches that confirm at most so many arms, the same ones for the same `seed`."""
    charter = policies()[SEARCH].charter
    charter = replace(charter, baseline="baseline", asks=replace(charter.asks, scope=Scope.of(KINDS)))
    random = default_rng(seed)
    return [_play(charter, truth, most_confirmed, random) for _ in range(studies)]


def _play(charter: Charter, truth: SearchTruth, most_confirmed: int, random: Generator) -> PlayedSearch:
    tree = _explore(charter, truth, random)
    named = usual_hypotheses(charter, History(tree=tree), of_each_kind=True)[:most_confirmed]
    if not named:
        return PlayedSearch()
    primary = tuple(item.arms[0] for item in named)
    parts = [f"without part {index}" for index in range(ABLATIONS)] if is_of_better(named[0]) else []
    goal = charter.sample_size or SampleSizeGoal()
    pilot = _train(charter, truth, "baseline", range(goal.pilot_seeds), random)
    spread = measure_spread(charter, [list(pilot.values())], "a pilot")
    size = choose_size(charter, goal, spread, 1 + len(primary) + len(parts), primary=len(primary))
    rest = _train(charter, truth, "baseline", range(goal.pilot_seeds, size.seeds), random)
    runs: dict[str, Runs] = {"baseline": {**pilot, **rest}}
    runs |= {arm: _train(charter, truth, arm, range(size.seeds), random) for arm in (*primary, *parts)}
    family = Family(
        iteration=1, runs=runs, size=len(primary) + len(parts), primary=primary, contrasts=_contrasts(named, parts)
    )
    kept = {item.arm for item in judge(charter, runs, family).comparisons if item.verdict is Verdict.KEEP}
    return PlayedSearch(primary, frozenset(kept), size.seeds)


def _contrasts(named: tuple[Hypothesis, ...], parts: list[str]) -> dict[str, Contrast]:
    found = [item.contrast for item in named if item.contrast is not None]
    found += [Contrast(Relation.BETTER, named[0].arms, (part,)) for part in parts]
    return {f"h1.{index}": contrast for index, contrast in enumerate(found)}


def _explore(charter: Charter, truth: SearchTruth, random: Generator) -> SearchTree:
    assert charter.search is not None, "the policy is a search"
    short = replace(charter, eval_episodes=charter.search.episodes)
    names = ["baseline", *(f"arm {index}" for index in range(EXPLORED))]
    nodes: list[SearchNode] = []
    for index, name in enumerate(names):
        run = _train(short, truth, name, range(1), random)[0]
        parts = (KINDS[index % len(KINDS)],) if index else ()
        nodes.append(SearchNode(name, scores=(RungScore(1.0, 1, run.score, run.noise**0.5),), parts=parts))
    return SearchTree(tuple(nodes))


def _train(charter: Charter, truth: SearchTruth, arm: str, seeds: range, random: Generator) -> dict[int, ScoredRun]:
    found: dict[int, ScoredRun] = {}
    for seed in seeds:
        chance = random.normal(MEAN + truth.gains.get(arm, 0.0), truth.deviation)
        score = random.binomial(charter.eval_episodes, min(max(chance, 0.0), 1.0)) / charter.eval_episodes
        found[seed] = ScoredRun(f"{arm}/{seed}", score, score * (1 - score) / (charter.eval_episodes - 1), base=BASE)
    return found
