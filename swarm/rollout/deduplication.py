"""Logical calls: one question of a client, however often the client had to send it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from swarm.types import (
    FinishReason,
    Message,
    ReasoningPart,
    ReplyPart,
    TextPart,
    TokenDelta,
    TokenLogprobs,
    ToolCallPart,
    Turn,
)

SILENCE_S = 15.0
"""How long a stream may be silent before its readers get a sign of life. Proxies give up after 60 s, Claude Code after
300 s."""


RETRY_WITHIN_S = 150.0
"""How long a call without a result is remembered for another attempt. Client libraries wait for 120 s at most."""

NAME_CHARACTERS = 16


class NameKind(StrEnum):
    """The giver of a call's name.

    A caller gives all attempts of a call one name. A proxy gives each attempt a new one.
    """

    CALLER = "c"
    CARRIER = "p"


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """The properties that tell a logical call from the others of its episode. `sha256` is of route and body.

    A `name` is the same for all copies of one attempt. If the caller gave the name, it is the same for all attempts
    too. Calls without a name are matched by their attempt number, which client libraries count. Attempt k repeats a
    call whose last attempt was k - 1.
    """

    sha256: str
    attempt: int = 0
    name: str = ""

    @property
    def is_named_by_caller(self) -> bool:
        return self.name.startswith(NameKind.CALLER)


def call_name(kind: NameKind, name: str) -> str:
    """Return a short digest of a name, since callers may choose names of any length."""
    return kind + hashlib.sha256(name.encode()).hexdigest()[:NAME_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Opened:
    """The event of the first token of a choice. `prompt_ids` is its whole prompt."""

    choice: int
    turn_index: int
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens as they were sampled, and the parts of the reply that are certain by now. Either may be empty."""

    choice: int
    parts: tuple[ReplyPart, ...]
    delta: TokenDelta


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice, whose turn is recorded. `top_logprobs_T` is None unless the request asked for it."""

    choice: int
    turn: Turn
    top_logprobs_T: tuple[TokenLogprobs, ...] | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The event of a choice that is complete and recorded."""

    completion: Completion

    @property
    def choice(self) -> int:
        return self.completion.choice


CallEvent = Opened | Piece | Closed


@dataclass(frozen=True, slots=True)
class CallHead:
    """The part of every reply that names its call. `created` is in seconds since the epoch."""

    call_id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class CallResult:
    """A finished call; `completions` are by choice."""

    head: CallHead
    completions: tuple[Completion, ...]


class LogicalCall:
    """One call, in progress or finished. Use it from one event loop.

    A call runs as long as somebody reads it. Once the last reader has left, the call is cancelled and `is_abandoned`. A
    call that `is_sampled` is not cancelled, since only its record is missing. Only the events of a streamed call can be
    read before its end; `has_left` tells whether some were. A call that `is_patient` waits for its tokens without a
    limit. `names` are those of its attempts so far. `number` is the number of the call in its episode.
    """

    def __init__(
        self, identity: CallIdentity, created: float, *, is_streamed: bool, is_patient: bool = False, number: int = 0
    ) -> None:
        """Build a call in progress. `created` is in seconds since the epoch."""
        self.call_id = uuid.uuid4().hex
        self.identity = identity
        self.attempt = identity.attempt
        self.names = {identity.name} - {""}
        self.created = created
        self.is_streamed = is_streamed
        self.is_patient = is_patient
        self.number = number
        self.has_left = False
        self.is_abandoned = False
        self.is_sampled = False
        self.completions: tuple[Completion, ...] = ()
        self._events: list[CallEvent] = []
        self._news = asyncio.Event()
        self._readers = 0
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def recorded(cls, turns: Sequence[Turn]) -> LogicalCall:
        """Return a finished call, rebuilt from its recorded turns."""
        first = turns[0]
        sha256, *names = first.request_sha256.split()
        call = cls(CallIdentity(sha256, first.attempt), first.started_at, is_streamed=False)
        call.call_id = first.call_id
        call.names.update(names)
        call.completions = tuple(Completion(turn.choice, turn) for turn in turns)
        return call

    @property
    def is_finished(self) -> bool:
        return bool(self.completions)

    @property
    def identity_on_record(self) -> str:
        """Return the identity under which the ledger keeps the call, as `recorded` reads it."""
        return " ".join((self.identity.sha256, *sorted(self.names)))

    @property
    def is_named_by_caller(self) -> bool:
        return any(name.startswith(NameKind.CALLER) for name in self.names)

    def start(self, work: Coroutine[Any, Any, tuple[Completion, ...]]) -> None:
        """Start sampling. `work` publishes events on the way and returns the finished choices."""
        self._task = asyncio.create_task(self._carry_out(work), name=f"call {self.call_id}")
        # Readers raise its error; without readers nobody would retrieve it, and asyncio would warn.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def publish(self, event: CallEvent) -> None:
        """Pass an event to the readers. They may see this part of the reply from here on."""
        self._events.append(event)
        self._news.set()

    def forget(self, choice: int) -> None:
        """Forget the events of a choice that is sampled again. No reader has seen any of them."""
        self._events = [event for event in self._events if event.choice != choice]

    def head(self, model: str) -> CallHead:
        return CallHead(self.call_id, int(self.created), model)

    async def completed(self) -> tuple[Completion, ...]:
        """Wait for the end of the call and return its choices. Raise the error that kept the call from its end."""
        if self._task is not None:
            self._readers += 1
            try:
                await asyncio.shield(self._task)
            finally:
                self._leave()
        return self.completions

    async def events(self) -> AsyncGenerator[Sequence[CallEvent]]:
        """Yield all events from the first one, each time as many as are ready.

        Yield no events after SILENCE_S seconds without one. Raise the error that kept the call from its end.
        """
        if self._task is None or self.is_finished:
            yield [event for completion in self.completions for event in _events_of(completion)]
            return
        self._readers += 1
        position = 0
        try:
            while True:
                self._news.clear()
                events = self._events[position:]
                position += len(events)
                if events:
                    self.has_left = True
                    yield events
                elif self._task.done():
                    self._task.result()
                    return
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(SILENCE_S):
                            await self._news.wait()
                    if not self._news.is_set():
                        yield ()
        finally:
            self._leave()

    async def _carry_out(self, work: Coroutine[Any, Any, tuple[Completion, ...]]) -> None:
        try:
            self.completions = await work
        finally:
            self._news.set()

    def _leave(self) -> None:
        self._readers -= 1
        if not self._readers and self._task is not None and not self._task.done() and not self.is_sampled:
            self.is_abandoned = True
            self._task.cancel()


