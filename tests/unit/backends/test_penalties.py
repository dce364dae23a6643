"""Edits of single logits: equal to the definition for any parameters and history, whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sampling import plain_logprobs

from swarm.types import SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, Draw, LogitEdits, sample
    import torch

    from swarm.backends.local.decoding.sampling import Draw, LogitEdits, sample


VOCABULARY = 12
END_IDS = (0, 1)

tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=99)
penalties = st.sampled_from([0.0, 0.0, -1.5, 0.7, 2.0])
settings = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    presence_penalty=penalties,
    frequency_penalty=penalties,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=3).map(
        lambda biases: (*biases.items(),)
    ),
    min_tokens=st.sampled_from([0, 3, 50]),
)


@given(st.lists(st.tuples(settings, tokens, tokens, st.integers(0, 99)), min_size=1, max_size=5))
def test_distribution_is_that_of_the_definition(rows: list[tuple[SamplingParams, list[int], list[int], int]]) -> None:
    logits = torch.stack([3 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(row[3])) for row in rows])
    draws: list[Draw] = []
    for params, prompt, output, _ in rows:
        edits = LogitEdits(params, prompt, END_IDS) if LogitEdits.are_needed(params) else None
        for token in output:
            if edits is not None:
                edits.take(token)
        draws.append(Draw(params, 0.5, edits))
    chosen, logprobs, _ = sample(logits, draws)
    for row, (params, prompt, output, _) in enumerate(rows):
        expected = plain_logprobs(logits[row].numpy(), prompt, output, params, end_ids=END_IDS)
        assert logprobs[row] == pytest.approx(expected[chosen[row]], abs=1e-5)
        if not params.temperature:
            assert expected[chosen[row]] == pytest.approx(expected.max(), abs=1e-5)


def test_requests_without_edits_need_none() -> None:
    assert not LogitEdits.are_needed(SamplingParams(9, 0.5, 0.9, 3, 1, ("a",), (2,), min_p=0.1, top_logprobs=3))


def test_a_long_history_is_counted_whole() -> None:
    bias = tuple((token, 0.5) for token in range(100, 170))
    params = SamplingParams(9, frequency_penalty=0.01, repetition_penalty=1.1, logit_bias=bias, min_tokens=4999)
    prompt, history = np.split(np.random.default_rng(0).integers(0, 1000, 5500), [500])
    edits = LogitEdits(params, prompt.tolist(), range(200, 270))
    for token in history.tolist():
        edits.take(token)
    logits = torch.linspace(-1, 1, 1000)[None]
    chosen, logprobs, _ = sample(logits, [Draw(params, 0.3, edits)])
    expected = plain_logprobs(logits[0].numpy(), prompt.tolist(), history.tolist(), params)
    assert logprobs[0] == pytest.approx(expected[chosen[0]], abs=1e-5)
