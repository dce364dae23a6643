"""The token tree (trie) of a set of samples, and its layout for attention in few calls of a kernel."""

# Array suffixes: `_T` tokens of a sample, `_P` tokens of the tree, `_S` samples of a block, `_Q` tokens that a sample
# adds to the tree, `_K` keys of a sample.

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from swarm.trainer.token_rows import IntArray


@dataclass(frozen=True, slots=True)
class Path:
    """Place of one sample in the tree: token t of the sample is token `places_T[t]` of the tree.

    Tokens from `start` on belong to no earlier sample in the order of the tree; they are consecutive in the tree. A
    sample that is the beginning of another may have no such tokens.
    """

    places_T: IntArray
    start: int

    @property
    def length(self) -> int:
        return len(self.places_T)

    @property
    def own(self) -> int:
        """Number of tokens that the sample adds to the tree."""
        return len(self.places_T) - self.start


@dataclass(frozen=True, slots=True)
class TokenTree:
    """Tree with each prefix once. `paths` are in the order in which the samples were given.

    `order` is the order of the tree: samples with a common prefix are neighbours in it. `positions_P` are depths, the
    positions at which the tokens were sampled.
    """

    token_ids_P: IntArray
    positions_P: IntArray
    paths: tuple[Path, ...]
    order: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return len(self.token_ids_P)


def build_tree(samples: Sequence[IntArray]) -> TokenTree:
    """Return the tree of the token ids of samples, none of which is empty.

    In lexicographic order, the tokens that a sample shares with any earlier sample are those that it shares with the
    one right before it.
    """
    # Numbers of equal width with the highest byte first compare byte by byte in the same order as the numbers.
    order = sorted(range(len(samples)), key=lambda number: (samples[number].astype(">u8").tobytes(), number))
    paths: list[Path | None] = [None] * len(samples)
    pieces: list[IntArray] = []
    depths: list[IntArray] = []
    before, places = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    tokens = 0
    for number in order:
        token_ids_T = samples[number]
        start = _shared(before, token_ids_T)
        own = len(token_ids_T) - start
        places = np.concatenate([places[:start], np.arange(tokens, tokens + own, dtype=np.int64)])
        paths[number] = Path(places, start)
        pieces.append(token_ids_T[start:])
        depths.append(np.arange(start, len(token_ids_T), dtype=np.int64))
        before, tokens = token_ids_T, tokens + own
    return TokenTree(
        token_ids_P=np.concatenate(pieces),
        positions_P=np.concatenate(depths),
        paths=tuple(path for path in paths if path is not None),
        order=tuple(order),
    )


def _shared(first: IntArray, second: IntArray) -> int:
    """Return the length of the common beginning of two sequences."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length


SMALLEST_CLASS = 4
"""Lengths of up to 2 to this power are padded to one another, because fewer calls outweigh the padding."""
LEAST_KEYS = 256
"""Smallest number of saved keys at which a separate call for shared keys pays off."""


@dataclass(frozen=True, slots=True)
class Block:
    """Samples of similar size, whose attention is one call.

    `queries_SQ` and `keys_SK` are places in the tree, padded with 0. `first` is the first place if the queries are
    consecutive and without padding, so that no lookup is needed. `padding_SQ` marks padded queries, if there are any.
    `visible_SQK` marks the keys that a query attends to. Like `keys_SK`, it is None if each sample attends to its own
    tokens alone, causally.
    """

    queries_SQ: Tensor
    first: int | None
    padding_SQ: Tensor | None
    keys_SK: Tensor | None
    visible_SQK: Tensor | None


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Shared keys: tokens first_query..last_query-1 of the tree all attend to first_key..last_key-1."""

    first_query: int
    last_query: int
    first_key: int
    last_key: int


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """Input of a model, besides token ids, to compute a tree as one row.

    Each token is a query of one block. It attends to the keys that are visible there, and to all shared keys whose
    range of queries includes it. The outputs of the blocks, one after another, have the output of token p at
    `outputs_P[p]`, or at p if this is None.
    """

    positions_P: Tensor
    blocks: tuple[Block, ...]
    shared_keys: tuple[SharedKeys, ...]
    outputs_P: Tensor | None

    def with_additive_masks(self, dtype: torch.dtype) -> TreeLayout:
        """Return the layout with `visible_SQK` as kernels take it: 0 for a visible key, otherwise minus infinity."""
        blocks = (replace(block, visible_SQK=_additive(block.visible_SQK, dtype)) for block in self.blocks)
        return replace(self, blocks=tuple(blocks))


