"""Replies of OpenAI's chat completions API: one body, or a stream of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from swarm.errors import EngineFailure, SwarmError
from swarm.gateway.dialects.chat.request import ChatRequest
from swarm.gateway.dialects.endpoint import SseEvent
from swarm.rollout.deduplication import CallEvent, CallHead, CallResult, Closed, Completion, Opened, Piece
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, Message, ReasoningPart, ReplyPart, TextPart, TokenDelta, TokenLogprobs

DONE = SseEvent("[DONE]")

_FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
)


def render_completion(request: ChatRequest, result: CallResult, codec: Codec) -> dict[str, Any]:
    """Return the body of a finished call. Raises EngineFailure for an aborted turn, as its reply is incomplete."""
    body: dict[str, Any] = {
        "id": f"chatcmpl-{result.head.call_id}",
        "object": "chat.completion",
        "created": result.head.created,
        "model": result.head.model,
        "choices": [_choice(request, completion, codec) for completion in result.completions],
        "usage": usage(result.completions),
    }
    if request.return_token_ids:
        body["prompt_token_ids"] = list(result.completions[0].turn.prompt_ids)
    return body


def _choice(request: ChatRequest, completion: Completion, codec: Codec) -> dict[str, Any]:
    turn = completion.turn
    logprobs = None
    if request.logprobs:
        logprobs = _logprobs(codec, turn.output_ids_T, turn.logprobs_T, completion.top_logprobs_T)
    choice: dict[str, Any] = {
        "index": completion.choice,
        "message": {"refusal": None, **turn.reply},
        "logprobs": logprobs,
        "finish_reason": finish_reason(turn.finish_reason, turn.reply),
    }
    if request.return_token_ids:
        choice["token_ids"] = list(turn.output_ids_T)
    return choice


class ChunkStream:
    """The chunks of one streamed call.

    Call `push` for each event in order, then `finish`, or `fail` if the call broke off. A chunk has the logprobs and
    ids of all tokens sampled since the last chunk of its choice. This includes tokens whose text is hidden or not sent
    yet.
    """

    def __init__(self, request: ChatRequest, head: CallHead, codec: Codec) -> None:
        self._request = request
        self._codec = codec
        self._head = {
            "id": f"chatcmpl-{head.call_id}",
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
        }
        self._calls_sent: dict[int, int] = {}
        self._unsent: dict[int, list[TokenDelta]] = {}
        self._completions: list[Completion] = []

    def push(self, event: CallEvent) -> list[SseEvent]:
        match event:
            case Opened():
                self._unsent[event.choice], self._calls_sent[event.choice] = [], 0
                chunk = self._chunk(event.choice, {"role": "assistant", "content": ""})
                if self._request.return_token_ids:
                    chunk["prompt_token_ids"] = list(event.prompt_ids)
                return [SseEvent(chunk)]
            case Piece():
                self._unsent[event.choice].append(event.delta)
                return [SseEvent(self._chunk(event.choice, self._delta(event.choice, part))) for part in event.parts]
            case Closed(completion):
                self._completions.append(completion)
                reason = finish_reason(completion.turn.finish_reason, completion.turn.reply)
                return [SseEvent(self._chunk(event.choice, {}, reason))]

    def finish(self) -> list[SseEvent]:
        """Return the usage, if the request asked for it, and the end of the stream."""
        if not self._request.include_usage:
            return [DONE]
        return [SseEvent({**self._head, "choices": [], "usage": usage(self._completions)}), DONE]

    def fail(self, error: SwarmError) -> list[SseEvent]:
        """Return an `error` event, on which the clients of OpenAI raise. The HTTP status has been sent already."""
        detail = {"message": error.message, "type": "server_error", "param": None, "code": error.code}
        return [SseEvent({"error": detail})]

    def ping(self) -> bytes:
        """Return a comment, so that proxies do not close a silent connection."""
        return b": keep-alive\n\n"

    def _delta(self, choice: int, part: ReplyPart) -> dict[str, Any]:
        if isinstance(part, TextPart):
            return {"content": part.text}
        if isinstance(part, ReasoningPart):
            return {"reasoning_content": part.text}
        index = self._calls_sent[choice]
        self._calls_sent[choice] += 1
        function = {"name": part.name, "arguments": part.arguments}
        return {"tool_calls": [{"index": index, "id": part.call_id, "type": "function", "function": function}]}

    def _chunk(self, choice: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        deltas, self._unsent[choice] = self._unsent[choice], []
        ids = [token for each in deltas for token in each.token_ids_T]
        body: dict[str, Any] = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self._request.logprobs and ids:
            logprobs = [logprob for each in deltas for logprob in each.logprobs_T]
            top = [row for each in deltas for row in each.top_logprobs_T or ()]
            body["logprobs"] = _logprobs(self._codec, ids, logprobs, top or None)
        if self._request.return_token_ids:
            body["token_ids"] = ids
        return {**self._head, "choices": [body]}


def finish_reason(reason: FinishReason, reply: Message) -> str:
    """Return OpenAI's name of the finish reason. Raises EngineFailure for an aborted turn."""
    if reason is FinishReason.STOP and reply.get("tool_calls"):
        return "tool_calls"
    if reason not in _FINISH_REASONS:
        raise EngineFailure("the engine stopped before the completion was finished: send the request again")
    return _FINISH_REASONS[reason]


def usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Return the token counts. A prompt that several completions share counts once."""
    prompts = {completion.turn.prompt_ids for completion in completions}
    prompt_tokens = sum(len(prompt_ids) for prompt_ids in prompts)
    completion_tokens = sum(len(completion.turn.output_ids_T) for completion in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _logprobs(
    codec: Codec, token_ids: Sequence[int], logprobs: Sequence[float], top: Sequence[TokenLogprobs] | None
) -> dict[str, Any]:
    """Return one entry per sampled token, including the stop token."""
    rows: Sequence[TokenLogprobs] = top if top is not None else [()] * len(token_ids)
    content = [
        {**_token(codec, token_id, logprob), "top_logprobs": [_token(codec, *each) for each in row]}
        for token_id, logprob, row in zip(token_ids, logprobs, rows, strict=True)
    ]
    return {"content": content, "refusal": None}


def _token(codec: Codec, token_id: int, logprob: float) -> dict[str, Any]:
    """Return a token with its logprob. `bytes` is null for a token that is part of a character."""
    (text,) = codec.token_text([token_id])
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
