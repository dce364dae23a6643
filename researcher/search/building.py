"""The policy and the proposer that a charter names.

Place in the flow: the plan node asks the policy for the moves of a round, and the `rules` planner the proposer for the
levels of each new arm. This module chooses nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from researcher.charter import Charter, Factor, ProposerName, SearchRules
from researcher.tree import Expand, Move, SearchTree

ChooseMoves = Callable[[SearchTree, tuple[float, ...], float, int], tuple[Move, ...]]
"""The choice of a round's moves from the tree, the rungs, the full runs left, and the number of runs at a time."""
ProposeLevels = Callable[
    [SearchTree, tuple[Factor, ...], Expand, Collection[Mapping[str, str]]], Mapping[str, str] | None
]
"""The levels by factor of the arm that a move adds, none of them taken; None if the space is used up."""


def build_policy_of(charter: Charter, rules: SearchRules) -> ChooseMoves | None:
    """Return the choice of the charter's policy; None if the planner chooses by itself."""
    # Policies and proposers are imported here, because most studies explore nothing.
    from researcher.search.policies import Scope, build_policy
    from researcher.search.proposers import count_combinations

    factors = charter.asks.factors
    # Rules write no programs, so an arm of theirs that failed cannot be mended.
    scope = Scope(debugs=charter.planner != "rules", arms=count_combinations(factors) if factors else None)
    policy = build_policy(rules.policy, scope)
    return None if policy is None else policy.choose


def build_proposer_of(name: ProposerName) -> ProposeLevels:
    """Return the proposals of the proposer of this name."""
    from researcher.search.proposers import build_proposer

    return build_proposer(name).propose
