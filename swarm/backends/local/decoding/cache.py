# pyright: reportUnknownMemberType=false
"""Keys and values of all running requests, one row each, grown on demand.

Place in the flow: forward.py points it at the rows of the next forward pass and hands it to an unmodified Hugging Face
module, which calls `update` in every layer. Knows nothing of requests, tokens or sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

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
