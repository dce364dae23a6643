"""The figure of a search: the tree of experiments, each arm to the right of its parents, placed as in the explorer."""

from __future__ import annotations

from functools import partial
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize

from experiments_db import SearchArm
from researcher.report.drawing.pictures import PAPER, TEXT, Drawing
from researcher.report.formats import format_score
from researcher.report.numbers.facts import StudyFacts
from researcher.report.numbers.search import Exploration

ROW_IN = 0.36
LABEL_CHARS = 125
"""The characters of the small print across the whole width."""
MANY_COLUMNS = 5
"""In a deeper tree there is no room for the rung of an arm with children."""
COLUMNS = (
    *("arm", "parents", "operator", "plan", "depth", "row", "share", "steps", "score", "stderr", "failure"),
)  # fmt: skip


def draw_search_tree(facts: StudyFacts, exploration: Exploration) -> Drawing:
    """Return the drawing of the tree, with the exploring scores as data."""
    rows = 1 + max((arm.row for arm in exploration.tree), default=0.0)
    return Drawing(
        "search-tree",
        "The tree of experiments",
        "Each arm stands to the right of the arm that it was derived from; the word on the line is how. The number is "
        "its exploring score at the highest rung that it reached, in percent of the full training: one seed, no claim. "
        "Colours go by score. Crossed: out of the search. Hollow: not explored. Ring: the arm that was confirmed.",
        0.5 + ROW_IN * rows,
        partial(_paint, facts=facts, exploration=exploration),
        [list(COLUMNS), *(_row(arm, item) for arm in exploration.tree for item in (arm.scored or (None,)))],
    )


def _row(arm: SearchArm, item: Any) -> list[Any]:
    score = [None] * 4 if item is None else [item.share, item.run.rung, item.score, item.stderr]
    operator = arm.experiment.operator or ""
    failure = arm.failure or ""
    return [
        *(arm.name, "; ".join(arm.parents), operator, arm.experiment.iteration + 1, arm.depth, arm.row, *score, failure)
    ]


def _paint(axes: Axes, *, facts: StudyFacts, exploration: Exploration) -> None:
    tree = exploration.tree
    by_name = {arm.name: arm for arm in tree}
    depth = 1 + max((arm.depth for arm in tree), default=0)
    sign = facts.charter.of_scores.sign
    scores = [sign * arm.last.score for arm in tree if arm.last is not None and arm.last.score is not None]
    scale = Normalize(min(scores, default=0.0), max(scores, default=1.0))
    winner = None if facts.confirmation is None else facts.confirmation.winner
    inner = {name for arm in tree for name in arm.parents}
    for arm in tree:
        for index, name in enumerate(arm.parents):
            _draw_edge(axes, by_name[name], arm, is_second=index > 0)
    for arm in tree:
        last = arm.last
        fill: Any = PAPER
        if last is not None and last.score is not None:
            fill = colormaps["viridis"](scale(sign * last.score))
        if arm.name == winner:
            axes.plot([arm.depth], [arm.row], "o", ms=15, mfc="none", mec=TEXT, mew=1.4)
        axes.plot([arm.depth], [arm.row], "o", ms=9, color=fill, mec=TEXT, mew=0.8, zorder=3)
        if arm.failure is not None:
            axes.plot([arm.depth], [arm.row], "x", ms=8, color="#D55E00", mew=2.0, zorder=4)
        # A leaf has all the room to its right.
        columns = 1 if arm.name in inner else max(1, depth - arm.depth)
        name = _fit(arm.name, int(columns * LABEL_CHARS / (depth + 0.25)))
        axes.annotate(name, (arm.depth, arm.row), (7, 4), textcoords="offset points", fontsize=6.5)
        if last is not None:
            at = "" if arm.name in inner and depth > MANY_COLUMNS else f" at {100 * last.share:.0f} %"
            said = f"{format_score(last.score)}{at}"
            axes.annotate(said, (arm.depth, arm.row), (7, -9), textcoords="offset points", fontsize=6, alpha=0.8)
    axes.set_xlim(-0.15, depth + 0.1)
    axes.set_ylim(max((arm.row for arm in tree), default=0.0) + 0.6, -0.8)
    axes.set_axis_off()


def _draw_edge(axes: Axes, parent: SearchArm, child: SearchArm, *, is_second: bool) -> None:
    middle = parent.depth + 0.5
    across = [parent.depth, middle, middle + 0.12, child.depth]
    rows = [parent.row, parent.row, child.row, child.row]
    axes.plot(across, rows, ":" if is_second else "-", color=TEXT, lw=0.8, alpha=0.45)
    if not is_second and child.experiment.operator is not None:
        axes.annotate(
            child.experiment.operator.value, (child.depth, child.row), (-6, -8), textcoords="offset points",
            fontsize=5.5, ha="right", alpha=0.75,
        )  # fmt: skip


def _fit(name: str, most: int) -> str:
    """Return a name of at most `most` characters; the middle is left out, because names of one family begin alike."""
    if len(name) <= most:
        return name
    tail = most // 2
    return f"{name[: most - tail - 1]}…{name[-tail:]}"
