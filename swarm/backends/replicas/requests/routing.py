"""The choice of a replica for a request: one that has the beginning of its prompt in its cache, else the least loaded.

Place in the flow: pool.py asks once per request, and again if the replica breaks. This module knows replicas by
their numbers only. The turns of an episode extend one another's tokens, so they reach the same prefix cache again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

BLOCK_TOKENS: Final = 64
"""Shorter beginnings are computed so fast that routing by them is not worth it."""
KEPT_BLOCKS: Final = 200_000
"""Some 20 MB: a few thousand episodes of several thousand tokens."""
SPILL_SHARE: Final = 0.25
SPILL_LEAST: Final = 4


class PrefixRouter:
    """Record of the replicas whose caches have the beginnings of sequences."""

    def __init__(self, max_num_seqs: int) -> None:
        """Set the limit on imbalance.

        A replica is passed over if it has more requests than another by a fixed share of `max_num_seqs`.
        """
        self._spill = max(SPILL_LEAST, int(max_num_seqs * SPILL_SHARE))
        self._owners: OrderedDict[int, int] = OrderedDict()

    def choose(self, prompt_ids: Sequence[int], loads: Mapping[int, int]) -> int:
        """Return one of the keys of `loads`, which maps each serving replica to its number of requests."""
        least = min(loads, key=lambda replica: (loads[replica], replica))
        known = self._longest(prompt_ids)
        if known is None or known not in loads or loads[known] - loads[least] >= self._spill:
            return least
        return known

    def remember(self, replica: int, token_ids: Sequence[int]) -> None:
        """Record that these tokens are in the cache of `replica` now."""
        for block in _blocks(token_ids):
            self._owners[block] = replica
            self._owners.move_to_end(block)
        while len(self._owners) > KEPT_BLOCKS:
            self._owners.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Record that the cache of `replica` is gone."""
        self._owners = OrderedDict((block, owner) for block, owner in self._owners.items() if owner != replica)

    def _longest(self, prompt_ids: Sequence[int]) -> int | None:
        found: int | None = None
        for block in _blocks(prompt_ids):
            owner = self._owners.get(block)
            if owner is None:
                break
            found = owner
        return found


def _blocks(token_ids: Sequence[int]) -> list[int]:
    """Return one number per full block, which depends on all tokens up to the end of the block."""
    numbers: list[int] = []
    before = 0
    for end in range(BLOCK_TOKENS, len(token_ids) + 1, BLOCK_TOKENS):
        before = hash((before, tuple(token_ids[end - BLOCK_TOKENS : end])))
        numbers.append(before)
    return numbers
