"""Replies of Anthropic's messages API: one body, or a stream of events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from swarm.errors import EngineFailure, SwarmError
from swarm.gateway.dialects.anthropic.errors import anthropic_error
from swarm.gateway.dialects.anthropic.messages import input_json, tool_input
from swarm.gateway.dialects.anthropic.request import MessagesBody
from swarm.gateway.dialects.endpoint import SseEvent
from swarm.gateway.dialects.fields import CheckedCall
from swarm.rollout.deduplication import CallEvent, CallHead, CallResult, Closed, Opened, Piece, parts_of
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, ReasoningPart, ReplyPart, TextPart, ToolCallPart, Turn

_PING = SseEvent({"type": "ping"}, "ping").encode()


def render_message(request: CheckedCall[MessagesBody], result: CallResult, codec: Codec) -> dict[str, Any]:
    """Return the body of a finished call. Raises EngineFailure for an aborted turn, as its reply is incomplete."""
    (completion,) = result.completions
    turn = completion.turn
    return {
        **_head(result.head),
        "content": [_block(part, request, result.head) for part in parts_of(turn.reply)],
        **_stop(turn, codec),
        "usage": _usage(len(turn.prompt_ids), len(turn.output_ids_T)),
    }


class MessageStream:
    """The events of one streamed call.

    Call `push` for each event in order, then `finish`, or `fail` if the call broke off.
    """

    def __init__(self, request: CheckedCall[MessagesBody], head: CallHead, codec: Codec) -> None:
        self._request = request
        self._head = head
        self._codec = codec
        self._blocks_begun = 0
        self._open: type[ReplyPart] | None = None

    def push(self, event: CallEvent) -> list[SseEvent]:
        match event:
            case Opened():
                rest: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
                message = {**_head(self._head), **rest, "usage": _usage(len(event.prompt_ids), 0)}
                return [_frame("message_start", message=message)]
            case Piece():
                return [frame for part in event.parts for frame in self._part(part)]
            case Closed(completion):
                turn = completion.turn
                usage = _usage(len(turn.prompt_ids), len(turn.output_ids_T))
                return [*self._close(), _frame("message_delta", delta=_stop(turn, self._codec), usage=usage)]

    def finish(self) -> list[SseEvent]:
        return [_frame("message_stop")]

    def fail(self, error: SwarmError) -> list[SseEvent]:
        """Return an `error` event, on which Anthropic's clients raise. The HTTP status has been sent already."""
        return [SseEvent(anthropic_error(error), "error")]

    def ping(self) -> bytes:
        """Return a `ping` event, which clients skip. It shows that the stream is alive."""
        return _PING

    def _part(self, part: ReplyPart) -> list[SseEvent]:
        """Return the events of one part of the reply.

        Each tool call is a block of its own. Consecutive parts of text, or of reasoning, go into one block.
        """
        frames: list[SseEvent] = []
        if self._open is not type(part) or isinstance(part, ToolCallPart):
            frames += self._close()
            frames.append(self._frame("content_block_start", content_block=_empty_block(part)))
            self._open, self._blocks_begun = type(part), self._blocks_begun + 1
        for delta in self._deltas(part):
            frames.append(self._frame("content_block_delta", delta=delta))
        return frames

    def _deltas(self, part: ReplyPart) -> Iterable[dict[str, Any]]:
        match part:
            case TextPart():
                yield {"type": "text_delta", "text": part.text}
            case ReasoningPart():
                if self._request.body.shows_thinking:
                    yield {"type": "thinking_delta", "thinking": part.text}
            case ToolCallPart():
                yield {"type": "input_json_delta", "partial_json": input_json(part.arguments)}

    def _close(self) -> list[SseEvent]:
        if self._open is None:
            return []
        frames: list[SseEvent] = []
        if self._open is ReasoningPart:
            signature = {"type": "signature_delta", "signature": _signature(self._head)}
            frames.append(self._frame("content_block_delta", delta=signature))
        frames.append(self._frame("content_block_stop"))
        self._open = None
        return frames

    def _frame(self, event: str, **fields: Any) -> SseEvent:
        """Return an event about the block that was begun last, or that this event begins."""
        index = self._blocks_begun - (event != "content_block_start")
        return _frame(event, index=index, **fields)


def _frame(event: str, **fields: Any) -> SseEvent:
    return SseEvent({"type": event, **fields}, event)


def _head(head: CallHead) -> dict[str, Any]:
    return {"id": f"msg_{head.call_id}", "type": "message", "role": "assistant", "model": head.model}


def _signature(head: CallHead) -> str:
    """Return the signature by which `RecordedReplies.reasoning` finds the reply."""
    return head.call_id


def _block(part: ReplyPart, request: CheckedCall[MessagesBody], head: CallHead) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ReasoningPart():
            text = part.text if request.body.shows_thinking else ""
            return {"type": "thinking", "thinking": text, "signature": _signature(head)}
        case ToolCallPart():
            return {**_empty_block(part), "input": tool_input(part.arguments)}


def _empty_block(part: ReplyPart) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"type": "text", "text": ""}
        case ReasoningPart():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCallPart():
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": {}}


def _stop(turn: Turn, codec: Codec) -> dict[str, str | None]:
    """Return why the turn stopped, as Anthropic names it. Raises EngineFailure for an aborted turn."""
    if turn.finish_reason is FinishReason.LENGTH:
        is_full = len(turn.output_ids_T) < turn.params.max_tokens
        return {"stop_reason": "model_context_window_exceeded" if is_full else "max_tokens", "stop_sequence": None}
    if turn.finish_reason is not FinishReason.STOP:
        raise EngineFailure("the engine stopped before the completion was finished: send the request again")
    if sequence := _stop_sequence(turn, codec):
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": "tool_use" if turn.reply.get("tool_calls") else "end_turn", "stop_sequence": None}


def _stop_sequence(turn: Turn, codec: Codec) -> str | None:
    """Return the stop sequence that was complete first in the sampled text, or None."""
    if not turn.params.stop:
        return None
    text = codec.decode(turn.output_ids_T)
    ends = [(text.find(stop) + len(stop), text.find(stop), stop) for stop in turn.params.stop if stop in text]
    return min(ends)[2] if ends else None


def _usage(input_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
