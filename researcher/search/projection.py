"""Scores of different rungs made comparable: what an arm would score at the highest rung that any arm has come to.

Place in the flow: policies rank arms by it, and the factorial proposer fits its model to it. This module knows nothing
of moves or of levels.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

from researcher.tree import SearchTree


def project(tree: SearchTree) -> dict[str, float]:
    """Return the projected score of each arm that is in, where larger is better.

    To its last score come the mean gains of the later rungs, over the arms that have come there.
    """
    gains = mean_gains(tree)
    most = gains[max(gains)] if gains else 0.0
    return {
        node.name: tree.sign * (last.score + most - gains[last.share])
        for node in tree.nodes
        if (last := node.last) is not None and not node.failure
    }


def mean_gains(tree: SearchTree) -> dict[float, float]:
    """Return how much an arm gains on average from the lowest rung to each rung, by the rung's share."""
    nodes = [node for node in tree.nodes if not node.failure]
    shares = sorted({score.share for node in nodes for score in node.scores})
    gains = dict.fromkeys(shares[:1], 0.0)
    for share, following in pairwise(shares):
        scores = [(node.at(share), node.at(following)) for node in nodes]
        seen = [later.score - first.score for first, later in scores if first is not None and later is not None]
        gains[following] = gains[share] + (fmean(seen) if seen else 0.0)
    return gains
