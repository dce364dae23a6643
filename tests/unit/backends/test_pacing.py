"""Requests begin together where others are about to come, and their tokens leave together, none late or twice."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests_support import examples

from swarm.backends.local.pacing import (
    LONGEST_WAIT_S,
    MOST_AWAITED,
    SHORTEST_SILENCE_S,
    WINDOW_S,
    Gathering,
)
from swarm.backends.process.wire import Message, Unpacker, pack, unpack_delta
from swarm.errors import EngineFailure
from swarm.types import FinishReason, TokenDelta, TokenLogprobs


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global Sampled, LONGEST_DELAY_S, TokenDelivery
    from swarm.backends.local.decoding.batching import Sampled
    from swarm.backends.local.pacing import LONGEST_DELAY_S, TokenDelivery


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def gathering(time: Time) -> Gathering:
    return Gathering(time)


def seen_together(gathering: Gathering, count: int) -> None:
    for present in range(1, count + 1):
        gathering.arrived(present)
    gathering.begun()


def test_a_request_without_company_begins_at_once(gathering: Gathering, time: Time) -> None:
    for _ in range(3):
        gathering.arrived(present=1)
        assert gathering.wait_s(waiting=1) == 0
        gathering.begun()
        time.now += 0.2


@pytest.mark.parametrize(("present", "awaited"), [(12, 6), (10 * MOST_AWAITED, MOST_AWAITED)])
def test_half_of_those_that_were_there_at_once_are_awaited_up_to_a_limit(
    gathering: Gathering, present: int, awaited: int
) -> None:
    seen_together(gathering, present)
    for waiting in range(1, awaited):
        gathering.arrived(present=waiting)
        assert gathering.wait_s(waiting) > 0
    gathering.arrived(present=awaited)
    assert gathering.wait_s(awaited) == 0


def test_silence_ends_the_wait(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    gathering.arrived(present=1)
    assert gathering.wait_s(1) == pytest.approx(SHORTEST_SILENCE_S)
    time.now += SHORTEST_SILENCE_S + 1e-6
    assert gathering.wait_s(1) == 0


def test_where_they_come_slowly_silence_begins_later(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    for _ in range(50):
        gathering.arrived(present=1)
        time.now += SHORTEST_SILENCE_S / 2
        gathering.arrived(present=2)
        gathering.begun()
    gathering.arrived(present=1)
    time.now += SHORTEST_SILENCE_S
    assert gathering.wait_s(1) > 0
    time.now += SHORTEST_SILENCE_S
    assert gathering.wait_s(1) == 0


def test_nobody_waits_longer_than_the_longest_hold_however_many_come(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 2 * MOST_AWAITED)
    began, waiting = time.now, 0
    while not waiting or gathering.wait_s(waiting):
        waiting += 1
        gathering.arrived(present=waiting)
        assert gathering.wait_s(waiting) <= LONGEST_WAIT_S
        time.now += SHORTEST_SILENCE_S / 2
    assert time.now - began <= LONGEST_WAIT_S + SHORTEST_SILENCE_S


def test_those_who_are_left_over_for_want_of_room_hold_nobody(gathering: Gathering) -> None:
    seen_together(gathering, 12)
    gathering.arrived(present=13)
    assert gathering.wait_s(waiting=2) == 0


def test_a_crowd_is_remembered_through_a_training_step_and_then_forgotten(gathering: Gathering, time: Time) -> None:
    seen_together(gathering, 12)
    time.now += 0.9 * WINDOW_S
    gathering.arrived(present=1)
    gathering.begun()
    time.now += 0.9 * WINDOW_S
    gathering.arrived(present=1)
    assert gathering.wait_s(1) > 0
    gathering.begun()
    time.now += 2 * WINDOW_S
    gathering.arrived(present=1)
    assert gathering.wait_s(1) == 0


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
