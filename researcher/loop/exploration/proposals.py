"""The proposals of a study's proposer, for a planner that looks before it plans.

Place in the flow: session.py gives `propose_next` to the toolbox, as the tool `propose`. The answer is a suggestion:
the planner may plan something else. This module knows no language model.
"""

from __future__ import annotations

from collections.abc import Mapping

from experiments_db import Operator
from researcher.errors import ResearchError
from researcher.loop.deps import Deps
from researcher.planner.tools.base import ToolRefused
from researcher.question.factors import PROGRAM
from researcher.search.proposers import PROPOSERS
from researcher.search.record import read_tree
from researcher.search.space import default_space
from researcher.tree import Expand


def propose_next(deps: Deps, operator: Operator, parents: tuple[str, ...]) -> Mapping[str, str] | None:
    """Return levels by factor for an arm that is derived from parents; None if the space is used up.

    A search that names no factors has the space of the `rules` planner, without its programs. Raises ToolRefused for a
    study that explores nothing, and for a parent that is no arm.
    """
    try:
        charter = deps.log.charter()
    except ResearchError as error:
        raise ToolRefused(f"nothing can be proposed yet: {error}") from error
    if charter.search is None:
        raise ToolRefused("this study compares the arms of its question, so there is nothing to propose")
    tree = read_tree(deps.store, deps.study_id, charter)
    if unknown := [parent for parent in parents if tree.find(parent) is None]:
        known = ", ".join(node.name for node in tree.nodes) or "none yet"
        raise ToolRefused(f"there is no arm {', '.join(unknown)}; there are: {known}")
    space = charter.asks.factors or default_space(charter.job, (), charter.asks.fixed)
    settings = tuple(factor for factor in space if factor.name != PROGRAM)
    return PROPOSERS[charter.search.proposer](tree, settings or space, Expand(parents, operator), ())
