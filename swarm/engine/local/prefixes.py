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

from swarm.engine.local.cache import SlotCache

KEPT_REQUESTS = 256
KEPT_TOKENS = 65_536
"""The oldest are dropped beyond either bound: comparing prompts, and memory, stay small."""
SHORTEST_MATCH = 16
"""Fewer shared tokens are computed faster than they are copied."""


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    tokens: np.ndarray
    columns: list[Tensor]


class PrefixStore:
    """A bounded memory of token sequences with their cache columns, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._tokens = 0

    def keep(self, cache: SlotCache, row: int, tokens: Sequence[int]) -> None:
        """Remember the first len(tokens) columns of a row."""
        if not SHORTEST_MATCH <= len(tokens) <= KEPT_TOKENS:
            return
        self._kept.append(_Kept(np.array(tokens), cache.read(row, len(tokens))))
        self._tokens += len(tokens)
        while len(self._kept) > KEPT_REQUESTS or self._tokens > KEPT_TOKENS:
            self._tokens -= len(self._kept.popleft().tokens)

    def match(self, tokens: Sequence[int]) -> int:
        """How many of the first `tokens` can be restored; 0 if too few to be worth it."""
        length, _ = self._longest(tokens)
        return length

    def restore(self, cache: SlotCache, row: int, tokens: Sequence[int], length: int) -> None:
        """Write the columns of the first `length` tokens into a row."""
        _, kept = self._longest(tokens[:length])
        assert kept is not None
        cache.write(row, kept.columns, length)

    def _longest(self, tokens: Sequence[int]) -> tuple[int, _Kept | None]:
        wanted = np.array(tokens)
        best, best_kept = 0, None
        for kept in self._kept:
            shared = min(len(wanted), len(kept.tokens))
            # Cheap refusal first: most kept sequences end their match before the best one found so far.
            if shared <= best or kept.tokens[best] != wanted[best]:
                continue
            differing = np.nonzero(kept.tokens[:shared] != wanted[:shared])[0]
            length = int(differing[0]) if len(differing) else shared
            if length > best:
                best, best_kept = length, kept
        return (best, best_kept) if best >= SHORTEST_MATCH else (0, None)
