"""Stop rules: tokens, strings, room; against the plain definition for any text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.backends.stopping import EndRule
from swarm.types import FinishReason, SamplingParams


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
