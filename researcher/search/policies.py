"""The policies of exploration: the rules by which arms are added or trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from random import Random
from statistics import fmean
from types import MappingProxyType

from experiments_db import Operator
from researcher.charter import Charter, PolicyName, SearchRules
from researcher.search.proposers import count_combinations
from researcher.tree import Expand, Move, Promote, SearchNode, SearchTree

MAX_DEBUGS = 3
"""The number of attempts, one after the other, to mend an arm that failed."""
MAX_ARMS_PER_PAID = 2
"""The arms of a tree per first rung that the allowance pays, so that arms that fail before they cost anything end."""
TOLERANCE = 1e-9
"""The rounding error of sums of shares."""
DRAFTED = 0.5
"""The part of the arms that are drafts under `halving`."""
BEST = 0.25
"""The part of the first rung whose arms `halving` improves."""
SIZE = 6
"""The arms of a population, and the drafts that begin it."""
TOURNAMENT = 3
"""The arms from which a parent is the best."""
CROSSED = 0.5
"""The part of a population's children that have two parents."""

ChooseMoves = Callable[[SearchTree, tuple[float, ...], float, int], tuple[Move, ...]]
"""The choice of the moves of the next round, which depends on its arguments alone; no moves end the exploration.

The arguments are the tree, the shares of the full training at which arms are scored, the number of full runs that may
still be used, and the number of arms that run at once. The moves cost no more than is left, and are at most that many.
"""


@dataclass(frozen=True, slots=True)
class PolicyBounds:
    """The arms that a policy may add.

    `debugs` allows attempts to mend failed arms, which is of use for planners that write programs. `arms` is the number
    of combinations in the space of the study; None if there is no such bound.
    """

    debugs: bool = False
    arms: int | None = None


def build_policy(charter: Charter, rules: SearchRules) -> ChooseMoves | None:
    """Return the choice of the charter's policy; None if the planner chooses by itself."""
    factors = charter.asks.factors
    # Rules write no programs, so an arm of theirs that failed cannot be mended.
    bounds = PolicyBounds(debugs=charter.planner != "rules", arms=count_combinations(factors) if factors else None)
    return POLICIES[rules.policy](bounds) if rules.policy in POLICIES else None


@dataclass(slots=True)
class Round:
    """The moves of one round, which are at most `width` and cost at most `left`.

    Enough is always left to train one arm to the last rung: `highest` is the highest rung that an arm has come to.
    """

    tree: SearchTree
    rungs: tuple[float, ...]
    left: float
    width: int
    bounds: PolicyBounds
    highest: float
    moves: list[Move] = field(default_factory=list[Move])

    @property
    def is_full(self) -> bool:
        return len(self.moves) >= self.width

    @property
    def new_arms(self) -> int:
        return sum(isinstance(move, Expand) for move in self.moves)

    def expand(self, parents: Sequence[str], operator: Operator) -> bool:
        """Add a new arm; return False if the round, the allowance or the space has no room for it."""
        if not self._has_room_for_arm():
            return False
        return self._add(Expand(tuple(parents), operator), self.rungs[0], self.rungs[0])

    def draft(self) -> bool:
        """Add a new arm that is derived from the baseline alone."""
        return self.expand([node.name for node in self.tree.nodes[:1]], Operator.DRAFT)

    def promote(self, node: SearchNode, share: float) -> bool:
        """Train an arm on to a rung; return False if the round or the allowance has no room for it."""
        if any(isinstance(move, Promote) and move.arm == node.name for move in self.moves):
            return False
        return self._add(Promote(node.name, share), share, share - (node.last.share if node.last else 0.0))

    def promote_next(self) -> None:
        """Fill the round with the best arms of the highest rungs, one rung on, as far as the allowance goes."""
        for index in reversed(range(len(self.rungs) - 1)):
            for node in leaders(self.tree, self.rungs[index]):
                if _is_at(node, self.rungs[index]):
                    self.promote(node, self.rungs[index + 1])

    def _has_room_for_arm(self) -> bool:
        count = len(self.tree.nodes) + self.new_arms
        paid = (self.tree.spent + self.left) / self.rungs[0]
        return count < MAX_ARMS_PER_PAID * paid and (self.bounds.arms is None or count < self.bounds.arms)

    def _add(self, move: Move, share: float, cost: float) -> bool:
        highest = max(self.highest, share)
        if self.is_full or cost + self.rungs[-1] - highest > self.left + TOLERANCE:
            return False
        self.moves.append(move)
        self.left -= cost
        self.highest = highest
        return True


