"""Turns as the tracker records them, for tests of what each API makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from turns import plain_turn

from swarm.rollout.deduplication import CallEvent, Closed, Completion, Opened, Piece
from swarm.rollout.model_request import ModelRequest
from swarm.tracker.reply import ReplyStream
from swarm.types import FinishReason, TokenDelta, Turn


def published(turn: Turn, reply: ReplyStream, widths: Iterable[int] = (), top: Any = None) -> Iterator[CallEvent]:
    """What inference publishes for a turn whose tokens come in pieces of these sizes, and the rest at last."""
    yield Opened(turn.choice, turn.index, turn.prompt_ids)
    start, total = 0, len(turn.output_ids_T)
    for is_last, width in [*((False, width) for width in widths), (True, total)]:
        span = slice(start, min(start + width, total))
        finish = turn.finish_reason if is_last else None
        sampled = (turn.output_ids_T, turn.logprobs_T, turn.weight_versions_T)
        delta = TokenDelta(*(field[span] for field in sampled), finish, top and top[span])
        yield Piece(turn.choice, tuple(reply.push(delta.token_ids_T) + (reply.finish() if is_last else [])), delta)
        start = span.stop
    yield Closed(Completion(turn.choice, turn, top))


def recorded_turn(
    call: ModelRequest,
    output_ids: Sequence[int],
    reply: Any,
    finish: FinishReason = FinishReason.STOP,
    *,
    prompt_ids: Sequence[int] = (1, 2, 3, 4),
    first_logprob: float = 0.0,
    step: float = -0.25,
    index: int = 3,
    choice: int = 0,
    call_id: str = "0f3c",
) -> Turn:
    """A turn of one prompt of the call. The logprobs begin at `first_logprob` and change by `step` with each token."""
    prompt = call.prompts[choice // call.choices]
    return plain_turn(
        index,
        prompt_ids,
        output_ids,
        logprobs_T=tuple(first_logprob + step * place for place in range(len(output_ids))),
        weight_versions_T=(0,) * len(output_ids),
        finish_reason=finish,
        params=call.params,
        messages=getattr(prompt, "messages", ()),
        reply=reply,
        tools=getattr(prompt, "tools", ()),
        fork_reason=None,
        choice=choice,
        call_id=call_id,
    )
