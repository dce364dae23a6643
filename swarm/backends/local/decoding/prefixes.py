# pyright: reportUnknownMemberType=false
"""Keys and values of finished requests, kept so that the next turn of a conversation need not compute them again.

Place in the flow: batching.py keeps a row here when its request ends and restores the longest common beginning for a
new prompt. Emptied whenever weights change. Knows token ids and tensors, nothing of episodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from swarm.backends.local.decoding.cache import SlotCache

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