def begin_round(tree: SearchTree, rungs: tuple[float, ...], left: float, width: int, bounds: PolicyBounds) -> Round:
    """Return a round with the moves that come first under every policy.

    Arms without a score are trained to the first rung: the baseline, and arms of a round that was broken off. Then
    failed arms are mended. If too little is left to finish any arm, the rungs that none can come to are left out.
    """
    highest = max((node.last.share for node in tree.nodes if node.last is not None and not node.failure), default=0.0)
    reached = tuple(rung for rung in rungs if rung <= highest + left + TOLERANCE) or rungs[:1]
    following = Round(tree, reached, left, max(width, 1), bounds, highest)
    for node in tree.nodes:
        if not node.scores and not node.failure:
            following.promote(node, reached[0])
    if bounds.debugs:
        for node in _to_mend(tree):
            following.expand((node.name,), Operator.DEBUG)
    return following


def leaders(tree: SearchTree, share: float) -> list[SearchNode]:
    """Return the arms that are not out and have a score at a rung, best first."""
    scored = [(node, score) for node in tree.nodes if not node.failure and (score := node.at(share)) is not None]
    return [node for node, _ in sorted(scored, key=lambda pair: -tree.sign * pair[1].score)]


def _promotable(tree: SearchTree, rungs: tuple[float, ...]) -> Iterator[tuple[SearchNode, float]]:
    """Yield the arms that go on, each with its next rung, by the rule of asynchronous successive halving.

    An arm goes on as soon as it is among the best of its rung. Twice the training leaves half of the arms (Li et al.
    2020, A System for Massively Parallel Hyperparameter Tuning).
    """
    for share, following in reversed(list(pairwise(rungs))):
        arms = leaders(tree, share)
        for node in arms[: int(len(arms) * share / following + TOLERANCE)]:
            if _is_at(node, share):
                yield node, following


def _is_at(node: SearchNode, share: float) -> bool:
    return node.last is not None and node.last.share == share


def _to_mend(tree: SearchTree) -> Iterator[SearchNode]:
    mended = {node.parents[0] for node in tree.nodes if node.operator is Operator.DEBUG and node.parents}
    for node in tree.nodes:
        if node.failure and node.parents and node.name not in mended and _debugs_before(tree, node) < MAX_DEBUGS:
            yield node


def _debugs_before(tree: SearchTree, node: SearchNode | None) -> int:
    count = 0
    while node is not None and node.operator is Operator.DEBUG and count < MAX_DEBUGS:
        count, node = count + 1, tree.find(node.parents[0])
    return count


def halve(
    bounds: PolicyBounds, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int
) -> tuple[Move, ...]:
    """Begin as many arms as the allowance finishes, and train on the best of each rung once all of it is scored.

    This is successive halving (Jamieson & Talwalkar 2016, Non-stochastic Best Arm Identification and Hyperparameter
    Optimization), where an arm that goes on costs only the way from its rung. The number of arms is computed anew for
    every round, so the best ones still finish if less is left than was expected. In a space much larger than the
    number of arms, new ones of the second half are better sought around the best of the first half.
    """
    following = begin_round(tree, rungs, left, width, bounds)
    sizes = _sizes(tree.spent + left, following.rungs, bounds.arms)
    begun = sum(not node.failure for node in tree.nodes) + following.new_arms
    while begun < sizes[0] and _begin(following, begun, sizes[0]):
        begun += 1
    if not following.moves:
        _promote_best(following, sizes)
    if not following.moves:
        following.promote_next()
    return tuple(following.moves)


def _begin(following: Round, begun: int, arms: int) -> bool:
    """Add an arm: a draft, or in the second half of the arms an improvement of one of the best, in turn."""
    best = leaders(following.tree, following.rungs[0])
    best = best[: max(1, int(BEST * len(best)))]
    if begun < DRAFTED * arms or not best:
        return following.draft()
    return following.expand((best[begun % len(best)].name,), Operator.IMPROVE)