class EpisodeCalls:
    """The calls of one episode, in the order in which they were first sent."""

    def __init__(self) -> None:
        self._by_sha256: dict[str, list[LogicalCall]] = {}
        # For calls without a result: the number of the last attempt, and when it ended.
        self._lost: dict[str, list[tuple[int, float]]] = {}

    @classmethod
    def recorded(cls, turns: Iterable[Turn]) -> EpisodeCalls:
        """Return the calls that ended before this server began."""
        by_id: dict[str, list[Turn]] = {}
        for turn in turns:
            if turn.finish_reason is not FinishReason.ABORT:
                by_id.setdefault(turn.call_id, []).append(turn)
        calls = cls()
        for of_call in by_id.values():
            call = LogicalCall.recorded(of_call)
            call.number = calls.next_number()
            calls.add(call)
        return calls

    def next_number(self) -> int:
        """Return the lowest number that no call has.

        A call without a result leaves its number to the next call, which is usually another attempt of it.
        """
        used = {call.number for calls in self._by_sha256.values() for call in calls}
        return next(number for number in itertools.count() if number not in used)

    def claim(self, identity: CallIdentity) -> LogicalCall | None:
        """Return the call that this attempt repeats, or None."""
        calls = self._by_sha256.get(identity.sha256, [])
        call = _named(calls, identity.name) or self._numbered(calls, identity)
        if call is not None:
            call.attempt = max(call.attempt, identity.attempt)
            call.names |= {identity.name} - {""}
        return call

    def add(self, call: LogicalCall) -> None:
        self._by_sha256.setdefault(call.identity.sha256, []).append(call)

    def drop(self, call: LogicalCall) -> None:
        """Forget a call without a result. Another attempt of it begins anew."""
        sha256 = call.identity.sha256
        same = self._by_sha256.get(sha256, [])
        if call in same:
            same.remove(call)
            self._lost[sha256] = [*self._lately_lost(sha256), (call.attempt, time.monotonic())]

    def _numbered(self, calls: list[LogicalCall], identity: CallIdentity) -> LogicalCall | None:
        """Return the call that an attempt without a name repeats, or None.

        Libraries count attempts, so the last attempt of that call had the number before. An attempt in between may have
        been lost on its way to the server.
        """
        if not identity.attempt or identity.is_named_by_caller or self._repeats_a_lost_one(calls, identity):
            return None
        earlier = [
            call
            for call in calls
            if call.attempt < identity.attempt and not (call.is_abandoned or call.is_named_by_caller)
        ]
        return earlier[-1] if earlier else None

    def _repeats_a_lost_one(self, calls: list[LogicalCall], identity: CallIdentity) -> bool:
        """Return whether this attempt repeats a call without a result; True once for each such call.

        That is likelier than the repetition of an answered call.
        """
        lost = self._lately_lost(identity.sha256)
        for entry in reversed(lost):
            if entry[0] < identity.attempt:
                lost.remove(entry)
                self._lost[identity.sha256] = lost
                return True
        for call in reversed(calls):
            if call.is_abandoned and call.attempt < identity.attempt:
                calls.remove(call)
                return True
        return False

    def _lately_lost(self, sha256: str) -> list[tuple[int, float]]:
        horizon = time.monotonic() - RETRY_WITHIN_S
        return [entry for entry in self._lost.get(sha256, ()) if entry[1] > horizon]


def _named(calls: Sequence[LogicalCall], name: str) -> LogicalCall | None:
    return next((call for call in reversed(calls) if name in call.names and not call.is_abandoned), None)


def _events_of(completion: Completion) -> list[CallEvent]:
    turn = completion.turn
    delta = TokenDelta(
        turn.output_ids_T, turn.logprobs_T, turn.weight_versions_T, turn.finish_reason, completion.top_logprobs_T
    )
    return [
        Opened(completion.choice, turn.index, turn.prompt_ids),
        Piece(completion.choice, tuple(parts_of(turn.reply)), delta),
        Closed(completion),
    ]


def parts_of(reply: Message) -> list[ReplyPart]:
    """Return a whole assistant message as parts."""
    parts: list[ReplyPart] = []
    if reasoning := reply.get("reasoning_content"):
        parts.append(ReasoningPart(reasoning))
    if content := reply.get("content"):
        parts.append(TextPart(content))
    for call in reply.get("tool_calls") or ():
        parts.append(ToolCallPart(call["id"], call["function"]["name"], call["function"]["arguments"]))
    return parts