def lay_out(tree: TokenTree, device: torch.device, *, least_keys: int | None = LEAST_KEYS) -> TreeLayout:
    """Return the blocks and shared keys of a tree. Samples that add no token are in no block.

    Keys are shared if at least `least_keys` keys then need not be gathered. None means no sharing, for kernels that
    cannot join parts.
    """
    shared, gathered = _divide(tree, least_keys)
    chosen: dict[tuple[int, int], list[int]] = {}
    for number in tree.order:
        path = tree.paths[number]
        if path.own:
            keys = len(gathered[number])
            chosen.setdefault((_class(path.own), _class(keys) if keys else 0), []).append(number)
    outputs_P = np.zeros(tree.tokens, dtype=np.int64)
    blocks: list[Block] = []
    begin = 0
    for numbers in chosen.values():
        paths = [tree.paths[number] for number in numbers]
        block = _build_block(paths, [gathered[number] for number in numbers], device)
        width = block.queries_SQ.shape[1]
        for line, path in enumerate(paths):
            outputs_P[path.places_T[path.start :]] = begin + line * width + np.arange(path.own)
        begin += len(paths) * width
        blocks.append(block)
    is_in_order = begin == tree.tokens and _is_consecutive(outputs_P, 0)
    return TreeLayout(
        positions_P=torch.from_numpy(tree.positions_P).to(device),
        blocks=tuple(blocks),
        shared_keys=tuple(shared),
        outputs_P=None if is_in_order else torch.from_numpy(outputs_P).to(device),
    )


def _divide(tree: TokenTree, least_keys: int | None) -> tuple[list[SharedKeys], list[IntArray]]:
    """Return the shared keys, and for each path the places of earlier keys that it must still gather."""
    paths = [tree.paths[number] for number in tree.order]
    is_left = [np.ones(path.start, dtype=np.bool_) for path in paths]
    begins = np.cumsum([0, *(path.own for path in paths)]).tolist()
    shared: list[SharedKeys] = []
    for first, last, begin, end in _common_beginnings([path.start for path in paths]):
        saved = (end - begin) * sum(path.own > 0 for path in paths[first + 1 : last])
        if least_keys is not None and saved >= max(least_keys, 1):
            # The first of these samples added the tokens to the tree, so they are consecutive there.
            key = int(paths[first].places_T[begin])
            shared.append(SharedKeys(begins[first + 1], begins[last], key, key + end - begin))
            for mask in is_left[first + 1 : last]:
                mask[begin:end] = False
    gathered: list[IntArray] = [np.zeros(0, dtype=np.int64)] * len(paths)
    for number, path, mask in zip(tree.order, paths, is_left, strict=True):
        gathered[number] = path.places_T[: path.start][mask]
    return shared, gathered


def _common_beginnings(starts: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the inner edges of the tree as (first, last, begin, end).

    Samples first..last-1, in the order of the tree, and no others, have tokens begin..end-1 of their paths in common.
    `starts` gives the number of tokens that each sample shares with the one before it. This is the walk over the
    intervals of an array of longest common prefixes of Abouelhoda, Kurtz and Ohlebusch (2004).
    """
    unfinished: list[tuple[int, int]] = []
    for number, start in enumerate([*starts[1:], 0], start=1):
        first = number - 1
        while unfinished and unfinished[-1][0] > start:
            end, first = unfinished.pop()
            yield first, number, max(start, unfinished[-1][0] if unfinished else 0), end
        if start > (unfinished[-1][0] if unfinished else 0):
            unfinished.append((start, first))


def _class(length: int) -> int:
    """Return the size class of a length: class n stands for at most 2^n."""
    return max(SMALLEST_CLASS, (length - 1).bit_length())


def _build_block(paths: Sequence[Path], gathered: Sequence[IntArray], device: torch.device) -> Block:
    queries_SQ = _pad([path.places_T[path.start :] for path in paths])
    begin = int(queries_SQ[0, 0])
    first = begin if _is_consecutive(queries_SQ.ravel(), begin) else None
    columns = np.arange(queries_SQ.shape[1])
    padding_SQ = columns >= np.asarray([path.own for path in paths])[:, None]
    keys_SK = visible_SQK = None
    if any(len(keys) for keys in gathered):
        own = [path.places_T[path.start :] for path in paths]
        keys_SK = _pad([np.concatenate(pair) for pair in zip(gathered, own, strict=True)])
        before_S = np.asarray([len(keys) for keys in gathered])
        visible_SQK = np.arange(keys_SK.shape[1]) <= (before_S[:, None] + columns)[:, :, None]
    return Block(
        queries_SQ=torch.from_numpy(queries_SQ).to(device),
        first=first,
        padding_SQ=torch.from_numpy(padding_SQ).to(device) if padding_SQ.any() else None,
        keys_SK=None if keys_SK is None else torch.from_numpy(keys_SK).to(device),
        visible_SQK=None if visible_SQK is None else torch.from_numpy(visible_SQK).to(device),
    )


def _additive(visible: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if visible is None:
        return None
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


def _is_consecutive(places: np.ndarray, first: int) -> bool:
    return bool((places == np.arange(first, first + len(places))).all())


def _pad(lines: Sequence[np.ndarray]) -> np.ndarray:
    padded = np.zeros((len(lines), max(map(len, lines))), dtype=np.int64)
    for line, values in enumerate(lines):
        padded[line, : len(values)] = values
    return padded
