"""Replies of OpenAI's chat completions API: one body, or a stream of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from swarm.errors import EngineFailure, SwarmError
from swarm.gateway.dialects.chat.request import ChatBody, parse_chat_request
from swarm.gateway.dialects.endpoint import RECORDED, Dialect, SseEvent
from swarm.gateway.dialects.fields import CheckedCall, CompletionsBody
from swarm.gateway.http.openapi import model_responses
from swarm.rollout.deduplication import CallEvent, CallHead, CallResult, Closed, Completion, Opened, Piece
from swarm.rollout.model_request import ModelRequest
from swarm.tracker.codec import Codec
from swarm.types import FinishReason, Message, ReasoningPart, ReplyPart, TextPart, TokenDelta, TokenLogprobs

DONE = SseEvent("[DONE]")

Body = TypeVar("Body", bound=CompletionsBody)

_FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}
)


def render_completion(request: CheckedCall[ChatBody], result: CallResult, codec: Codec) -> dict[str, Any]:
    """Return the body of a finished call. Raises EngineFailure for an aborted turn, as its reply is incomplete."""
    body: dict[str, Any] = {
        **_head(result.head, "chat.completion"),
        "choices": [_choice(request, completion, codec) for completion in result.completions],
        "usage": usage(request.call, result.completions),
    }
    if request.body.return_token_ids:
        body["prompt_token_ids"] = list(result.completions[0].turn.prompt_ids)
    return body


def _head(head: CallHead, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{head.call_id}", "object": kind, "created": head.created, "model": head.model}


def _choice(request: CheckedCall[ChatBody], completion: Completion, codec: Codec) -> dict[str, Any]:
    turn = completion.turn
    logprobs = None
    if request.body.logprobs:
        logprobs = _logprobs(codec, turn.output_ids_T, turn.logprobs_T, completion.top_logprobs_T)
    choice: dict[str, Any] = {
        "index": completion.choice,
        "message": {"refusal": None, **turn.reply},
        "logprobs": logprobs,
        "finish_reason": finish_reason(turn.finish_reason, turn.reply),
    }
    if request.body.return_token_ids:
        choice["token_ids"] = list(turn.output_ids_T)
    return choice


class OpenAiFrames:
    """The events that are the same in all APIs of OpenAI."""

    def ping(self) -> bytes:
        """Return a comment, so that proxies do not close a silent connection."""
        return b": keep-alive\n\n"


class CompletionChunks(OpenAiFrames, Generic[Body]):
    """The part of a streamed call that chat and text completions share.

    Call `push` for each event in order, then `finish`, or `fail` if the call broke off. A chunk has the logprobs and
    ids of all tokens sampled since the last chunk of its choice. This includes tokens whose text is hidden or not sent
    yet.
    """

    def __init__(self, request: CheckedCall[Body], head: dict[str, Any], codec: Codec) -> None:
        self._request = request
        self._codec = codec
        self._head = head
        self._unsent: dict[int, list[TokenDelta]] = {}
        self._completions: list[Completion] = []

    def finish(self) -> list[SseEvent]:
        """Return the usage, if the request asked for it, and the end of the stream."""
        if not self._request.body.includes_usage:
            return [DONE]
        usage_of_all = usage(self._request.call, self._completions)
        return [SseEvent({**self._head, "choices": [], "usage": usage_of_all}), DONE]

    def fail(self, error: SwarmError) -> list[SseEvent]:
        """Return an `error` event, on which the clients of OpenAI raise. The HTTP status has been sent already."""
        detail = {"message": error.message, "type": "server_error", "param": None, "code": error.code}
        return [SseEvent({"error": detail})]

    def _take_unsent(self, choice: int) -> list[TokenDelta]:
        deltas, self._unsent[choice] = self._unsent[choice], []
        return deltas


class ChunkStream(CompletionChunks[ChatBody]):
    """The chunks of one streamed chat completion."""

    def __init__(self, request: CheckedCall[ChatBody], head: CallHead, codec: Codec) -> None:
        super().__init__(request, _head(head, "chat.completion.chunk"), codec)
        self._calls_sent: dict[int, int] = {}

    def push(self, event: CallEvent) -> list[SseEvent]:
        match event:
            case Opened():
                self._unsent[event.choice], self._calls_sent[event.choice] = [], 0
                chunk = self._chunk(event.choice, {"role": "assistant", "content": ""})
                if self._request.body.return_token_ids:
                    chunk["prompt_token_ids"] = list(event.prompt_ids)
                return [SseEvent(chunk)]
            case Piece():
                self._unsent[event.choice].append(event.delta)
                return [SseEvent(self._chunk(event.choice, self._delta(event.choice, part))) for part in event.parts]
            case Closed(completion):
                self._completions.append(completion)
                reason = finish_reason(completion.turn.finish_reason, completion.turn.reply)
                return [SseEvent(self._chunk(event.choice, {}, reason))]

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
        deltas = self._take_unsent(choice)
        ids = [token for each in deltas for token in each.token_ids_T]
        body: dict[str, Any] = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self._request.body.logprobs and ids:
            logprobs = [logprob for each in deltas for logprob in each.logprobs_T]
            top = [row for each in deltas for row in each.top_logprobs_T or ()]
            body["logprobs"] = _logprobs(self._codec, ids, logprobs, top or None)
        if self._request.body.return_token_ids:
            body["token_ids"] = ids
        return {**self._head, "choices": [body]}


def finish_reason(reason: FinishReason, reply: Message) -> str:
    """Return OpenAI's name of the finish reason. Raises EngineFailure for an aborted turn."""
    if reason is FinishReason.STOP and reply.get("tool_calls"):
        return "tool_calls"
    if reason not in _FINISH_REASONS:
        raise EngineFailure("the engine stopped before the completion was finished: send the request again")
    return _FINISH_REASONS[reason]


