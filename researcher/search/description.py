"""The description of a round of exploration: the explored arms by their scores, without a comparison or a verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from researcher.analysis import Analysis, ArmSummary, Comparison
from researcher.charter import Charter
from researcher.judge.judgement import rule_out
from researcher.judge.samples import within
from researcher.plan import Stage
from researcher.search.rounds import EXPLORING_SEED
from researcher.tree import RungScore, SearchNode, SearchTree


def describe_round(
    charter: Charter, tree: SearchTree, earlier: Sequence[Comparison] = (), excluded: Mapping[str, str] | None = None
) -> Analysis:
    """Return the ranking of the explored arms, with their scores at the highest rungs.

    An interval covers evaluation noise alone. `earlier` are the comparisons of an earlier claim, which stay as they
    were judged, except for arms that were `excluded` since.
    """
    return Analysis(
        arms=tuple(_summarize(charter, node, node.last) for node in tree.nodes if node.last is not None),
        comparisons=tuple(rule_out(item, excluded or {}) for item in earlier),
        ranking=tuple(node.name for node in tree.ranked()),
        failed={node.name: (node.failure,) for node in tree.nodes if node.failure},
        stage=Stage.EXPLORE,
        explored=tree.nodes,
    )


def _summarize(charter: Charter, node: SearchNode, last: RungScore) -> ArmSummary:
    from scipy import special

    half_width = float(special.ndtri(1 - charter.rule.alpha / 2)) * last.stderr if last.stderr else math.nan
    low, high = last.score - half_width, last.score + half_width
    if charter.metric_range is not None:
        low, high = within(charter.metric_range, (low, high))
    return ArmSummary(
        arm=node.name,
        scores={EXPLORING_SEED: last.score},
        base_scores={} if last.base is None else {EXPLORING_SEED: last.base},
        mean=last.score,
        ci_low=low,
        ci_high=high,
        run_ids=(),
        half_width=half_width,
    )
