"""From logits to tokens: the sampled distribution with edits of single logits, and where a completion ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_sampling import plain_logprobs

from swarm.backends.stopping import EndRule
from swarm.types import FinishReason, SamplingParams


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


def decode_bytes(token_ids: list[int]) -> str:
    """Token = byte, as in a byte-level tokenizer without merges."""
    return bytes(token_ids).decode(errors="replace")


def run(output_ids: list[int], params: SamplingParams, room: int = 10_000, stop_ids: tuple[int, ...] = ()) -> int:
    """How many tokens are taken before the rule ends the completion; all of them if it never does."""
    rule = EndRule(params, stop_ids, room, decode_bytes)
    for count in range(1, len(output_ids) + 1):
        if rule.check(output_ids[:count]) is not None:
            return count
    return len(output_ids)


def test_stop_token_wins_over_length() -> None:
    rule = EndRule(SamplingParams(max_tokens=2, stop_token_ids=(9,)), (8,), 10, decode_bytes)
    assert rule.check([1]) is None
    assert rule.check([1, 9]) is FinishReason.STOP
    assert rule.check([8]) is FinishReason.STOP
    assert rule.check([1, 2]) is FinishReason.LENGTH


def test_room_in_the_context_limits_like_max_tokens() -> None:
    assert run([1] * 20, SamplingParams(max_tokens=15), room=4) == 4
    assert run([1] * 20, SamplingParams(max_tokens=4), room=15) == 4


def test_nothing_but_the_limit_stops_before_min_tokens() -> None:
    params = SamplingParams(max_tokens=9, min_tokens=3, stop=("b",), stop_token_ids=(9,))
    assert run([9, 9, 9, 9, 9], params) == 4
    assert run(list(b"abcdba"), params) == 5
    assert run(list(b"aaaaaaaaaaaa"), params) == 9
    # Completed too early; what follows does not complete it again.
    assert run(list(b"abbcccc"), params) == 7


def test_end_tokens_of_the_model_can_be_ignored_but_not_those_of_the_request() -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True, stop_token_ids=(9,))
    assert run([8, 8, 9, 1], params, stop_ids=(8,)) == 3


def test_empty_stop_string_never_stops() -> None:
    assert run(list(b"hello"), SamplingParams(max_tokens=99, stop=("",))) == 5


@given(st.text(max_size=60), st.lists(st.text(min_size=1, max_size=6), max_size=3))
def test_stops_at_the_first_byte_that_completes_a_stop_string(text: str, stops: list[str]) -> None:
    output_ids = list(text.encode())
    expected = len(output_ids)
    for count in range(1, len(output_ids) + 1):
        if any(stop in decode_bytes(output_ids[:count]) for stop in stops):
            expected = count
            break
    assert run(output_ids, SamplingParams(max_tokens=10_000, stop=tuple(stops))) == expected


@given(st.text(alphabet="ab", min_size=1, max_size=40), st.text(alphabet="ab", min_size=1, max_size=4))
def test_repetitive_text_stops_where_the_string_first_occurs(text: str, stop: str) -> None:
    found = text.find(stop)
    expected = len(text) if found < 0 else found + len(stop)
    assert run(list(text.encode()), SamplingParams(max_tokens=10_000, stop=(stop,))) == expected
