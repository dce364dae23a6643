"""The proposers of exploration: the methods by which a new arm gets its levels.

Place in the flow: a planner builds the charter's proposer by name, and asks it once for every arm that a move adds.
This package knows nothing of jobs, programs or runs.
"""

from __future__ import annotations

from researcher.charter import ProposerName
from researcher.search.proposers.base import Levels, Proposer, count_combinations
from researcher.search.proposers.factorial import FactorialProposer
from researcher.search.proposers.grid import GridProposer
from researcher.search.proposers.optuna import OptunaProposer

__all__ = ["Levels", "Proposer", "build_proposer", "count_combinations"]


def build_proposer(name: ProposerName) -> Proposer:
    """Return the proposer of this name."""
    match name:
        case ProposerName.GRID:
            return GridProposer()
        case ProposerName.FACTORIAL:
            return FactorialProposer()
        case ProposerName.OPTUNA:
            return OptunaProposer()
