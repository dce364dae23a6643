"""One logical call, however often it is sent: joined while it runs, told again when it has ended, ended when nobody
reads it any more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rollout_support import sampled_turn

from swarm.errors import EngineFailure
from swarm.rollout import deduplication as calls
from swarm.rollout.deduplication import (
    CallEvent,
    CallIdentity,
    Closed,
    Completion,
    EpisodeCalls,
    LogicalCall,
    NameKind,
    Opened,
    Piece,
    call_name,
)
from swarm.types import FinishReason, TextPart, TokenDelta, ToolCallPart, Turn

pytestmark = pytest.mark.anyio

REPLY = {
    "role": "assistant",
    "content": "ab",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


def turn(**changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "prompt_ids": (1, 2),
        "output_ids": (3, 4),
        "reply": REPLY,
        "fork_reason": None,
        "started_at": 7.0,
        "ended_at": 8.0,
        "call_id": "call",
        "request_sha256": "asked",
        "index": 0,
        **changes,
    }
    return sampled_turn("e1", fields.pop("index"), **fields)


def new_call(sha256: str = "asked", attempt: int = 0, **options: Any) -> LogicalCall:
    return LogicalCall(CallIdentity(sha256, attempt), 7.0, is_streamed=options.get("is_streamed", False))


def named_call(name: str) -> LogicalCall:
    return LogicalCall(CallIdentity("asked", 0, name), 7.0, is_streamed=False)


async def finished(call: LogicalCall) -> LogicalCall:
    async def work() -> tuple[Completion, ...]:
        return (Completion(0, turn()),)

    call.start(work())
    await call.completed()
    return call


async def read(call: LogicalCall) -> list[CallEvent]:
    return [event async for batch in call.events() for event in batch]


def pieces(count: int) -> list[CallEvent]:
    return [Piece(0, (TextPart(str(n)),), TokenDelta((n,), (-0.5,), (0,))) for n in range(count)]


async def test_every_reader_gets_every_event_from_the_first_one() -> None:
    call, gate = new_call(is_streamed=True), asyncio.Event()
    sent = [Opened(0, 0, (1, 2)), *pieces(3)]
    end = Closed(Completion(0, turn()))

    async def work() -> tuple[Completion, ...]:
        for event in sent:
            call.publish(event)
            await asyncio.sleep(0)
        await gate.wait()
        call.publish(end)
        return (end.completion,)

    call.start(work())
    early = asyncio.create_task(read(call))
    await asyncio.sleep(0.01)
    late = asyncio.create_task(read(call))
    await asyncio.sleep(0.01)
    gate.set()
    assert await early == await late == [*sent, end]
    assert call.has_left


async def test_a_finished_call_is_told_again_in_one_piece() -> None:
    opened, piece, closed = await read(await finished(new_call(is_streamed=True)))
    assert (opened, closed) == (Opened(0, 0, (1, 2)), Closed(Completion(0, turn())))
    assert piece.parts == (TextPart("ab"), ToolCallPart("c1", "f", "{}"))
    assert (piece.delta.token_ids_T, piece.delta.finish_reason) == ((3, 4), FinishReason.STOP)


async def test_silence_is_reported_so_that_a_sign_of_life_can_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "SILENCE_S", 0.01)
    call = new_call(is_streamed=True)
    call.start(asyncio.sleep(60, ()))
    events = call.events()
    assert await anext(events) == ()
    await events.aclose()


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_a_call_is_cancelled_with_its_last_reader_and_not_before(is_streamed: bool) -> None:
    call, cancelled = new_call(is_streamed=is_streamed), asyncio.Event()

    async def work() -> tuple[Completion, ...]:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return ()

    call.start(work())
    readers = [asyncio.create_task(read(call) if is_streamed else call.completed()) for _ in range(2)]
    await asyncio.sleep(0.01)
    readers[0].cancel()
    await asyncio.wait(readers[:1])
    assert not (call.is_abandoned or cancelled.is_set())
    readers[1].cancel()
    await asyncio.wait(readers[1:])
    await asyncio.wait_for(cancelled.wait(), 60)
    assert call.is_abandoned


async def test_what_breaks_a_call_reaches_all_its_readers() -> None:
    call = new_call(is_streamed=True)

    async def work() -> tuple[Completion, ...]:
        await asyncio.sleep(0.01)
        raise EngineFailure("broke")

    call.start(work())
    outcomes = await asyncio.gather(read(call), call.completed(), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["broke", "broke"]


async def test_events_of_a_choice_that_is_sampled_again_are_forgotten() -> None:
    call = new_call(is_streamed=True)
    other = Opened(1, 1, (1,))
    for event in (Opened(0, 0, (1,)), other, *pieces(2)):
        call.publish(event)
    call.forget(0)
    call.start(asyncio.sleep(0, ()))
    assert await anext(call.events()) == [other]


async def test_attempts_of_one_call_find_it_by_their_number() -> None:
    known = EpisodeCalls()
    call = await finished(new_call())
    known.add(call)
    assert known.claim(CallIdentity("asked")) is None, "the same question again is another call"
    assert known.claim(CallIdentity("other", 1)) is None
    assert known.claim(CallIdentity("asked", 1)) is call
    assert call.attempt == 1
    assert known.claim(CallIdentity("asked", 1)) is None, "attempt 1 of another call"
    assert known.claim(CallIdentity("asked", 3)) is call, "attempt 2 never arrived"


async def test_of_equal_calls_a_retry_repeats_the_last_one() -> None:
    known, equal = EpisodeCalls(), [await finished(new_call()) for _ in range(2)]
    for call in equal:
        known.add(call)
    assert known.claim(CallIdentity("asked", 1)) is equal[1]
    assert known.claim(CallIdentity("asked", 1)) is equal[0]


OWN, OTHER = (call_name(NameKind.CALLER, name) for name in ("own", "other"))
FIRST, SECOND = (call_name(NameKind.CARRIER, name) for name in ("first", "second"))


async def test_a_call_that_its_caller_named_is_found_by_its_name_alone() -> None:
    known, call = EpisodeCalls(), await finished(named_call(OWN))
    known.add(call)
    assert known.claim(CallIdentity("asked", 0, OWN)) is call
    assert known.claim(CallIdentity("asked", 1, OWN)) is call
    assert known.claim(CallIdentity("asked", 2, OTHER)) is None
    assert known.claim(CallIdentity("asked", 2)) is None


async def test_a_proxy_that_names_every_attempt_anew_does_not_part_them() -> None:
    known, call = EpisodeCalls(), await finished(named_call(FIRST))
    known.add(call)
    assert known.claim(CallIdentity("asked", 0, FIRST)) is call, "sent twice"
    assert known.claim(CallIdentity("asked", 1, SECOND)) is call
    assert known.claim(CallIdentity("asked", 1, SECOND)) is call, "the second attempt, sent twice"
    assert known.claim(CallIdentity("asked", 0, SECOND)) is call
    assert known.claim(CallIdentity("asked", 0, "p-third")) is None


async def test_calls_that_came_to_nothing_are_not_joined() -> None:
    known, dropped, abandoned = EpisodeCalls(), await finished(new_call()), new_call()
    known.add(dropped)
    known.drop(dropped)
    known.add(abandoned)
    abandoned.is_abandoned = True
    assert known.claim(CallIdentity("asked", 1)) is None


async def test_a_retry_repeats_the_call_that_came_to_nothing_and_not_its_equal() -> None:
    known, lost, answered = EpisodeCalls(), new_call(), await finished(new_call())
    for call in (lost, answered):
        known.add(call)
    known.drop(lost)
    assert known.claim(CallIdentity("asked", 1)) is None
    assert known.claim(CallIdentity("asked", 1)) is answered, "the lost one was asked for again before"


async def test_a_retry_of_a_call_that_is_being_given_up_does_not_join_its_equal() -> None:
    known, given_up, answered = EpisodeCalls(), new_call(), await finished(new_call())
    for call in (given_up, answered):
        known.add(call)
    given_up.is_abandoned = True
    assert known.claim(CallIdentity("asked", 1)) is None
    known.drop(given_up)
    assert known.claim(CallIdentity("asked", 1)) is answered


async def test_nobody_comes_back_late_for_a_call_that_came_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RETRY_WITHIN_S", 0.0)
    known, lost, answered = EpisodeCalls(), new_call(), await finished(new_call())
    known.add(lost)
    known.drop(lost)
    known.add(answered)
    assert known.claim(CallIdentity("asked", 1)) is answered


async def test_a_call_that_only_waits_for_its_record_is_carried_through_without_readers() -> None:
    call, gate = new_call(), asyncio.Event()

    async def work() -> tuple[Completion, ...]:
        call.is_sampled = True
        await gate.wait()
        return (Completion(0, turn()),)

    call.start(work())
    reader = asyncio.create_task(call.completed())
    await asyncio.sleep(0.01)
    reader.cancel()
    await asyncio.wait([reader])
    gate.set()
    assert not call.is_abandoned
    assert await call.completed() == (Completion(0, turn()),)


async def test_names_are_on_record_too() -> None:
    call = await finished(named_call(FIRST))
    call.names.add(OWN)
    known = EpisodeCalls.recorded([turn(request_sha256=call.identity_on_record)])
    for name in (FIRST, OWN):
        assert known.claim(CallIdentity("asked", 0, name)) is not None
    assert known.claim(CallIdentity("asked", 0, SECOND)) is None


async def test_calls_on_record_are_known_after_a_restart() -> None:
    orphan = turn(call_id="lost", request_sha256="orphan", finish_reason=FinishReason.ABORT, index=3)
    choices = [turn(call_id="two", request_sha256="both", choice=n, index=n + 1) for n in range(2)]
    known = EpisodeCalls.recorded([turn(), *choices, orphan])

    one, both = known.claim(CallIdentity("asked", 1)), known.claim(CallIdentity("both", 1))
    assert one is not None and both is not None
    assert await one.completed() == (Completion(0, turn()),)
    assert [completion.choice for completion in await both.completed()] == [0, 1]
    assert one.call_id == "call" and one.is_finished
    assert known.claim(CallIdentity("orphan", 1)) is None
