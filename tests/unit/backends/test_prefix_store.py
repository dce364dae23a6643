"""Kept prefixes: the longest beginning is found, and the oldest are dropped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.local.decoding import forward
from swarm.backends.local.decoding.forward import SHORTEST_MATCH, PrefixStore, SlotCache, Window, shared_length

TOKENS = st.lists(st.integers(0, 300), max_size=4)
PROMPTS = st.lists(st.tuples(st.integers(0, 2), TOKENS), max_size=12)


def prompt(head: int, rest: Sequence[int]) -> list[int]:
    """Three families of prompts that begin alike, and then differ or not."""
    return [*([70_000 + head] * (SHORTEST_MATCH - 2 + head)), *rest]


def filled_cache(tokens: Sequence[int]) -> SlotCache:
    """A cache whose only row holds the tokens themselves in the place of keys and values."""
    cache = SlotCache()
    positions = torch.arange(len(tokens))[None]
    cache.point_at(Window(0, positions, len(tokens), fresh=True, decoding=False))
    values = torch.tensor(tokens, dtype=torch.float32)[None, None, :, None]
    cache.update(values, values, 0)
    return cache


@given(kept=PROMPTS, wanted=st.tuples(st.integers(0, 2), TOKENS))
def test_the_longest_beginning_that_is_kept_is_found(
    kept: list[tuple[int, list[int]]], wanted: tuple[int, list[int]]
) -> None:
    store, asked = PrefixStore(), torch.tensor(prompt(*wanted)).numpy()
    sequences = [prompt(*each) for each in kept]
    for tokens in sequences:
        store.keep(filled_cache(tokens), 0, tokens)
    lengths = [
        shared_length(asked, torch.tensor(tokens).numpy(), 1) for tokens in sequences if len(tokens) >= SHORTEST_MATCH
    ]
    longest = max(lengths, default=0)
    found = store.match(asked)
    if longest < SHORTEST_MATCH:
        assert found is None
        return
    assert found is not None and found.length == longest
    assert found.columns[0][0, :longest, 0].tolist() == asked[:longest].tolist()


def test_the_oldest_is_dropped_where_there_are_too_many_also_among_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "KEPT_REQUESTS", 3)
    store = PrefixStore()
    first, second = list(range(20)), list(range(100, 120))
    for tokens in (first, first, second, second):
        store.keep(filled_cache(tokens), 0, tokens)
    assert store.match(first) is not None
    store.keep(filled_cache(second), 0, second)
    assert store.match(first) is None
    assert store.match(second) is not None
