"""Microbatches of the rows of a minibatch whose token trees fit a token budget, with little sharing lost.

Place in the flow: the updater asks for a plan before it collates. A row is never split. This module knows nothing of
tensors, models or losses.

Array suffixes: `_N` rows in the order of the tree; `_NN` the run of rows from the first index to the second.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from swarm.backends.local.learning.sharing.tree import TokenTree, build_tree
from swarm.trainer.token_rows import IntArray, Row

SMALLEST_GAIN = 1.15
"""Least ratio of padded tokens without sharing to tokens of the trees. Below it, rows are computed one by one: without
shared tokens, a pass along a tree takes up to a tenth longer."""
KEYS_PER_TOKEN = 8
"""Most gathered keys of a pass per token of its budget: a key costs a small part of a token."""
ROWS_AT_A_TIME = 512
"""Number of rows that are cut together: the costs of all their runs are a matrix of this width."""


@dataclass(frozen=True, slots=True)
class MicrobatchPlan:
    """Microbatches as lists of row numbers, and the total number of tokens of their trees."""

    microbatches: tuple[tuple[int, ...], ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class _Costs:
    """Tokens computed, keys looked up and tokens predicted by the run of rows i..j; defined only for j >= i."""

    tokens_NN: IntArray
    keys_NN: IntArray
    predicted_NN: IntArray

    def fitting(self, max_tokens: int) -> np.ndarray:
        """Return which runs fit a budget; a single row always fits."""
        fits = (self.tokens_NN <= max_tokens) & (self.predicted_NN <= max_tokens)
        return fits & (self.keys_NN <= KEYS_PER_TOKEN * max_tokens) | np.eye(len(fits), dtype=np.bool_)


def plan_trees(rows: Sequence[Row], chosen: Sequence[int], max_tokens: int | None) -> MicrobatchPlan:
    """Return the fewest microbatches of the rows numbered `chosen` with at most `max_tokens` tokens each.

    None means no limit. Rows with common prefixes are neighbours. Of all cuts into this number of runs, the plan is the
    one with the least sum of squared tokens: both a lost prefix and an uneven cut add to that sum.
    """
    tree = build_tree([sample.token_ids_T[:-1] for number in chosen for sample in rows[number].samples])
    lines = _order(rows, chosen, tree)
    ordered = [chosen[line] for line in lines]
    if max_tokens is None or _fits(rows, chosen, tree, max_tokens):
        return MicrobatchPlan((_like_plain(rows, ordered),), tree.tokens)
    microbatches: list[tuple[int, ...]] = []
    tokens = 0
    for begin in range(0, len(ordered), ROWS_AT_A_TIME):
        part = ordered[begin : begin + ROWS_AT_A_TIME]
        places = _places(rows, chosen, tree, lines[begin : begin + ROWS_AT_A_TIME])
        costs = _measure([rows[number] for number in part], places, tree.tokens)
        for first, last in pairwise(_cut(costs, max_tokens)):
            microbatches.append(_like_plain(rows, part[first:last]))
            tokens += int(costs.tokens_NN[first, last - 1])
    return MicrobatchPlan(tuple(microbatches), tokens)


def padded_tokens(rows: Sequence[Row], microbatches: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens, with padding, that microbatches compute without sharing."""
    return sum(
        sum(len(rows[number].samples) for number in numbers) * max(rows[number].longest for number in numbers)
        for numbers in microbatches
    )


def _fits(rows: Sequence[Row], chosen: Sequence[int], tree: TokenTree, max_tokens: int) -> bool:
    """Return whether all rows together fit the budget."""
    keys = sum(path.length for path in tree.paths)
    predicted = sum(rows[number].tokens for number in chosen)
    return max(tree.tokens, predicted) <= max_tokens and keys <= KEYS_PER_TOKEN * max_tokens


def _like_plain(rows: Sequence[Row], numbers: Sequence[int]) -> tuple[int, ...]:
    """Return rows in their order without sharing: some losses draw tokens by their place."""
    return tuple(sorted(numbers, key=lambda number: (rows[number].longest, number)))


def _firsts(rows: Sequence[Row], chosen: Sequence[int]) -> list[int]:
    """Return the first path of each row in the tree, and one past the last."""
    return [0, *np.cumsum([len(rows[number].samples) for number in chosen]).tolist()]


def _order(rows: Sequence[Row], chosen: Sequence[int], tree: TokenTree) -> list[int]:
    """Return rows as indices into `chosen`, by the first of their samples in the order of the tree."""
    ranks = np.empty(len(tree.order), dtype=np.int64)
    ranks[list(tree.order)] = np.arange(len(tree.order))
    firsts = _firsts(rows, chosen)
    least = [int(ranks[first:last].min()) for first, last in pairwise(firsts)]
    return sorted(range(len(chosen)), key=least.__getitem__)


def _places(rows: Sequence[Row], chosen: Sequence[int], tree: TokenTree, lines: Sequence[int]) -> list[IntArray]:
    """Return the tokens of the tree that each row needs, each once."""
    firsts = _firsts(rows, chosen)
    needed = [[path.places_T for path in tree.paths[firsts[line] : firsts[line + 1]]] for line in lines]
    return [each[0] if len(each) == 1 else np.unique(np.concatenate(each)) for each in needed]


def _measure(rows: Sequence[Row], places: Sequence[IntArray], tokens: int) -> _Costs:
    """Return the costs of all runs of rows, given the places of their tokens in the tree.

    A run i..j counts a token once, at the first row since i that needs it.
    """
    count = len(rows)
    # new[j, i] counts the tokens of row j that none of the rows i..j-1 needs.
    new = np.zeros((count, count), dtype=np.int64)
    last = np.full(tokens, -1)
    for line, needed in enumerate(places):
        new[line] = np.bincount(last[needed] + 1, minlength=count + 1).cumsum()[:count]
        last[needed] = line
    tokens_NN = np.tril(new).cumsum(axis=0).T
    keys_N = np.asarray([sum(sample.inputs for sample in row.samples) for row in rows])
    predicted_N = np.asarray([row.tokens for row in rows])
    return _Costs(tokens_NN, _runs(keys_N), _runs(predicted_N))


def _runs(values_N: IntArray) -> IntArray:
    totals = values_N.cumsum()
    return totals[None, :] - (totals - values_N)[:, None]


def _cut(costs: _Costs, max_tokens: int) -> list[int]:
    """Return where the runs of the best cut begin, and the end of the last; best[j] covers the rows before j."""
    count = len(costs.tokens_NN)
    steps = np.triu(np.where(costs.fitting(max_tokens), costs.tokens_NN.astype(np.float64) ** 2, np.inf))
    steps[np.tril_indices(count, -1)] = np.inf
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    begins: list[IntArray] = []
    while not np.isfinite(best[count]):
        totals = best[:count, None] + steps
        begins.append(totals.argmin(axis=0))
        best = np.concatenate([[np.inf], totals.min(axis=0)])
    cuts = [count]
    for begin in reversed(begins):
        cuts.append(int(begin[cuts[-1] - 1]))
    return cuts[::-1]
