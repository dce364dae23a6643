"""The choice of microbatches that are computed as token trees, and the check of their results."""

# Array suffixes: `_N` rows in the order of the tree; `_NN` the run of rows from the first index to the second.

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from swarm.backends.local.learning.microbatches import MicroBatch, plan_microbatches
from swarm.backends.local.learning.sharing.attention import attention_along, lay_out_for
from swarm.backends.local.learning.sharing.tree import TokenTree, build_tree
from swarm.backends.local.model.computing import PLAIN_ATTENTION
from swarm.errors import SwarmError
from swarm.trainer.description import Meter
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


logger = logging.getLogger(__name__)

TOLERANCE = 1e-3
"""Largest difference of log-probabilities. Attention to a wrong token differs by far more, rounding by far less."""
TOLERANCE_HALF = 0.3
PROBE_TRUNK, PROBE_SAMPLES = 64, 6
"""Tokens that all samples of the probe share, and their number: large enough for every kind of call along a tree."""
FULL_ATTENTION = "full_attention"


class Fallback(StrEnum):
    """Reasons to compute rows one by one although they have common prefixes."""

    LAYERS = "layers"
    """The model has layers of another kind than full attention, such as a sliding window."""
    ATTENTION = "attention"
    """The model's attention cannot compute a tree: it has another implementation, is more than a masked softmax, or
    gives other log-probabilities than plain passes."""


class PrefixSharing:
    """The decision for one model, whose weights may change. Used from one thread."""

    def __init__(self, module: torch.nn.Module, *, smallest_gain: float = SMALLEST_GAIN) -> None:
        """Set the model. Trees are used if separate rows have `smallest_gain` times as many tokens, with padding."""
        self._smallest_gain = smallest_gain
        self._unable = _find_obstacle(module)
        self._meter = Meter()

    def report_to(self, meter: Meter) -> None:
        """Count in `meter`, the meter of one step, from now on."""
        self._meter = meter

    def count(self, rows: Sequence[Row], numbers: Sequence[int], micro: MicroBatch) -> None:
        """Count the tokens that a forward and backward pass computes, without padding."""
        unshared = float(sum(sample.inputs for number in numbers for sample in rows[number].samples))
        tokens = unshared if micro.tree is None else float(micro.input_ids_ST.numel())
        self._meter.add({"sharing/tokens": tokens, "sharing/tokens_unshared": unshared, "sharing/fallbacks": 0.0})

    def plan(self, rows: Sequence[Row], chosen: Sequence[int], max_tokens: int | None) -> MicrobatchPlan | None:
        """Return microbatches as trees, or None if the rows are to be computed one by one.

        The reason is a model that cannot share prefixes, or too small a gain.
        """
        if not chosen:
            return None
        plan = plan_trees(rows, chosen, max_tokens)
        padded = padded_tokens(rows, plan_microbatches(rows, chosen, max_tokens))
        if padded < self._smallest_gain * plan.tokens:
            return None
        if self._unable is not None:
            self._meter.count("sharing/fallbacks")
            self._meter.count(f"sharing/fallbacks/{self._unable}")
            return None
        return plan


def _find_obstacle(module: torch.nn.Module) -> Fallback | None:
    config: Any = getattr(module, "config", None)
    if config is None or not isinstance(getattr(module, "base_model", None), torch.nn.Module):
        return Fallback.ATTENTION
    text = config.get_text_config()
    kinds: list[str] | None = getattr(text, "layer_types", None)
    if kinds is None and getattr(text, "sliding_window", None) is not None:
        return Fallback.LAYERS
    if set(kinds or [FULL_ATTENTION]) != {FULL_ATTENTION}:
        return Fallback.LAYERS
    if getattr(text, "_attn_implementation", None) != PLAIN_ATTENTION:
        return Fallback.ATTENTION
    try:
        gap = _try(module, text)
    except (SwarmError, TypeError, ValueError, RuntimeError, AttributeError, LookupError) as error:
        logger.info("%s computes no token trees: %s: %s", type(module).__name__, type(error).__name__, error)
        return Fallback.ATTENTION
    tolerance = TOLERANCE if next(module.parameters()).dtype == torch.float32 else TOLERANCE_HALF
    if gap <= tolerance:
        return None
    logger.warning("%s computes no token trees: logprobs are off by up to %.2g", type(module).__name__, gap)
    return Fallback.ATTENTION


@torch.no_grad()
def _try(module: torch.nn.Module, text: Any) -> float:
    """Return the largest expected difference in log-probability of a token between samples as a tree and alone."""
    device = next(module.parameters()).device
    samples = _probe_samples(text.vocab_size, text.max_position_embeddings)
    tree = build_tree(samples)
    ids = torch.from_numpy(tree.token_ids_P)[None].to(device)
    with attention_along(module, lay_out_for(tree, device)) as along:
        logits = module(input_ids=ids, use_cache=False, **along).logits[0]
    gap = 0.0
    for path, sample in zip(tree.paths, samples, strict=True):
        alone = module(input_ids=torch.from_numpy(sample)[None].to(device), use_cache=False).logits[0]
        expected = torch.log_softmax(alone.float(), -1)
        found = torch.log_softmax(logits[torch.from_numpy(path.places_T).to(device)].float(), -1)
        gap = max(gap, (expected.exp() * (found - expected).abs()).sum(-1).max().item())
    return gap


def _probe_samples(vocabulary: int, longest: int) -> list[IntArray]:
    """Return samples of different length that share a trunk, and in pairs some tokens more."""
    trunk = [7 * place for place in range(min(PROBE_TRUNK, longest // 2))]
    branches = [[11 * (number // 2) + place for place in range(4)] for number in range(PROBE_SAMPLES)]
    ends = [[3 * number + place for place in range(1 + 5 * number)] for number in range(PROBE_SAMPLES)]
    return [
        np.asarray([*trunk, *branch, *end])[:longest] % vocabulary for branch, end in zip(branches, ends, strict=True)
    ]
