"""The policies of exploration: the rules by which arms are added or trained on.

Place in the flow: the explore node builds the charter's policy by name. This package knows nothing of settings,
programs or runs.
"""

from __future__ import annotations

from researcher.charter import PolicyName
from researcher.search.policies.base import Scope, SearchPolicy
from researcher.search.policies.best_first import BestFirstPolicy
from researcher.search.policies.greedy import GreedyPolicy
from researcher.search.policies.halving import HalvingPolicy
from researcher.search.policies.population import PopulationPolicy

__all__ = ["Scope", "SearchPolicy", "build_policy"]


def build_policy(name: PolicyName, scope: Scope) -> SearchPolicy | None:
    """Return the policy of this name; None for PLANNER, where the planner chooses by itself."""
    match name:
        case PolicyName.PLANNER:
            return None
        case PolicyName.GREEDY:
            return GreedyPolicy(scope)
        case PolicyName.BEST_FIRST:
            return BestFirstPolicy(scope)
        case PolicyName.POPULATION:
            return PopulationPolicy(scope)
        case PolicyName.HALVING:
            return HalvingPolicy(scope)
