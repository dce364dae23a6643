"""Text that cannot fit is refused before it is tokenized, and no other text is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.errors import ContextLengthExceeded
from swarm.model_path import BUNDLED_DIRECTORY
from swarm.tracker.codec import Codec
from swarm.tracker.tokenizer import encode_within

CONTEXT = 16


@pytest.fixture(scope="module")
def nano() -> Codec:
    return Codec.load(BUNDLED_DIRECTORY)


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(max_size=400) | st.text("ab ", max_size=2000))
def test_what_is_refused_does_not_fit_and_what_fits_is_tokenized_as_ever(nano: Codec, text: str) -> None:
    whole = nano.encode_text(text)
    try:
        assert nano.bounded(lambda: CONTEXT).encode_text(text) == whole
    except ContextLengthExceeded:
        assert len(whole) > CONTEXT


def test_only_the_beginning_of_an_endless_text_is_looked_at() -> None:
    seen: list[int] = []

    def encode(text: str) -> tuple[int, ...]:
        seen.append(len(text))
        return (0,) * (len(text) // 4)

    with pytest.raises(ContextLengthExceeded, match="10000000 characters"):
        encode_within(encode, "x" * 10_000_000, 100)
    assert sum(seen) < 10_000


def test_dense_text_is_looked_at_further() -> None:
    def encode(text: str) -> tuple[int, ...]:
        return (0,) * (len(text) // 100)

    assert len(encode_within(encode, "x" * 10_000, 100)) == 100
    assert len(encode_within(encode, "x" * 10_000, 0)) == 100