def usage(call: ModelRequest, completions: Sequence[Completion]) -> dict[str, int]:
    """Return the token counts. A prompt counts once, even if it has several completions."""
    prompts = {each.choice // call.choices: len(each.turn.prompt_ids) for each in completions}
    prompt_tokens = sum(prompts.values())
    completion_tokens = sum(len(each.turn.output_ids_T) for each in completions)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _logprobs(
    codec: Codec, token_ids: Sequence[int], logprobs: Sequence[float], top: Sequence[TokenLogprobs] | None
) -> dict[str, Any]:
    """Return one entry per sampled token, including the stop token."""
    return {"content": token_rows(codec, token_ids, logprobs, top, no_bytes=None), "refusal": None}


def token_rows(
    codec: Codec,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    top: Sequence[TokenLogprobs] | None,
    *,
    no_bytes: list[int] | None,
) -> list[dict[str, Any]]:
    """Return each token with its logprob and the likeliest ones. A part of a character has `no_bytes`."""

    def row(token_id: int, logprob: float) -> dict[str, Any]:
        (text,) = codec.token_text([token_id])
        return {"token": text, "logprob": logprob, "bytes": no_bytes if "\ufffd" in text else list(text.encode())}

    rows: Sequence[TokenLogprobs] = top if top is not None else [()] * len(token_ids)
    return [
        {**row(token_id, logprob), "top_logprobs": [row(*each) for each in likeliest]}
        for token_id, logprob, likeliest in zip(token_ids, logprobs, rows, strict=True)
    ]


CHAT = Dialect(
    path="chat/completions",
    summary="Sample a reply",
    description=f"Sample a reply. {RECORDED.format(status=503)}",
    responses=model_responses(
        "OpenAI's chat completion. With `stream`, its chunks.", example="data: {...}\n\ndata: [DONE]\n\n"
    ),
    parse=lambda body, service, episode: parse_chat_request(body, service.defaults(episode)),
    render=render_completion,
    open_stream=ChunkStream,
)
