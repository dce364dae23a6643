"""Kept prefixes: the longest common beginning is found, restored exactly, and bounded in number and size."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, forward, SHORTEST_MATCH, PrefixStore, SlotCache, Window, shared_length
    import torch

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
    cache.point_at(Window(0, torch.arange(1), positions, len(tokens), fresh=True, decoding=False))
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


def test_what_was_kept_again_latest_is_dropped_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "KEPT_REQUESTS", 2)
    store = PrefixStore()
    first, second, third = (list(range(start, start + 20)) for start in (0, 100, 200))
    for tokens in (first, second, first[:15], third):
        store.keep(filled_cache(tokens), 0, tokens)
    assert store.match(second) is None
    found = store.match(first)
    assert found is not None and found.length == len(first)
    assert store.match(third) is not None


def test_what_is_kept_already_is_not_copied_again() -> None:
    store, tokens = PrefixStore(), list(range(20))
    store.keep(filled_cache(tokens), 0, tokens)
    # Nothing of such a row may be read: there is none.
    store.keep(SlotCache(), 7, tokens)
    store.keep(SlotCache(), 7, tokens[:12])
    found = store.match(tokens)
    assert found is not None and found.columns[0][0, :, 0].tolist() == tokens


def test_restored_columns_equal_those_kept_in_a_cache_that_has_grown() -> None:
    cache = filled_cache(range(40))
    saved = cache.read(0, 40)
    cache.write(37, saved, 30)
    for restored, original in zip(cache.read(37, 30), saved, strict=True):
        assert torch.equal(restored, original[:, :30])


def test_oldest_go_first_beyond_either_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled_cache(range(60))
    one = sum(columns.nbytes for columns in cache.read(0, 20))
    for bound, value in (("KEPT_REQUESTS", 2), ("KEPT_BYTES", 2 * one)):
        with monkeypatch.context() as patch:
            patch.setattr(forward, bound, value)
            store = PrefixStore()
            for first in (0, 100, 200):
                store.keep(cache, 0, range(first, first + 20))
            assert store.match(range(20)) is None
            assert store.match(range(100, 120)) is not None
            assert store.match(range(200, 220)) is not None
