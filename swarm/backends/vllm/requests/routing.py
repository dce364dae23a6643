"""Which replica a request goes to: where the beginning of its prompt was computed before, else the least loaded.

Place in the flow: pool.py asks once per request, and again if the replica breaks. It knows replicas by their numbers
only. The turns of an episode extend one another's tokens, so they find their way back to the same prefix cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

BLOCK_TOKENS: Final = 64
"""Shorter beginnings are computed faster than they are worth steering by."""
KEPT_BLOCKS: Final = 200_000
"""Some 20 MB: a few thousand episodes of several thousand tokens."""
SPILL_SHARE: Final = 0.25
SPILL_LEAST: Final = 4


class PrefixRouter:
    """Remembers where beginnings of sequences are cached."""

    def __init__(self, max_num_seqs: int) -> None:
        """A replica with this share of `max_num_seqs` more requests than another is passed over."""
        self._spill = max(SPILL_LEAST, int(max_num_seqs * SPILL_SHARE))
        self._owners: OrderedDict[int, int] = OrderedDict()

    def choose(self, prompt_ids: Sequence[int], loads: Mapping[int, int]) -> int:
        """One of the keys of `loads`, which maps the replicas that serve to how many requests each has."""
        least = min(loads, key=lambda replica: (loads[replica], replica))
        known = self._longest(prompt_ids)
        if known is None or known not in loads or loads[known] - loads[least] >= self._spill:
            return least
        return known

    def remember(self, replica: int, token_ids: Sequence[int]) -> None:
        """These tokens are in the cache of `replica` now."""
        for block in _blocks(token_ids):
            self._owners[block] = replica
            self._owners.move_to_end(block)
        while len(self._owners) > KEPT_BLOCKS:
            self._owners.popitem(last=False)

    def forget(self, replica: int) -> None:
        """Its cache is gone."""
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
    """One number per full block, which depends on all tokens up to its end."""
    numbers: list[int] = []
    before = 0
    for end in range(BLOCK_TOKENS, len(token_ids) + 1, BLOCK_TOKENS):
        before = hash((before, tuple(token_ids[end - BLOCK_TOKENS : end])))
        numbers.append(before)
    return numbers
