"""Keys and values of all running requests, one row each, grown on demand; and those kept of earlier prompts.

Place in the flow: forward.py points the cache at the rows of the next forward pass and hands it to an unmodified
Hugging Face module, which calls `update` in every layer; batching.py asks the kept prefixes whether a new prompt begins
like an earlier one. This module knows nothing of requests or sampling.
"""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

ROW_STEP = 16
COLUMN_STEP = 256
"""Smallest growth. Beyond it capacity doubles, so that growing costs little over a cache's life."""


@dataclass(frozen=True, slots=True)
class Window:
    """Where one forward pass writes: rows first..first+b-1, token j of row i at column `positions[i, j]`.

    Columns 0..length-1 are read back; those that a row has not written are for the mask to hide. `fresh` means that
    every row starts at column 0, `decoding` that every row brings one token.
    """

    first: int
    positions: Tensor
    length: int
    fresh: bool
    decoding: bool


class SlotCache:
    """Stands in for a `transformers.Cache`. Layers are allocated when first seen, so any head layout fits."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._window: Window | None = None
        self._rows = ROW_STEP
        self._columns = COLUMN_STEP

    def point_at(self, window: Window) -> None:
        """Choose where the next forward pass reads and writes, and make room for it."""
        self._window = window
        self._reserve(window.first + len(window.positions), max(window.length, 1))

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Store (b, heads, t, dim) and return what the layer attends to, (b, heads, length, dim)."""
        window = self._window
        assert window is not None
        if layer == len(self._keys):
            self._keys.append(self._allocate(key))
            self._values.append(self._allocate(value))
        keys, values = self._keys[layer], self._values[layer]
        last = window.first + len(window.positions)
        if window.fresh:
            columns = window.positions.shape[1]
            keys[window.first : last, :, :columns] = key
            values[window.first : last, :, :columns] = value
            return key, value
        if window.decoding:
            rows = torch.arange(window.first, last, device=key.device)
            keys[rows, :, window.positions[:, 0]] = key[:, :, 0]
            values[rows, :, window.positions[:, 0]] = value[:, :, 0]
        else:
            rows = torch.arange(window.first, last, device=key.device)[:, None]
            keys[rows, :, window.positions] = key.transpose(1, 2)
            values[rows, :, window.positions] = value.transpose(1, 2)
        return keys[window.first : last, :, : window.length], values[window.first : last, :, : window.length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions are always given explicitly, so modules may take the cache for empty."""
        del layer_idx
        return 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of one row over another."""
        self._reserve(target + 1, length)
        for store in (*self._keys, *self._values):
            store[target, :, :length] = store[source, :, :length]

    def read(self, row: int, length: int) -> list[Tensor]:
        """A copy of a row's first columns: keys of all layers, then values."""
        return [store[row, :, :length].clone() for store in (*self._keys, *self._values)]

    def write(self, row: int, saved: list[Tensor], length: int) -> None:
        """Put the first `length` columns of what `read` gave into a row."""
        self._reserve(row + 1, length)
        for store, columns in zip((*self._keys, *self._values), saved, strict=True):
            store[row, :, :length] = columns[:, :length]

    def _allocate(self, like: Tensor) -> Tensor:
        # Zeros, not empty: hidden columns enter the attention sum with weight 0, and 0 times NaN is NaN.
        return like.new_zeros((self._rows, like.shape[1], self._columns, like.shape[3]))

    def _reserve(self, rows: int, columns: int) -> None:
        if rows <= self._rows and columns <= self._columns:
            return
        self._rows = _grow(self._rows, rows)
        self._columns = _grow(self._columns, columns)
        for stores in (self._keys, self._values):
            for layer, store in enumerate(stores):
                larger = self._allocate(store)
                larger[: store.shape[0], :, : store.shape[2]] = store
                stores[layer] = larger


def _grow(capacity: int, needed: int) -> int:
    while capacity < needed:
        capacity *= 2
    return capacity


KEPT_REQUESTS = 256
KEPT_BYTES = 2**28
"""The oldest are dropped beyond either bound, so that comparing prompts stays quick and memory small."""
SHORTEST_MATCH = 16
"""Fewer shared tokens are computed faster than they are copied."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first `length` tokens of a kept request, with their columns as `SlotCache.read` gave them."""

    length: int
    columns: list[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    tokens: np.ndarray
    columns: list[Tensor]

    @property
    def size(self) -> int:
        return sum(column.nbytes for column in self.columns)


class PrefixStore:
    """A bounded memory of token sequences with their cache columns, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._bytes = 0

    def keep(self, cache: SlotCache, row: int, tokens: Sequence[int]) -> None:
        """Remember the first len(tokens) columns of a row."""
        if len(tokens) < SHORTEST_MATCH:
            return
        kept = _Kept(np.array(tokens), cache.read(row, len(tokens)))
        self._kept.append(kept)
        self._bytes += kept.size
        while self._kept and (len(self._kept) > KEPT_REQUESTS or self._bytes > KEPT_BYTES):
            self._bytes -= self._kept.popleft().size

    def match(self, tokens: Sequence[int] | np.ndarray) -> Prefix | None:
        """The longest beginning of `tokens` that is kept, unless it is too short to be worth copying."""
        wanted = np.asarray(tokens)
        best = Prefix(SHORTEST_MATCH - 1, [])
        for kept in reversed(self._kept):
            length = shared_length(wanted, kept.tokens, best.length + 1)
            if length > best.length:
                best = Prefix(length, kept.columns)
        return best if best.columns else None


def shared_length(first: np.ndarray, second: np.ndarray, at_least: int) -> int:
    """How many tokens two sequences begin with in common; 0 if that is found to be less than `at_least` (1 or more)."""
    shorter = min(len(first), len(second))
    # Refuses cheaply nearly all that ends too early.
    if shorter < at_least or first[at_least - 1] != second[at_least - 1]:
        return 0
    differing = np.nonzero(first[:shorter] != second[:shorter])[0]
    return int(differing[0]) if len(differing) else shorter
