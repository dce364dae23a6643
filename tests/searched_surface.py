"""Exploration without servers: a policy and a proposer on a surface of recorded runs.

A surface has one run per combination of levels and seed. Its factors are settings, and the program where there is one.
Where a study would train an arm to a rung, the score of its run with seed 0 is looked up. The truth of an arm is its
mean at the end of training: over the fresh seeds, which the best arms have and which are scored on more episodes, or
else over the seeds of the grid.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from researcher.charter import Factor, Level, PolicyName, ProposerName
from researcher.question.factors import PROGRAM, SPECS
from researcher.question.flags import make_factor
from researcher.search.policies import POLICIES, PolicyBounds
from researcher.search.proposers import PROPOSERS, Levels, ProposeLevels, combine_all, count_combinations
from researcher.search.rules import PLAIN_PROGRAM
from researcher.tree import Expand, Promote, RungScore, SearchNode, SearchTree

FOLDER = Path(__file__).parent / "surfaces"
RUNGS = (0.25, 0.5, 1.0)
EPISODES = 200
GRID_SEEDS = (0, 1)
USUAL: Mapping[str, Any] = {
    "lr": 1e-3, "num_repeat": 8, "batch_size": 16, "mini_batch_num": 4, "temperature": 1.0, "ppo_epochs": 1,
    "algorithm": "grpo", "use_kl_loss": False, "entropy_coeff": 0.0, "clip_ratio": 0.2, PROGRAM: PLAIN_PROGRAM,
}  # fmt: skip
"""The baseline's settings and its program."""
OF_PROGRAMS = "programs_"
"""The names of surfaces with programs begin with this."""


@dataclass(frozen=True, slots=True)
class Surface:
    """The scores at each rung of seed 0, the truth, and the steps of a full run, by the levels in their order."""

    space: tuple[Factor, ...]
    scores: Mapping[tuple[str, ...], Sequence[float]]
    truth: Mapping[tuple[str, ...], float]
    steps: Mapping[tuple[str, ...], int]
    usual: Levels

    def key(self, levels: Levels) -> tuple[str, ...]:
        return tuple(levels[factor.name] for factor in self.space)

    def true_score(self, levels: Levels) -> float:
        return self.truth[self.key(levels)]

    def used(self, tree: SearchTree) -> float:
        """The part of the grid's training that the arms of a tree have had: of its episodes or steps, the larger."""
        steps = sum(self.steps[self.key(node.levels)] * node.last.share for node in tree.nodes if node.last)
        return max(tree.spent / len(self.truth), steps / sum(self.steps.values()))

    @property
    def best(self) -> float:
        return max(self.truth.values())

    def score(self, levels: Levels, share: float) -> RungScore:
        score = self.scores[self.key(levels)][RUNGS.index(share)]
        smoothed = (score * EPISODES + 1) / (EPISODES + 2)
        return RungScore(share, round(100 * share), score, math.sqrt(smoothed * (1 - smoothed) / EPISODES))


def surfaces(*, of_programs: bool = False) -> tuple[str, ...]:
    names = (path.stem for path in FOLDER.glob("*.jsonl"))
    return tuple(sorted(name for name in names if name.startswith(OF_PROGRAMS) is of_programs))


@cache
def load_surface(name: str) -> Surface:
    runs = [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]
    values = {setting: list(dict.fromkeys(run["settings"][setting] for run in runs)) for setting in runs[0]["settings"]}
    space = tuple(_factor(name, levels) for name, levels in values.items())
    finals: dict[tuple[str, ...], dict[int, float]] = {}
    scores: dict[tuple[str, ...], list[float]] = {}
    steps: dict[tuple[str, ...], int] = {}
    for run in runs:
        key = tuple(
            next(level.name for level in factor.levels if level.factors[factor.name] == run["settings"][factor.name])
            for factor in space
        )
        at = {round(int(step) / run["steps"], 6): score for step, score in run["scores"].items()}
        finals.setdefault(key, {})[run["seed"]] = at[1.0]
        steps[key] = run["steps"]
        if run["seed"] == 0:
            scores[key] = [at[share] for share in RUNGS]
    usual = {
        factor.name: next(
            (level.name for level in factor.levels if level.factors[factor.name] == USUAL[factor.name]),
            factor.levels[0].name,
        )
        for factor in space
    }
    truth = {key: true_mean(found) for key, found in finals.items()}
    return Surface(space, scores, truth, steps, usual)


def true_mean(finals: Mapping[int, float]) -> float:
    """Return the best estimate of an arm's mean from its final scores by seed."""
    fresh = [score for seed, score in finals.items() if seed not in GRID_SEEDS]
    return fmean(fresh or finals.values())


def _factor(name: str, levels: Sequence[Any]) -> Factor:
    if name == PROGRAM:
        return Factor(PROGRAM, tuple(Level(level, {PROGRAM: level}, {}) for level in levels))
    return make_factor(SPECS[name], list(levels))


@dataclass(frozen=True, slots=True)
class Explored:
    """The end of an exploration: the tree, the rounds it took, and the levels of the arm that is best by the policy."""

    tree: SearchTree
    rounds: int
    winner: Levels


def explore(
    surface: Surface, policy: PolicyName, proposer: ProposerName, *, runs: float, width: int = 2, seed: int = 0
) -> Explored:
    """Explore a surface as a study does, until the policy has no more moves."""
    choose = POLICIES[policy](PolicyBounds(arms=count_combinations(surface.space)))
    tree = SearchTree((SearchNode("baseline", levels=surface.usual),), seed=seed)
    rounds = 0
    while moves := choose(tree, RUNGS, runs - tree.spent, width):
        tree = carry_out(tree, moves, surface, PROPOSERS[proposer])
        rounds += 1
    return Explored(tree, rounds, tree.ranked()[0].levels)


def carry_out(
    tree: SearchTree, moves: Sequence[Expand | Promote], surface: Surface, propose: ProposeLevels
) -> SearchTree:
    nodes = {node.name: node for node in tree.nodes}
    added: list[Levels] = []
    for move in moves:
        if isinstance(move, Promote):
            node = nodes[move.arm]
            nodes[move.arm] = replace(node, scores=(*node.scores, surface.score(node.levels, move.share)))
            continue
        levels = propose(tree, surface.space, move, added)
        assert levels is not None, "a policy adds no arm to a space that is used up"
        added.append(levels)
        name = f"arm-{len(nodes)}"
        nodes[name] = SearchNode(name, move.parents, move.operator, levels, (surface.score(levels, RUNGS[0]),))
    return replace(tree, nodes=tuple(nodes.values()))


def search_at_random(surface: Surface, *, runs: int, seed: int) -> Levels:
    """Return the best of as many random arms as there are full runs."""
    arms = random.Random(seed).sample(list(combine_all(surface.space)), runs)
    return max(arms, key=lambda levels: surface.score(levels, 1.0).score)
