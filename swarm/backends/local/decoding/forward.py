"""Forward passes of an unmodified Hugging Face causal LM over a cache of keys and values, one row per request."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from swarm.backends.local.decoding.kernels import GROUPED_ATTENTION, PackedLinears, attend
from swarm.backends.local.model.computing import PLAIN_ATTENTION, attention_by, attention_configs, to_device
from swarm.errors import EngineFailure

ROW_STEP = 16
COLUMN_STEP = 256
"""Smallest growth in columns. Larger caches double, so that growth costs little over a cache's life."""


@dataclass(frozen=True, slots=True)
class Window:
    """Place in the cache of one forward pass: rows first..first+b-1, token j of row i at column `positions[i, j]`.

    Columns 0..length-1 are read back; the mask must hide the columns that a row has not written. `fresh` means that
    every row starts at column 0, `decoding` that every row brings one token. `rows` are the numbers of the rows.
    """

    first: int
    rows: Tensor
    positions: Tensor
    length: int
    fresh: bool
    decoding: bool


class SlotCache:
    """Replacement for a `transformers.Cache`. Layers are allocated at first use, so any head layout fits."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._window: Window | None = None
        self._rows = ROW_STEP
        self._columns = COLUMN_STEP

    def point_at(self, window: Window) -> None:
        """Choose where the next forward pass reads and writes, and allocate enough memory."""
        self._window = window
        self._reserve(window.first + len(window.positions), max(window.length, 1))

    def update(self, key: Tensor, value: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Store (b, heads, t, dim) and return the keys and values to attend to, each (b, heads, length, dim)."""
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
            keys[window.rows, :, window.positions[:, 0]] = key[:, :, 0]
            values[window.rows, :, window.positions[:, 0]] = value[:, :, 0]
        else:
            rows = window.rows[:, None]
            keys[rows, :, window.positions] = key.transpose(1, 2)
            values[rows, :, window.positions] = value.transpose(1, 2)
        return keys[window.first : last, :, : window.length], values[window.first : last, :, : window.length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return 0: positions are always given explicitly, so the model may take the cache for empty."""
        del layer_idx
        return 0

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of one row over another."""
        self._reserve(target + 1, length)
        for store in (*self._keys, *self._values):
            store[target, :, :length] = store[source, :, :length]

    def read(self, row: int, length: int) -> list[Tensor]:
        """Return a copy of a row's first columns: keys of all layers, then values."""
        return [store[row, :, :length].clone() for store in (*self._keys, *self._values)]

    def write(self, row: int, saved: list[Tensor], length: int) -> None:
        """Put the first `length` columns that `read` returned into a row."""
        self._reserve(row + 1, length)
        for store, columns in zip((*self._keys, *self._values), saved, strict=True):
            store[row, :, :length] = columns[:, :length]

    def _allocate(self, like: Tensor) -> Tensor:
        # Zeros, not uninitialized: hidden columns enter the attention sum with weight 0, and 0 times NaN is NaN.
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
"""The oldest sequences are dropped beyond either bound, so that memory stays small."""
SHORTEST_MATCH = 8
"""Fewer shared tokens are computed about as fast as they are found and copied, even by the smallest models."""


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The first `length` tokens of a kept request, with their columns as returned by `SlotCache.read`."""

    length: int
    columns: list[Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """One kept sequence. `key` sorts sequences like their tokens, number by number."""

    key: bytes
    tokens: np.ndarray
    columns: list[Tensor]

    @property
    def size(self) -> int:
        return sum(column.nbytes for column in self.columns)


class PrefixStore:
    """Bounded memory of token sequences with their cache columns.

    The sequences are sorted. The sequence with the longest common beginning is therefore a neighbour of the place where
    a new one would be inserted. It is found in O(log n) comparisons.
    """

    def __init__(self) -> None:
        # In order of use: the first was kept, or kept again, longest ago.
        self._by_age: dict[_Kept, None] = {}
        self._sorted: list[_Kept] = []
        self._bytes = 0

    def keep(self, cache: SlotCache, row: int, tokens: Sequence[int]) -> None:
        """Store the first len(tokens) columns of a row."""
        if len(tokens) < SHORTEST_MATCH:
            return
        array = np.array(tokens)
        key = _key_of(array)
        place = bisect.bisect_left(self._sorted, key, key=_sort_key)
        if place < len(self._sorted) and self._sorted[place].key.startswith(key):
            # The sequence is stored already, alone or as a beginning: the prompt of a group is copied once.
            known = self._sorted[place]
            del self._by_age[known]
            self._by_age[known] = None
            return
        kept = _Kept(key, array, cache.read(row, len(tokens)))
        self._by_age[kept] = None
        self._sorted.insert(place, kept)
        self._bytes += kept.size
        while self._by_age and (len(self._by_age) > KEPT_REQUESTS or self._bytes > KEPT_BYTES):
            self._drop(next(iter(self._by_age)))

    def match(self, tokens: Sequence[int] | np.ndarray) -> Prefix | None:
        """Return the longest kept beginning of `tokens`, or None if it is too short to be worth a copy."""
        wanted = np.asarray(tokens)
        place = bisect.bisect_left(self._sorted, _key_of(wanted), key=_sort_key)
        best = Prefix(SHORTEST_MATCH - 1, [])
        for kept in self._sorted[max(place - 1, 0) : place + 1]:
            length = shared_length(wanted, kept.tokens, best.length + 1)
            if length > best.length:
                best = Prefix(length, kept.columns)
        return best if best.columns else None

    def _drop(self, kept: _Kept) -> None:
        del self._by_age[kept]
        self._bytes -= kept.size
        # No two sequences have the same key.
        del self._sorted[bisect.bisect_left(self._sorted, kept.key, key=_sort_key)]


def _key_of(tokens: np.ndarray) -> bytes:
    return tokens.astype(">u4").tobytes()


def _sort_key(kept: _Kept) -> bytes:
    return kept.key


def shared_length(first: np.ndarray, second: np.ndarray, at_least: int) -> int:
    """Return the length of the common beginning of two sequences, or 0 if it is below `at_least` (1 or more)."""
    shorter = min(len(first), len(second))
    # A cheap test refuses nearly all pairs whose common beginning is too short.
    if shorter < at_least or first[at_least - 1] != second[at_least - 1]:
        return 0
    differing = np.nonzero(first[:shorter] != second[:shorter])[0]
    return int(differing[0]) if len(differing) else shorter


FULL, SLIDING = "full_attention", "sliding_attention"

# Largest difference between the log-probabilities of the probe and a plain pass. Half precision rounds each
# layer's activations, so there only a wrong mask or a wrong position stands out.
PROBE_TOLERANCE = 1e-3
PROBE_TOLERANCE_HALF = 0.5


@dataclass(frozen=True, slots=True)
class RowTokens:
    """Tokens to put into the cache for one row, beginning at column `start`."""

    start: int
    token_ids: Sequence[int]


class SlotForward:
    """Forward passes of a model over a slot cache. The weights must not change during a pass."""

    def __init__(self, module: torch.nn.Module, context_length: int) -> None:
        config: Any = getattr(module.config, "get_text_config", lambda: module.config)()
        self.cache = SlotCache()
        self._module: Any = module
        self._context_length = context_length
        self._device = next(module.parameters()).device
        self._dtype = next(module.parameters()).dtype
        self._window: int | None = getattr(config, "sliding_window", None)
        self._kinds = _attention_kinds(config, self._window)
        self._additive = getattr(config, "_attn_implementation", "sdpa") != "sdpa"
        self._columns = torch.arange(context_length, device=self._device)
        self._linears: PackedLinears | None = None
        # A model that names another function may need more than a masked softmax, so it keeps its own.
        self._plain = [each for each in attention_configs(module) if each._attn_implementation == PLAIN_ATTENTION]

    def release(self) -> None:
        """Drop the copies of the weights; the next pass makes them anew."""
        self._linears = None

    def fill(self, first_row: int, pieces: Sequence[RowTokens]) -> None:
        """Compute keys and values of pieces, one per row from `first_row` on, padded to one width."""
        width = max(len(piece.token_ids) for piece in pieces)
        ids = np.zeros((len(pieces), width), dtype=np.int64)
        for row, piece in enumerate(pieces):
            ids[row, : len(piece.token_ids)] = piece.token_ids
        starts = np.array([piece.start for piece in pieces])
        positions = to_device(starts[:, None] + np.arange(width), self._device)
        fresh = all(piece.start == 0 for piece in pieces)
        length = max(piece.start for piece in pieces) + width
        rows = torch.arange(first_row, first_row + len(pieces), device=self._device)
        self.cache.point_at(Window(first_row, rows, positions, length, fresh=fresh, decoding=False))
        self._run(self._module.base_model, to_device(ids, self._device), positions, length)

    def decode(self, token_ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Return the next-token logits (n, vocabulary) after one token for each of rows 0..n-1 at its position."""
        ids, places = to_device(np.array([token_ids, positions]), self._device)[:, :, None]
        length = max(positions) + 1
        rows = torch.arange(len(token_ids), device=self._device)
        self.cache.point_at(Window(0, rows, places, length, fresh=False, decoding=True))
        with attention_by(self._plain, GROUPED_ATTENTION, attend):
            return self._run(self._module, ids, places, length).logits[:, -1]

    def _run(self, module: Any, ids: Tensor, positions: Tensor, length: int) -> Any:
        self._linears = self._linears or PackedLinears(self._module)
        with self._linears.applied():
            return module(
                input_ids=ids,
                # Padding may lie beyond the last position of a model; the results there are never read.
                position_ids=positions.clamp(max=self._context_length - 1),
                attention_mask=self._masks(positions, length),
                past_key_values=self.cache,
                use_cache=True,
            )

    def _masks(self, positions: Tensor, length: int) -> Tensor | dict[str, Tensor]:
        """Return the visible columns of each token, (b, 1, t, length), per kind of layer if the model mixes kinds."""
        if length > len(self._columns):
            self._columns = torch.arange(length, device=self._device)
        columns, queries = self._columns[:length], positions[:, None, :, None]
        causal = columns <= queries
        masks = {FULL: causal}
        if self._window is not None:
            masks[SLIDING] = causal & (columns > queries - self._window)
        if self._additive:
            lowest = torch.finfo(self._dtype).min
            masks = {
                kind: torch.zeros(mask.shape, dtype=self._dtype, device=self._device).masked_fill(~mask, lowest)
                for kind, mask in masks.items()
            }
        if len(self._kinds) == 1:
            return masks[next(iter(self._kinds))]
        return {kind: masks[kind] for kind in self._kinds}


@torch.inference_mode()
def verify_model(module: torch.nn.Module, context_length: int, vocabulary: int) -> None:
    """Raise EngineFailure with the model's name if the slot cache does not serve it exactly.

    Two sequences of different lengths are filled in two pieces and then decoded. They must give the log-probabilities
    of a plain forward pass of each alone.
    """
    name = type(module).__name__
    length = min(12, context_length)
    step = max(vocabulary // 31, 1)
    rows = [[(7 + step * j + i) % vocabulary for j in range(length - 3 * i)] for i in range(2) if length - 3 * i > 1]
    try:
        forward = SlotForward(module, context_length)
        half = min(len(row) for row in rows) // 2
        for part in (slice(0, half), slice(half, -1)):
            pieces = [RowTokens(part.start, row[part]) for row in rows]
            if all(piece.token_ids for piece in pieces):
                forward.fill(0, pieces)
        served = forward.decode([row[-1] for row in rows], [len(row) - 1 for row in rows])
        plain = [module(input_ids=torch.tensor([row], device=served.device)).logits[0, -1] for row in rows]
    except EngineFailure:
        raise
    except Exception as error:
        raise EngineFailure(f"{name} cannot be served by the local engine: {type(error).__name__}: {error}") from error
    gap = (torch.log_softmax(served.float(), -1) - torch.log_softmax(torch.stack(plain).float(), -1)).abs().max().item()
    tolerance = PROBE_TOLERANCE if served.dtype == torch.float32 else PROBE_TOLERANCE_HALF
    if not gap <= tolerance:
        raise EngineFailure(
            f"{name} cannot be served by the local engine: with cached keys its log-probabilities are off by {gap:.2g}"
        )


def _attention_kinds(config: Any, window: int | None) -> frozenset[str]:
    layer_types: list[str] | None = getattr(config, "layer_types", None)
    kinds = frozenset(layer_types or [FULL if window is None else SLIDING])
    if SLIDING in kinds and window is None:
        raise EngineFailure(f"{config.model_type}: has sliding-window layers but no sliding_window in its config")
    if unknown := kinds - {FULL, SLIDING}:
        raise EngineFailure(f"{config.model_type}: the local engine cannot serve layers of kind {sorted(unknown)}")
    return kinds
