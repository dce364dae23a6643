"""From logits to tokens: the sampled distribution, its log-probabilities, and independence of the batch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.engine.local.sampling import Draw, sample
from swarm.types import SamplingParams

LOGITS = torch.tensor([2.0, 0.5, 1.0, -1.0, 0.0, 1.5])


def params(**values: float) -> SamplingParams:
    return SamplingParams(max_tokens=1, **values)  # type: ignore[arg-type]


def reference(logits: torch.Tensor, settings: SamplingParams) -> np.ndarray:
    """The definition, one token at a time: temperature, then top-k, then top-p of what is left."""
    probabilities = np.exp(logits.double().numpy() / settings.temperature)
    probabilities /= probabilities.sum()
    order = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    kept = order[: settings.top_k or len(order)]
    mass = sum(probabilities[token] for token in kept)
    nucleus: list[int] = []
    for token in kept:
        nucleus.append(token)
        if sum(probabilities[each] for each in nucleus) / mass >= settings.top_p:
            break
    result = np.zeros(len(probabilities))
    result[nucleus] = probabilities[nucleus] / sum(probabilities[each] for each in nucleus)
    return result


@pytest.mark.parametrize(
    "settings",
    [
        params(temperature=1.0),
        params(temperature=0.5),
        params(temperature=1.3, top_p=0.8),
        params(temperature=1.0, top_k=3),
        params(temperature=0.7, top_k=4, top_p=0.6),
        params(temperature=1.0, top_p=1e-9),
    ],
)
def test_frequencies_and_logprobs_follow_the_definition(settings: SamplingParams) -> None:
    grid = (np.arange(20_000) + 0.5) / 20_000
    tokens, logprobs = sample(LOGITS.expand(len(grid), -1), [Draw(settings, uniform) for uniform in grid])
    expected = reference(LOGITS, settings)
    frequencies = np.bincount(tokens, minlength=len(LOGITS)) / len(grid)
    assert frequencies == pytest.approx(expected, abs=1e-4)
    assert np.exp(logprobs) == pytest.approx(expected[tokens], abs=1e-6)


def test_greedy_takes_the_likeliest_and_reports_the_plain_logprob() -> None:
    tokens, logprobs = sample(LOGITS[None], [Draw(params(temperature=0.0, top_k=1, top_p=0.1), 0.999)])
    assert tokens == [0]
    assert logprobs[0] == pytest.approx(torch.log_softmax(LOGITS, -1)[0].item(), abs=1e-6)


def test_logits_that_are_not_finite_show_in_the_logprob() -> None:
    _, logprobs = sample(torch.full((1, 6), math.nan), [Draw(params(temperature=1.0), 0.5)])
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
    tokens, logprobs = sample(logits, draws)
    for row, draw in enumerate(draws):
        alone, logprob = sample(logits[row : row + 1], [draw])
        assert alone == [tokens[row]]
        assert logprob == pytest.approx([logprobs[row]], abs=1e-6)
        assert logprobs[row] > -math.inf
