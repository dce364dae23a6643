"""Kept prefixes: the longest common beginning is found, restored exactly, and bounded in number and size."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, forward, PrefixStore, SlotCache, Window
    import torch

    from swarm.backends.local.decoding import forward
    from swarm.backends.local.decoding.forward import PrefixStore, SlotCache, Window


HEADS, DIM = 2, 4


def filled_cache(rows: int, length: int) -> SlotCache:
    """Two layers; column values tell row and column apart."""
    cache = SlotCache()
    positions = torch.arange(length).expand(rows, length)
    for layer in range(2):
        cache.point_at(Window(0, torch.arange(len(positions)), positions, length, fresh=True, decoding=False))
        columns = torch.randn(rows, HEADS, length, DIM, generator=torch.Generator().manual_seed(layer))
        cache.update(columns, -columns, layer)
    return cache


def test_longest_common_beginning_wins() -> None:
    cache, store = filled_cache(3, 60), PrefixStore()
    store.keep(cache, 0, range(20))
    store.keep(cache, 1, range(50))
    store.keep(cache, 2, [*range(30), *range(100, 130)])
    match = store.match([*range(40), 7, 7])
    assert match is not None and match.length == 40
    for kept, wanted in zip(match.columns, cache.read(1, 50), strict=True):
        assert torch.equal(kept, wanted)
    assert store.match([*range(1, 60)]) is None


def test_short_matches_are_not_worth_it() -> None:
    cache, store = filled_cache(1, 60), PrefixStore()
    store.keep(cache, 0, range(forward.SHORTEST_MATCH - 1))
    assert store.match(range(50)) is None
    store.keep(cache, 0, range(60))
    assert store.match(range(forward.SHORTEST_MATCH - 1)) is None
    assert store.match(range(forward.SHORTEST_MATCH)) is not None


def test_restored_columns_equal_those_kept_in_a_cache_that_has_grown() -> None:
    cache = filled_cache(1, 40)
    saved = cache.read(0, 40)
    cache.write(37, saved, 30)
    for restored, original in zip(cache.read(37, 30), saved, strict=True):
        assert torch.equal(restored, original[:, :30])


def test_oldest_go_first_beyond_either_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = filled_cache(1, 60)
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
