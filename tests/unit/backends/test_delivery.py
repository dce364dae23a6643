"""Tokens leave the worker together, none late, none lost and none twice."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.backends.process.wire import Message, Unpacker, pack, unpack_delta
from swarm.errors import EngineFailure
from swarm.types import FinishReason, TokenDelta, TokenLogprobs


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global Sampled, LONGEST_DELAY_S, TokenDelivery
    from swarm.backends.local.decoding.batching import Sampled
    from swarm.backends.local.pacing import LONGEST_DELAY_S, TokenDelivery


FAILED = ["engine_failure", "sampling failed", None]


class Parent:
    """What came through the pipe, by request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.messages = 0
        self.deltas: dict[int, list[TokenDelta]] = defaultdict(list)
        self.errors: dict[int, list[str | None]] = {}

    def take(self, message: Message) -> None:
        self.messages += 1
        (message,) = Unpacker().feed(pack(message))
        for handle, *packed in message.get("tokens", ()):
            self.deltas[handle].append(unpack_delta(packed, message["version"]))
        if "error" in message:
            self.errors[message["id"]] = message["error"]

    def tokens(self, handle: int) -> list[int]:
        return [token for delta in self.deltas[handle] for token in delta.token_ids_T]


def sampled(
    handle: int, token: int, finish: FinishReason | None = None, likeliest: TokenLogprobs | None = None
) -> Sampled:
    return Sampled(handle, token, -token / 8, finish, likeliest=likeliest)


def test_a_first_token_leaves_at_once_and_the_rest_with_the_end() -> None:
    parent = Parent()
    delivery = TokenDelivery(parent.take, lambda: parent.now)
    delivery.add([sampled(1, 40)], 3)
    assert parent.tokens(1) == [40]
    delivery.add([sampled(1, 41)], 3)
    delivery.add([sampled(1, 42)], 3)
    assert parent.tokens(1) == [40]
    delivery.add([sampled(1, 43, FinishReason.STOP)], 3)
    assert parent.messages == 2
    rest = TokenDelta((41, 42, 43), (-41 / 8, -42 / 8, -43 / 8), (3, 3, 3), FinishReason.STOP)
    assert parent.deltas[1][1] == rest


def test_likeliest_tokens_travel_with_their_tokens() -> None:
    parent = Parent()
    delivery = TokenDelivery(parent.take, lambda: parent.now)
    tops = [((token, -0.5), (9, -2.0)) for token in (40, 41, 42)]
    for token, top in zip((40, 41), tops, strict=False):
        delivery.add([sampled(1, token, likeliest=top)], 0)
    delivery.add([sampled(1, 42, FinishReason.LENGTH, tops[2])], 0)
    assert [top for delta in parent.deltas[1] for top in delta.top_logprobs_T or ()] == tops


def test_what_is_held_leaves_before_the_weights_change_and_before_an_abort_or_a_failure() -> None:
    parent = Parent()
    delivery = TokenDelivery(parent.take, lambda: parent.now)
    for token in (40, 41):
        delivery.add([sampled(handle, token) for handle in (1, 2, 3)], 0)
    delivery.forget(3)
    delivery.flush()
    assert (parent.tokens(1), parent.tokens(2), parent.tokens(3)) == ([40, 41], [40, 41], [40])
    delivery.add([sampled(1, 42), sampled(2, 42)], 1)
    delivery.abort([1])
    assert parent.deltas[1][-1] == TokenDelta((), (), (), FinishReason.ABORT)
    assert [version for delta in parent.deltas[1] for version in delta.weight_versions_T] == [0, 0, 1]
    delivery.add([sampled(4, 40)], 1)
    delivery.add([sampled(4, 41)], 1)
    delivery.fail([4], FAILED)
    assert parent.tokens(4) == [40, 41] and parent.errors[4] == FAILED


def test_a_request_that_fails_is_told_why_after_what_it_sampled() -> None:
    parent = Parent()
    delivery = TokenDelivery(parent.take, lambda: parent.now)
    delivery.add([sampled(1, 40)], 0)
    delivery.add([sampled(1, 41)], 0)
    delivery.add([Sampled(1, None, 0.0, None, EngineFailure("not finite"))], 0)
    assert parent.tokens(1) == [40, 41]
    assert parent.errors[1][1] == "not finite"


@given(steps=st.lists(st.tuples(st.sets(st.integers(1, 4)), st.sampled_from([0.0, 0.01, 0.06])), max_size=40))
@settings(max_examples=examples(100), deadline=None)
def test_tokens_arrive_in_order_once_and_none_is_older_than_the_limit(steps: list[tuple[set[int], float]]) -> None:
    parent = Parent()
    delivery = TokenDelivery(parent.take, lambda: parent.now)
    given_tokens: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for number, (handles, seconds) in enumerate(steps):
        parent.now += seconds
        delivery.add([sampled(handle, number) for handle in sorted(handles)], 0)
        for handle in handles:
            given_tokens[handle].append((number, parent.now))
        for handle, tokens in given_tokens.items():
            arrived = parent.tokens(handle)
            assert arrived == [token for token, _ in tokens][: len(arrived)]
            assert all(parent.now - at < LONGEST_DELAY_S for _, at in tokens[len(arrived) :])
    delivery.flush()
    assert {handle: parent.tokens(handle) for handle in given_tokens} == {
        handle: [token for token, _ in tokens] for handle, tokens in given_tokens.items()
    }
