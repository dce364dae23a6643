"""From logits to tokens: the sampled distribution, its log-probabilities, and independence of the batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sampling import plain_logprobs

from swarm.types import SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global LOGITS, torch, Draw, LogitEdits, sample
    import torch

    from swarm.backends.local.decoding.sampling import Draw, LogitEdits, sample

    LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 0.0, 1.5])


def params(**values: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1, **values})


@pytest.mark.parametrize(
    "settings",
    [
        params(temperature=1.0),
        params(temperature=0.5),
        params(temperature=1.3, top_p=0.8),
        params(temperature=1.0, top_k=3),
        params(temperature=0.7, top_k=4, top_p=0.6),
        params(temperature=1.0, top_p=1e-9),
        params(temperature=1.0, min_p=0.2),
        params(temperature=1.5, min_p=0.1, top_k=4, top_p=0.9),
        params(logit_bias=((3, 2.5), (0, -100.0))),
    ],
)
def test_frequencies_and_logprobs_follow_the_definition(settings: SamplingParams) -> None:
    grid = (np.arange(20_000) + 0.5) / 20_000
    edits = LogitEdits(settings, (), ()) if LogitEdits.are_needed(settings) else None
    tokens, logprobs, _ = sample(LOGITS.expand(len(grid), -1), [Draw(settings, uniform, edits) for uniform in grid])
    expected = np.exp(plain_logprobs(LOGITS.tolist(), (), (), settings))
    frequencies = np.bincount(tokens, minlength=len(LOGITS)) / len(grid)
    assert frequencies == pytest.approx(expected, abs=1e-4)
    assert np.exp(logprobs) == pytest.approx(expected[tokens], abs=1e-6)


def test_greedy_takes_the_likeliest_and_reports_the_plain_logprob() -> None:
    tokens, logprobs, _ = sample(LOGITS[None], [Draw(params(temperature=0.0, top_k=1, top_p=0.1), 0.999)])
    assert tokens == [0]
    assert logprobs[0] == pytest.approx(torch.log_softmax(LOGITS, -1)[0].item(), abs=1e-6)


def test_likeliest_tokens_are_of_the_distribution_sampled_from() -> None:
    settings = params(temperature=0.7, top_k=3, top_logprobs=5)
    bits = np.array([0b111101], dtype=np.uint32)
    draws = [Draw(settings, 0.5), Draw(params(), 0.5), Draw(params(temperature=0.0, top_logprobs=2), 0.5, None, bits)]
    _, _, likeliest = sample(LOGITS.expand(3, -1), draws)
    assert likeliest.keys() == {0, 2}
    expected = plain_logprobs(LOGITS.tolist(), (), (), settings)
    assert [token for token, _ in likeliest[0]] == [0, 5, 2]
    for token, logprob in likeliest[0]:
        assert logprob == pytest.approx(expected[token], abs=1e-6)
    greedy = plain_logprobs(LOGITS.tolist(), (), (), params(), allowed={0, 2, 3, 4, 5})
    assert likeliest[2] == ((0, pytest.approx(greedy[0], abs=1e-6)), (5, pytest.approx(greedy[5], abs=1e-6)))


def test_logits_given_in_are_left_as_they_were() -> None:
    logits = LOGITS[None].clone()
    settings = params(logit_bias=((1, 5.0),))
    sample(logits, [Draw(settings, 0.5, LogitEdits(settings, (), ()), np.array([0b10], dtype=np.uint32))])
    assert torch.equal(logits, LOGITS[None])


def test_logits_that_are_not_finite_show_in_the_logprob() -> None:
    _, logprobs, _ = sample(torch.full((1, 6), math.nan), [Draw(params(temperature=1.0), 0.5)])
    assert not math.isfinite(logprobs[0])


@given(
    st.lists(
        st.tuples(
            st.floats(0, 2),
            st.floats(0.05, 1),
            st.integers(0, 9),
            st.floats(0, 1, exclude_max=True),
            st.integers(0, 99),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_a_row_does_not_depend_on_the_others(rows: list[tuple[float, float, int, float, int]]) -> None:
    logits = torch.stack([torch.randn(9, generator=torch.Generator().manual_seed(row[4])) for row in rows])
    # Denormal temperatures overflow the logits, which the server's limits do not allow either.
    draws = [
        Draw(params(temperature=row[0] if row[0] > 0.01 else 0.0, top_p=row[1], top_k=row[2]), row[3]) for row in rows
    ]
    tokens, logprobs, _ = sample(logits, draws)
    for row, draw in enumerate(draws):
        alone, logprob, _ = sample(logits[row : row + 1], [draw])
        assert alone == [tokens[row]]
        assert logprob == pytest.approx([logprobs[row]], abs=1e-6)
        assert logprobs[row] > -math.inf
