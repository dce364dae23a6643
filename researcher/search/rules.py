"""The rules of a search, from the flags of a person and the usual values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from researcher.charter import Budget, BudgetSplit, PolicyName, ProposerName, SearchRules, StudyKind
from researcher.errors import TopicInvalid

FLAGS_OF_RULES: Mapping[str, str] = MappingProxyType({"runs": "--explore-runs"})
"""The flags whose names are not those of the rules that they set."""
LEAST_EPISODES = 20
"""The fewest held-out tasks of an exploring score, and of one that a claim rests on."""


LEAST_RUNS = 2.0
"""The fewest full runs of an exploration: the baseline, and as much for all other arms."""


@dataclass(frozen=True, slots=True)
class SearchFlags:
    """The flags of a search; None leaves the choice to the usual rules."""

    policy: PolicyName | None = None
    proposer: ProposerName | None = None
    rungs: Sequence[float] | None = None
    runs: float | None = None
    split: Sequence[float] | None = None

    @property
    def fixed(self) -> frozenset[str]:
        """The fields of the rules that a person chose."""
        return frozenset(item.name for item in fields(self) if getattr(self, item.name) is not None)


def search_rules(
    kind: StudyKind, budget: Budget, flags: SearchFlags = SearchFlags(), *, by_rules: bool, eval_episodes: int | None
) -> SearchRules | None:
    """Return the rules of a search; None for a comparing study.

    `by_rules` says that no language model plans. Raises TopicInvalid for flags of a search in a comparing study, and
    for impossible ones.
    """
    if kind is not StudyKind.OPTIMIZE:
        for name in sorted(flags.fixed):
            flag = FLAGS_OF_RULES.get(name, f"--{name}")
            raise TopicInvalid(f"{flag} is about a search: add --kind optimize, or leave it out")
        return None
    if by_rules and flags.policy is PolicyName.PLANNER:
        raise TopicInvalid("--policy planner leaves the choice to a language model: name another one, or its --planner")
    usual = SearchRules()
    split = _read_split(flags.split) if flags.split is not None else usual.split
    runs = flags.runs
    if runs is None:
        runs = usual.runs if budget.max_runs is None else split.exploration * budget.max_runs
        if runs < LEAST_RUNS:
            raise TopicInvalid(
                f"--max-runs {budget.max_runs} leaves {runs:g} runs for exploration: {LEAST_RUNS:g} are needed"
            )
    elif budget.max_runs is not None and runs >= budget.max_runs:
        raise TopicInvalid(f"--explore-runs {runs:g} leaves none of --max-runs {budget.max_runs} for a confirmation")
    return SearchRules(
        policy=flags.policy or (PolicyName.HALVING if by_rules else PolicyName.PLANNER),
        proposer=flags.proposer or usual.proposer,
        rungs=_read_rungs(flags.rungs) if flags.rungs is not None else usual.rungs,
        runs=runs,
        episodes=usual.episodes if eval_episodes is None else min(usual.episodes, eval_episodes),
        split=split,
    )


def _read_rungs(rungs: Sequence[float]) -> tuple[float, ...]:
    is_rising = all(before < after for before, after in zip((0.0, *rungs), rungs, strict=False))
    if not rungs or not is_rising or rungs[-1] != 1:
        raise TopicInvalid(
            f"--rungs {','.join(f'{rung:g}' for rung in rungs)}: give rising parts of the training that end with 1, as "
            "in 0.25,0.5,1"
        )
    return tuple(rungs)


def _read_split(parts: Sequence[float]) -> BudgetSplit:
    is_whole = len(parts) == 4 and math.isclose(sum(parts), 1.0, abs_tol=1e-6)
    if not is_whole or min(parts) < 0 or not parts[0] or not parts[1]:
        raise TopicInvalid(
            f"--split {','.join(f'{part:g}' for part in parts)}: give the parts of exploration, confirmation, test and "
            "reserve, which add up to 1, as in 0.5,0.35,0.05,0.1; the first two are above 0"
        )
    return BudgetSplit(*parts)