def _promote_best(following: Round, sizes: Sequence[int]) -> None:
    """Train on the best arms of the lowest rung at which such arms wait."""
    rungs = following.rungs
    for index, share in enumerate(rungs[:-1]):
        for node in leaders(following.tree, share)[: sizes[index + 1]]:
            if node.last is not None and node.last.share == share:
                following.promote(node, rungs[index + 1])
        if following.moves:
            return


def _sizes(allowance: float, rungs: Sequence[float], most: int | None) -> list[int]:
    """Return the number of arms at each rung: the most that the allowance pays, at least one."""
    arms = 1
    while (most is None or arms < most) and _cost(_counts(arms + 1, rungs), rungs) <= allowance + TOLERANCE:
        arms += 1
    return _counts(arms, rungs)


def _counts(arms: int, rungs: Sequence[float]) -> list[int]:
    """Return the number of arms that reach each rung: half of them reach a rung of twice the training."""
    return [max(1, int(arms * rungs[0] / share + TOLERANCE)) for share in rungs]


def _cost(counts: Sequence[int], rungs: Sequence[float]) -> float:
    steps = (share - before for before, share in zip((0.0, *rungs), rungs, strict=False))
    return sum(count * step for count, step in zip(counts, steps, strict=True))


def breed(
    bounds: PolicyBounds, tree: SearchTree, rungs: tuple[float, ...], left: float, width: int
) -> tuple[Move, ...]:
    """Derive arms from the best of a population, by crossing two or changing one, and train on the best of each rung.

    A parent is the best of a few arms that are drawn (Goldberg & Deb 1991, A Comparative Analysis of Selection Schemes
    Used in Genetic Algorithms).
    """
    following = begin_round(tree, rungs, left, width, bounds)
    drafts = sum(node.operator is Operator.DRAFT and not node.failure for node in tree.nodes)
    while drafts < SIZE and following.draft():
        drafts += 1
    values = project(tree)
    if drafts >= SIZE and values:
        for node, share in _promotable(tree, following.rungs):
            following.promote(node, share)
        population = sorted(values, key=lambda name: -values[name])[:SIZE]
        random = Random(f"{tree.seed}/{len(tree.nodes)}/{tree.spent}")
        while following.expand(*_breed(population, values, random)):
            pass
    if not following.moves:
        following.promote_next()
    return tuple(following.moves)


def _breed(population: Sequence[str], values: Mapping[str, float], random: Random) -> tuple[tuple[str, ...], Operator]:
    first = _select(population, values, random)
    others = [name for name in population if name != first]
    if others and random.random() < CROSSED:
        return (first, _select(others, values, random)), Operator.COMBINE
    return (first,), Operator.TUNE


def _select(arms: Sequence[str], values: Mapping[str, float], random: Random) -> str:
    drawn = random.sample(list(arms), min(TOURNAMENT, len(arms)))
    return max(drawn, key=lambda name: values[name])


def project(tree: SearchTree) -> dict[str, float]:
    """Return the score that each arm would have at the highest rung of any arm; larger is better.

    The projection adds the mean gains of later rungs to the last score of an arm. Arms that are out have none.
    """
    gains = _mean_gains(tree)
    most = gains[max(gains)] if gains else 0.0
    return {
        node.name: tree.sign * (last.score + most - gains[last.share])
        for node in tree.nodes
        if (last := node.last) is not None and not node.failure
    }


def _mean_gains(tree: SearchTree) -> dict[float, float]:
    """Return how much an arm gains on average from the lowest rung to each rung, by the rung's share."""
    nodes = [node for node in tree.nodes if not node.failure]
    shares = sorted({score.share for node in nodes for score in node.scores})
    gains = dict.fromkeys(shares[:1], 0.0)
    for share, following in pairwise(shares):
        scores = [(node.at(share), node.at(following)) for node in nodes]
        seen = [later.score - first.score for first, later in scores if first is not None and later is not None]
        gains[following] = gains[share] + (fmean(seen) if seen else 0.0)
    return gains


POLICIES: Mapping[PolicyName, Callable[[PolicyBounds], ChooseMoves]] = MappingProxyType(
    {
        PolicyName.HALVING: lambda bounds: partial(halve, bounds),
        PolicyName.POPULATION: lambda bounds: partial(breed, bounds),
    }
)
"""The policies by name. PLANNER is none of them: it leaves the choice to the planner."""
